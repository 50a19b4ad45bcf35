"""Sums over micro-batches, against the same sums over the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.accumulation import Sums, accumulate, accumulation_steps


def _local(weights: list[tf.Variable]) -> Any:
    """A two-layer regression on ``x`` with an embedding of ``id``."""
    table, kernel = weights

    def local(batch: dict[str, tf.Tensor], index: Any, buffers: Any) -> Sums:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(batch["x"] @ kernel + tf.gather(table, batch["id"]))
            losses = tf.square(tf.reduce_sum(hidden, axis=1) - batch["label"])
            loss = tf.reduce_sum(losses * batch["weight"])
        return Sums(tape.gradient(loss, weights), loss, tf.reduce_sum(batch["weight"]))

    return local


def _batch(rows: int, real: int) -> dict[str, tf.Tensor]:
    random = np.random.default_rng(rows * 100 + real)
    weight = (np.arange(rows) < real).astype(np.float32)
    return {
        "x": tf.constant(random.normal(size=(rows, 3)).astype(np.float32) * weight[:, None]),
        "id": tf.constant(random.integers(0, 5, rows).astype(np.int32)),
        "label": tf.constant(random.normal(size=rows).astype(np.float32)),
        "weight": tf.constant(weight),
    }


def _weights() -> list[tf.Variable]:
    random = np.random.default_rng(0)
    return [tf.Variable(random.normal(size=shape).astype(np.float32)) for shape in ((5, 4), (3, 4))]


def _sums(weights: list[tf.Variable], batch: dict[str, tf.Tensor], micro_batch: int) -> Sums:
    run = tf.function(
        lambda: accumulate(
            _local(weights), batch, micro_batch=micro_batch, shapes=[one.shape for one in weights]
        ),
        autograph=False,
    )
    return run()


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_accumulated_is_one_batch(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 12), label="rows")
    real = data.draw(st.integers(1, rows), label="real rows")
    micro_batch = data.draw(st.integers(1, rows), label="micro_batch")
    weights, batch = _weights(), _batch(rows, real)
    whole, parts = _sums(weights, batch, rows), _sums(weights, batch, micro_batch)
    assert float(parts.examples) == float(whole.examples) == real
    # float32 sums in another order
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-5)
    for part, one in zip(parts.gradients, whole.gradients, strict=True):
        assert part.dtype == tf.float32
        np.testing.assert_allclose(part, one, rtol=1e-4, atol=1e-5)


def test_a_short_last_micro_batch_weighs_by_its_rows() -> None:
    # cases/training.md, training-1: the mean gradient of 5 rows is -5.2 and the mean loss 17
    weight = tf.Variable([[0.0]])

    def local(batch: dict[str, tf.Tensor], index: Any, buffers: Any) -> Sums:
        with tf.GradientTape() as tape:
            error = batch["x"] @ weight - batch["label"][:, None]
            loss = tf.reduce_sum(tf.square(error[:, 0]) * batch["weight"])
        return Sums(tape.gradient(loss, [weight]), loss, tf.reduce_sum(batch["weight"]))

    batch = {
        "x": tf.ones([5, 1]),
        "label": tf.constant([1.0, 1.0, 1.0, 1.0, 9.0]),
        "weight": tf.ones([5]),
    }
    sums = accumulate(local, batch, micro_batch=4, shapes=[weight.shape])
    assert float(sums.gradients[0] / sums.examples) == pytest.approx(-5.2)
    assert float(sums.loss / sums.examples) == pytest.approx(17.0)


def test_micro_batches_of_padding_alone_are_not_computed() -> None:
    seen: list[int] = []

    def local(batch: dict[str, tf.Tensor], index: Any, buffers: Any) -> Sums:
        seen.append(int(index))
        return Sums([tf.zeros([1])], tf.constant(0.0), tf.reduce_sum(batch["weight"]))

    batch = {"weight": tf.constant([1.0, 1.0, 1.0] + [0.0] * 7)}
    sums = accumulate(local, batch, micro_batch=2, shapes=[[1]])
    assert (seen, float(sums.examples)) == ([0, 1], 3.0)


def test_sparse_gradients_come_out_dense() -> None:
    table = tf.Variable(tf.ones([4, 2]))

    def local(batch: dict[str, tf.Tensor], index: Any, buffers: Any) -> Sums:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, batch["id"])
            loss = tf.reduce_sum(rows * batch["weight"][:, None])
        gradient = tape.gradient(loss, [table])
        assert isinstance(gradient[0], tf.IndexedSlices)
        return Sums(gradient, loss, tf.reduce_sum(batch["weight"]))

    batch = {"id": tf.constant([1, 1, 3]), "weight": tf.ones([3])}
    for micro_batch in (1, 2, 3):
        sums = accumulate(local, batch, micro_batch=micro_batch, shapes=[table.shape])
        assert sums.gradients[0].numpy().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


@pytest.mark.parametrize("micro_batch", [1, 2, 5, 8])
def test_buffers_pass_from_one_micro_batch_to_the_next(micro_batch: int) -> None:
    def local(batch: dict[str, tf.Tensor], index: Any, buffers: Any) -> Sums:
        (moving,) = buffers
        real = tf.reduce_sum(batch["weight"])
        return Sums([tf.zeros([1])], tf.constant(0.0), real, [2 * moving + real])

    batch = {"weight": tf.constant([1.0] * 5 + [0.0] * 3)}
    start = [tf.constant(3.0)]
    sums = accumulate(
        local, batch, micro_batch=micro_batch, shapes=[[1]], buffers=start,
        # padding alone, for another worker's sake
        over_workers=lambda used: tf.constant(accumulation_steps(8, micro_batch)),
    )  # fmt: skip
    right = 3.0
    for first in range(0, 5, micro_batch):
        right = 2 * right + min(micro_batch, 5 - first)
    assert float(sums.buffers[0]) == right
    assert float(sums.examples) == 5


def test_accumulation_steps_round_up() -> None:
    assert [accumulation_steps(12, one) for one in (12, 8, 5, 1)] == [1, 2, 3, 12]
