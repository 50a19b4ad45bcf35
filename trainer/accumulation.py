"""Gradients of a batch, taken a micro-batch at a time and summed over examples.

Sums, not means: with gradients 1..12 in micro-batches of 8 and 4 the mean of means is 7.5 and the
right answer 6.5. The division by the number of real examples is done once, for the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.order import fresh_zeros, in_program_order


class Sums(NamedTuple):
    """What a batch adds up to.

    Attributes:
        gradients: float32, one dense tensor a variable; sums over examples.
        loss: float32 scalar, sum of the example losses.
        examples: float32 scalar, number of real examples (tokens of a language model).
        buffers: what the model keeps besides weights (moving statistics), as the last micro-batch
            left it; they are handed from one to the next and do not add up.
    """

    gradients: list[tf.Tensor]
    loss: tf.Tensor
    examples: tf.Tensor
    buffers: Sequence[tf.Tensor] = ()


Local = Callable[[dict[str, tf.Tensor], Any, Sequence[tf.Tensor]], Sums]
"""Takes a micro-batch, its index in the batch and the buffers, and returns its sums."""


def accumulation_steps(rows: int, micro_batch: int) -> int:
    """Return how many micro-batches hold `rows` rows; the last one may be short."""
    return -(-rows // micro_batch)


def accumulate(
    local: Local,
    batch: Mapping[str, tf.Tensor],
    *,
    micro_batch: int,
    shapes: Sequence[Any],
    buffers: Sequence[tf.Tensor] = (),
    over_workers: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> Sums:
    """Return the sums over a batch, with the memory of one micro-batch.

    Args:
        local: gradients of one micro-batch.
        batch: tensors [rows, ...] of static shape; ``weight`` is 1 for real rows, which come
            first, and 0 for padding. Micro-batches of padding alone are not computed.
        micro_batch: rows at once.
        shapes: of the gradients.
        buffers: what the first micro-batch begins with.
        over_workers: from this worker's number of micro-batches with a real row to the number that
            it computes: the largest of all workers, where each of them needs the others.
    """
    rows = int(batch["weight"].shape[0])
    steps = accumulation_steps(rows, micro_batch)
    if steps == 1:
        return _kept(dense(local(dict(batch), 0, list(buffers))), list(buffers))
    padded = {name: _pad(value, steps * micro_batch - rows) for name, value in batch.items()}
    real = tf.math.count_nonzero(batch["weight"], dtype=tf.int32)
    used = over_workers((real + micro_batch - 1) // micro_batch)

    def add(index: tf.Tensor, sums: Sums) -> tuple[tf.Tensor, Sums]:
        place = _slice(padded, index * micro_batch, micro_batch)
        return index + 1, _added(sums, dense(local(place, index, sums.buffers)))

    # One iteration at a time: TensorFlow would else start the next one and hold both in memory.
    start = zeros(shapes)._replace(buffers=list(buffers))
    _, sums = tf.while_loop(
        lambda index, _: index < used,
        in_program_order(add),
        (tf.constant(0), start),
        parallel_iterations=1,
    )
    return sums


def zeros(shapes: Sequence[Any]) -> Sums:
    """Return sums over no example."""
    return Sums([fresh_zeros(shape) for shape in shapes], tf.constant(0.0), tf.constant(0.0), [])


def _added(sums: Sums, part: Sums) -> Sums:
    return Sums(
        [one + other for one, other in zip(sums.gradients, part.gradients, strict=True)],
        sums.loss + part.loss,
        sums.examples + part.examples,
        _kept(part, sums.buffers).buffers,
    )


def _kept(part: Sums, before: Sequence[tf.Tensor]) -> Sums:
    """Return a part with the buffers from before it, where it holds no real row."""
    is_real = part.examples > 0
    buffers = [tf.where(is_real, new, old) for new, old in zip(part.buffers, before, strict=True)]
    return part._replace(buffers=buffers)


def dense(sums: Sums) -> Sums:
    """Return the sums with sparse gradients (of embeddings) made dense and all in float32.

    Adam over an `IndexedSlices` would move only the rows in the batch, and differently with the
    number of replicas.
    """
    gradients = [tf.cast(tf.convert_to_tensor(one), tf.float32) for one in sums.gradients]
    return sums._replace(gradients=gradients)


def _pad(value: tf.Tensor, rows: int) -> tf.Tensor:
    return tf.pad(value, [[0, rows]] + [[0, 0]] * (len(value.shape) - 1)) if rows else value


def _slice(batch: Mapping[str, tf.Tensor], start: tf.Tensor, rows: int) -> dict[str, tf.Tensor]:
    return {
        name: tf.slice(
            value,
            tf.stack([start] + [0] * (len(value.shape) - 1)),
            [rows, *value.shape[1:]],
        )
        for name, value in batch.items()
    }
