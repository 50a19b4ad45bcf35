"""AdamW with its own state variables, the learning rate's schedule, and clipping.

One update of weight w with gradient g, at update t = 1, 2, ... (applied updates only)::

    w <- w - lr * decay * w                       matrices only (two axes or more)
    m <- b1 * m + (1 - b1) * g
    v <- b2 * v + (1 - b2) * g^2
    w <- w - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)

Source: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, where decay is multiplied by the
scheduled learning rate (as PyTorch's and optax's AdamW do, not by the schedule alone as the paper).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from trainer import strategy
from trainer.settings import TrainingSettings

BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-8


def learning_rate(update: tf.Tensor, *, settings: TrainingSettings, total_steps: int) -> tf.Tensor:
    """Return the rate of one update.

    During warm-up it is ``learning_rate * (update + 1) / warmup_steps``, so the first update moves
    too. Then, with p from 0 (first update after warm-up) towards 1 (`total_steps`, not reached):
    ``constant`` keeps it, ``linear`` gives 1 - p of it, ``cosine`` (1 + cos(pi p)) / 2 of it.

    Args:
        update: number of updates applied before this one.
        settings: learning_rate, schedule, warmup_steps.
        total_steps: updates in all, over which the schedule falls.
    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, without restarts.
    """
    done = tf.cast(update, tf.float32)
    warmup = float(settings.warmup_steps)
    falling = max(1.0, total_steps - warmup)
    progress = tf.clip_by_value((done - warmup) / falling, 0.0, 1.0)
    share = {
        "constant": lambda: tf.ones_like(progress),
        "linear": lambda: 1.0 - progress,
        "cosine": lambda: 0.5 * (1.0 + tf.cos(math.pi * progress)),
    }[settings.schedule]()
    if warmup:
        share = tf.where(done < warmup, (done + 1.0) / warmup, share)
    return settings.learning_rate * share


def global_norm(
    gradients: Sequence[tf.Tensor],
    over_workers: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> tf.Tensor:
    """Return the Euclidean norm over all gradients together, float32 scalar.

    Args:
        gradients: whole ones, or the parts that one worker holds.
        over_workers: makes the sum over all workers of a scalar, where they are parts.
    """
    squares = [tf.reduce_sum(tf.square(one)) for one in gradients]
    return tf.sqrt(over_workers(tf.add_n(squares)))


def clip(gradients: Sequence[tf.Tensor], norm: tf.Tensor, *, clip_norm: float) -> list[tf.Tensor]:
    """Return the gradients scaled down so that their global norm is at most `clip_norm`.

    Args:
        gradients: the reduced gradients, unscaled.
        norm: their `global_norm`.
        clip_norm: 0 clips nothing.
    Source: Pascanu et al. 2013, arXiv:1211.5063, section 3.2.
    """
    if not clip_norm:
        return list(gradients)
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return [one * factor for one in gradients]


class Parts(Protocol):
    """The part of each weight that is updated here, where that is not the weight itself.

    Attributes:
        shapes: of the parts.
        groups: places of the weights, in order, in the groups that are put back together.
    """

    shapes: Sequence[Sequence[int]]
    groups: Sequence[Sequence[int]]

    def take(self, place: int) -> tf.Tensor:
        """Return the part's value."""
        ...

    def put(self, places: Sequence[int], values: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Set the parts, and return what must run before the next group begins."""
        ...


class Whole:
    """Weights that are updated whole, one after the other: `Parts` of one worker."""

    def __init__(self, weights: Sequence[tf.Variable]) -> None:
        self.weights = list(weights)
        self.shapes = [one.shape for one in self.weights]
        self.groups = [[place] for place in range(len(self.weights))]

    def take(self, place: int) -> tf.Tensor:
        """Return a weight's value."""
        return self.weights[place].read_value()

    def put(self, places: Sequence[int], values: Sequence[tf.Tensor]) -> list[Any]:
        """Set the weights."""
        return [self.weights[place].assign(value) for place, value in
                zip(places, values, strict=True)]  # fmt: skip


class AdamW:
    """The optimizer's state, and the rule that moves weights.

    Attributes:
        variables: the weights, in a fixed order, or this worker's slices of them.
        first, second: float32 moments m and v, one a weight, of its part's shape.
        updates: int64 scalar, updates applied.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        settings: TrainingSettings,
        *,
        total_steps: int,
        shapes: Sequence[Sequence[int]] | None = None,
        parts: Parts | None = None,
        device: str = "",
    ) -> None:
        """Make moments of 0.

        Args:
            variables: the weights.
            settings: of the schedule and the decay.
            total_steps: updates in all.
            shapes: of the whole weights; the variables' own when not given.
            parts: what is updated here; the variables themselves when not given.
            device: of the moments, where they are also computed; empty: that of the weights.
        """
        self.variables = list(variables)
        self.settings = settings
        self.total_steps = total_steps
        own = [one.shape for one in self.variables]
        self.decays = [settings.weight_decay if len(one) >= 2 else 0.0 for one in shapes or own]
        self.device = device
        self.parts = parts or (Whole(self.variables) if device else None)
        held = own if self.parts is None else self.parts.shapes
        with tf.device(device):
            self.first, self.second = ([_moment(one) for one in held] for _ in range(2))
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)

    def rate(self) -> tf.Tensor:
        """Return the learning rate of the next update."""
        return learning_rate(self.updates, settings=self.settings, total_steps=self.total_steps)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Move every weight once; the only place where the count of updates moves.

        Args:
            gradients: of the parts that are updated here.
        """
        rate = self.rate()
        done = tf.cast(self.updates + 1, tf.float32)
        powers = (tf.pow(BETA_1, done), tf.pow(BETA_2, done))
        if self.parts is None:
            self._apply_in_place(gradients, rate, powers)
        else:
            self._apply_to_parts(self.parts, gradients, rate, powers)
        strategy.update(self.updates, lambda updates: updates.assign_add(1))

    def _apply_in_place(
        self,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        powers: tuple[tf.Tensor, tf.Tensor],
    ) -> None:
        for weight, first, second, gradient, decay in zip(
            self.variables, self.first, self.second, gradients, self.decays, strict=True
        ):
            strategy.update(weight, _move, first, second, gradient, rate, powers, decay)

    def _apply_to_parts(
        self,
        parts: Parts,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        powers: tuple[tf.Tensor, tf.Tensor],
    ) -> None:
        # One group after the other, so that what they need in passing is never there for all.
        before: list[Any] = []
        for group in parts.groups:
            moved = []
            for place in group:
                with tf.control_dependencies(before):
                    gradient = tf.identity(gradients[place])
                with tf.device(self.device):
                    change = _change(
                        self.first[place], self.second[place], gradient, rate=rate, powers=powers
                    )
                with tf.control_dependencies(before):
                    mine = parts.take(place)
                moved.append(mine - rate * self.decays[place] * mine - change)
            before = parts.put(group, moved)


def _change(
    first: tf.Variable,
    second: tf.Variable,
    gradient: tf.Tensor,
    *,
    rate: tf.Tensor,
    powers: tuple[tf.Tensor, tf.Tensor],
) -> tf.Tensor:
    """Change the moments in place, and return what is to be taken from the weight.

    In the order of TensorFlow's fused kernel (see `_move`), so that the bits are the same.
    """
    # 1 - b in float32: that of float64, rounded, is another number.
    m = first.assign_add((gradient - first) * (1 - np.float32(BETA_1)))
    v = second.assign_add((tf.square(gradient) - second) * (1 - np.float32(BETA_2)))
    unbias = tf.sqrt(1.0 - powers[1])
    return m * (rate * unbias / (1.0 - powers[0])) / (tf.sqrt(v) + EPSILON * unbias)


def _moment(shape: Sequence[int]) -> tf.Variable:
    return tf.Variable(tf.zeros(shape), trainable=False)


def _move(
    weight: tf.Variable,
    first: tf.Variable,
    second: tf.Variable,
    gradient: tf.Tensor,
    rate: tf.Tensor,
    powers: tuple[tf.Tensor, tf.Tensor],
    decay: float,
) -> None:
    """Change one weight and its moments in place.

    TensorFlow's fused kernel adds epsilon to sqrt(v) before the bias of v is taken out; times
    sqrt(1 - b2^t) it is the epsilon of the formula above.
    """
    if decay:
        weight.assign_sub(rate * decay * weight)
    tf.raw_ops.ResourceApplyAdam(
        var=weight.handle, m=first.handle, v=second.handle,
        beta1_power=powers[0], beta2_power=powers[1], lr=rate,
        beta1=BETA_1, beta2=BETA_2, epsilon=EPSILON * tf.sqrt(1.0 - powers[1]),
        grad=gradient, use_locking=False, use_nesterov=False,
    )  # fmt: skip
