"""ZeRO: what each worker holds its own part of alone.

A variable of n numbers is cut, flat, into N parts of ceil(n / N), the last ones padded with zeros,
for which nothing ever changes: their gradient is 0. Worker r holds part r of

    optimizer    (ZeRO 1) the optimizer's moments; it updates its part of the weights, and the
                 parts are put together again
    gradients    (ZeRO 2) and of the gradient sums: each micro-batch's gradients are added up over
                 the workers at once, and each keeps its part
    parameters   (ZeRO 3) and of the weights: those of a block are put together for its forward
                 pass, and again for its backward pass, whose gradient is cut up in the same way

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5. With one worker a part is the
whole, flat.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

from trainer.collectives import Channel, buckets

Level = Literal["none", "optimizer", "gradients", "parameters"]
Shape = Sequence[int]
FLOAT_BYTES = 4


class Sharding:
    """How a state is cut up over the workers.

    Attributes:
        level: what each worker holds its part of.
        channel: the collectives of the state's step.
        workers, rank: as the channel has them.
    """

    def __init__(self, level: Level, channel: Channel) -> None:
        self.level = level
        self.channel = channel
        self.workers, self.rank = channel.workers.count, channel.workers.rank

    @property
    def cuts_optimizer(self) -> bool:
        """Whether moments are parts."""
        return self.level != "none"

    @property
    def cuts_gradients(self) -> bool:
        """Whether the sums over micro-batches are parts, already added up over the workers."""
        return self.level in {"gradients", "parameters"}

    @property
    def cuts_parameters(self) -> bool:
        """Whether weights are parts."""
        return self.level == "parameters"

    def size(self, shape: Shape) -> int:
        """Return the numbers of one worker's part of a variable of this shape."""
        return -(-math.prod(shape) // self.workers)

    def bounds(self, shape: Shape) -> tuple[int, int]:
        """Return where this worker's part of a flat variable begins and ends, padding left out."""
        size, numbers = self.size(shape), math.prod(shape)
        return min(numbers, self.rank * size), min(numbers, (self.rank + 1) * size)

    def part(self, whole: tf.Tensor) -> tf.Tensor:
        """Return this worker's part [size] of a variable's value of any shape."""
        first, last = self.bounds(whole.shape)
        mine = tf.reshape(whole, [-1])[first:last]
        missing = self.size(whole.shape) - (last - first)
        return tf.pad(mine, [[0, missing]]) if missing else mine

    def part_of_array(self, whole: np.ndarray) -> np.ndarray:
        """Return `part` of an array, of any type."""
        first, last = self.bounds(whole.shape)
        mine = whole.reshape(-1)[first:last]
        return np.pad(mine, (0, self.size(whole.shape) - len(mine)))

    def whole(self, parts: Sequence[tf.Tensor], shapes: Sequence[Shape]) -> list[tf.Tensor]:
        """Return the variables' values from the parts that the workers hold.

        Args:
            parts: this worker's part of each, [size].
            shapes: of the whole ones.
        """
        sizes = [self.size(one) for one in shapes]
        found: list[tf.Tensor] = []
        for group in self.groups(sizes):
            with tf.control_dependencies(found[-1:]):
                mine = _joined([parts[one] for one in group], axis=0)
            rows = tf.reshape(self.channel.joined(mine), [self.workers, -1])
            for place, columns in zip(
                group, _split(rows, [sizes[one] for one in group]), strict=True
            ):
                numbers = math.prod(shapes[place])
                found.append(tf.reshape(tf.reshape(columns, [-1])[:numbers], shapes[place]))
        return found

    def scattered(self, wholes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return this worker's part of the sums of all workers' tensors.

        The last ones come first: a backward pass has their gradients first. A group is not got
        ready before the one before it is done, or the copies of all would be there at once.
        """
        sizes = [self.size(one.shape) for one in wholes]
        found: dict[int, tf.Tensor] = {}
        before: list[tf.Tensor] = []
        for group in reversed(self.groups(sizes)):
            with tf.control_dependencies(before):
                rows = _joined([self._rows(wholes[one], sizes[one]) for one in group], axis=1)
            mine = self.channel.scattered(rows)
            before = [mine]
            found |= dict(zip(group, _split(mine, [sizes[one] for one in group]), strict=True))
        return [found[place] for place in range(len(wholes))]

    def summed(self, wholes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of all workers' tensors, whole; scalars too."""
        if self.workers == 1:
            return list(wholes)
        sizes = [math.prod(one.shape) for one in wholes]
        found: dict[int, tf.Tensor] = {}
        before: list[tf.Tensor] = []
        for group in reversed(buckets([FLOAT_BYTES * one for one in sizes])):
            with tf.control_dependencies(before):
                flat = _joined([tf.reshape(wholes[one], [-1]) for one in group], axis=0)
            total = self.channel.sum(flat)
            before = [total]
            for place, one in zip(group, _split(total, [sizes[at] for at in group]), strict=True):
                found[place] = tf.reshape(one, wholes[place].shape)
        return [found[place] for place in range(len(wholes))]

    def groups(self, sizes: Sequence[int]) -> list[list[int]]:
        """Return which parts of these sizes travel together, by place."""
        return buckets([FLOAT_BYTES * self.workers * one for one in sizes])

    def _rows(self, whole: tf.Tensor, size: int) -> tf.Tensor:
        """Return [N, size]: the parts of one worker's tensor."""
        flat = tf.reshape(whole, [-1])
        missing = self.workers * size - math.prod(whole.shape)
        flat = tf.pad(flat, [[0, missing]]) if missing else flat
        return tf.reshape(flat, [self.workers, size])


class WeightParts:
    """This worker's parts of weights that every worker holds whole (ZeRO 1 and 2).

    Attributes:
        shapes: of the parts.
        groups: places of the weights whose parts travel together.
    """

    def __init__(self, sharding: Sharding, weights: Sequence[tf.Variable]) -> None:
        self.sharding, self.weights = sharding, list(weights)
        sizes = [sharding.size(one.shape) for one in self.weights]
        self.shapes = [[one] for one in sizes]
        self.groups = sharding.groups(sizes)

    def take(self, place: int) -> tf.Tensor:
        """Return this worker's part of a weight."""
        return self.sharding.part(self.weights[place].read_value())

    def put(self, places: Sequence[int], values: Sequence[tf.Tensor]) -> list[Any]:
        """Set weights from the parts of all workers."""
        weights = [self.weights[place] for place in places]
        wholes = self.sharding.whole(values, [one.shape for one in weights])
        return [one.assign(whole) for one, whole in zip(weights, wholes, strict=True)]


@contextlib.contextmanager
def without_values() -> Generator[None]:
    """Give variables that are made inside a shape and an initialiser, but no memory.

    Keras would make up for it when any scope of its own ends later: these are taken off its list.
    """
    waiting = "uninitialized_variables"
    before = list(global_state.get_global_attribute(waiting, []))
    with keras.StatelessScope(initialize_variables=False):
        yield
    global_state.set_global_attribute(waiting, before)


class Parameters:
    """The weights of a model whose gradients no worker holds whole (ZeRO 2 and 3).

    For ``gradients`` every worker holds the weights whole. For ``parameters`` none does: a builder
    makes its model in `without_values`. Either way it then calls `adopt` with all variables, and
    runs its layers with the weights that `entered` gives.

    Attributes:
        sharding: how they are cut.
        variables: Keras's trainable ones; for ``parameters`` with a shape and no value.
        slices: in the same order what the gradients are taken of: this worker's part of each,
            float32 [size]; for ``gradients`` the whole weights, whose gradients come out as parts.
    """

    def __init__(self, sharding: Sharding) -> None:
        self.sharding = sharding
        self.variables: list[keras.Variable] = []
        self.slices: list[tf.Variable] = []

    @property
    def keeps_whole(self) -> bool:
        """Whether every worker holds the weights whole, so that nothing need be recomputed."""
        return not self.sharding.cuts_parameters

    def adopt(self, variables: Iterable[keras.Variable]) -> None:
        """Make this worker's slices of trainable variables, one at a time, and the others whole.

        Every worker draws the whole value and keeps its part, so draws must be the same: from
        seeded initialisers, or after `keras.utils.set_random_seed`.
        """
        for one in variables:
            if not one.trainable:
                if one._value is None:
                    one._deferred_initialize()
                continue
            self.variables.append(one)
            self.slices.append(one._value if self.keeps_whole else self._slice(one))

    def _slice(self, variable: keras.Variable) -> tf.Variable:
        whole = tf.convert_to_tensor(variable._initializer(variable.shape, dtype=variable.dtype))
        # A layer that is called without gathered weights fails, rather than drawing new ones.
        variable._initializer = None
        # A copy, since a part of a tensor is a view that keeps all of it.
        mine = tf.raw_ops.DeepCopy(x=self.sharding.part(whole))
        return tf.Variable(mine, name=variable.name)

    def of(self, layer: Any) -> list[tuple[keras.Variable, tf.Variable]]:
        """Return the trainable variables of a layer, those of layers in it too, and their slices.

        Args:
            layer: a Keras layer or model, or a list of Keras variables.
        """
        slices = {id(one): mine for one, mine in zip(self.variables, self.slices, strict=True)}
        variables = layer if isinstance(layer, list) else layer.trainable_variables
        return [(one, slices[id(one)]) for one in variables]

    def gather(self, slices: Sequence[tf.Tensor], shapes: Sequence[Shape]) -> list[tf.Tensor]:
        """Return whole weights, as `entered` does, for layers that do not wait for an input."""
        return self.entered(None, slices, shapes)[1]

    def entered(
        self, x: tf.Tensor | None, slices: Sequence[tf.Tensor], shapes: Sequence[Shape]
    ) -> tuple[tf.Tensor | None, list[tf.Tensor]]:
        """Return a block's input and its whole weights.

        The gradient of the weights reaches the slices as the sum over all workers, cut up. All
        workers call it the same number of times, so also for micro-batches of padding alone. The
        weights are not fetched before the block's input is there, and the input's gradient is not
        passed on before those of the weights have been added up; or the weights and gradients of
        all blocks would wait for that at once.

        Args:
            x: the block's first input; any type.
            slices: values of some of `slices`, as the arguments of the recomputed function: a
                ``tf.identity`` of each, or the gathered weights stay alive with the variable.
            shapes: of the variables.
        """
        if not slices:
            return x, []
        with tf.control_dependencies([] if x is None else [x]):
            waiting = [tf.identity(one) for one in slices]
        joins = self._joining([tuple(one) for one in shapes])
        if x is None or not x.dtype.is_floating:
            return x, list(joins(*waiting))
        found: Any = joins(x, *waiting)
        return found[0], list(found[1:])

    def _joining(self, shapes: Sequence[Shape]) -> Callable[..., Any]:
        """Return the function of (input, slices), or of slices alone, with its gradient."""
        sharding, count = self.sharding, len(shapes)

        @tf.custom_gradient
        def joins(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            inputs, parts = tensors[:-count], tensors[-count:]
            wholes = parts if self.keeps_whole else sharding.whole(parts, shapes)

            def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
                dense = [_dense(one, shape) for one, shape in
                         zip(upstream[-count:], shapes, strict=True)]  # fmt: skip
                sums = sharding.scattered(dense)
                with tf.control_dependencies(sums):
                    passed = [tf.identity(one) for one in upstream[:-count]]
                return [*passed, *sums]

            return [tf.identity(one) for one in (*inputs, *wholes)], gradient

        return joins


def _dense(gradient: Any, shape: Shape) -> tf.Tensor:
    """Return a gradient as one tensor: that of an embedding comes as rows."""
    return tf.ensure_shape(tf.convert_to_tensor(gradient), shape)


def _joined(tensors: Sequence[tf.Tensor], *, axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)


def _split(tensor: tf.Tensor, sizes: Sequence[int]) -> Sequence[Any]:
    """Split along the last axis."""
    return [tensor] if len(sizes) == 1 else tf.split(tensor, list(sizes), axis=-1)
