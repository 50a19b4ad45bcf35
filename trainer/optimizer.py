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
from collections.abc import Sequence

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


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the Euclidean norm over all gradients together, float32 scalar."""
    squares = [tf.reduce_sum(tf.square(one)) for one in gradients]
    return tf.sqrt(tf.add_n(squares))


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


class AdamW:
    """The optimizer's state, and the rule that moves weights.

    Attributes:
        variables: the weights, in a fixed order.
        first, second: float32 moments m and v, one a weight.
        updates: int64 scalar, updates applied.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        settings: TrainingSettings,
        *,
        total_steps: int,
    ) -> None:
        self.variables = list(variables)
        self.settings = settings
        self.total_steps = total_steps
        self.first = [_zeros_like(one) for one in self.variables]
        self.second = [_zeros_like(one) for one in self.variables]
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)

    def rate(self) -> tf.Tensor:
        """Return the learning rate of the next update."""
        return learning_rate(self.updates, settings=self.settings, total_steps=self.total_steps)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Move every weight once; the only place where the count of updates moves."""
        rate = self.rate()
        done = tf.cast(self.updates + 1, tf.float32)
        powers = (tf.pow(BETA_1, done), tf.pow(BETA_2, done))
        for weight, first, second, gradient in zip(
            self.variables, self.first, self.second, gradients, strict=True
        ):
            decay = self.settings.weight_decay if len(weight.shape) >= 2 else 0.0
            strategy.update(weight, _move, first, second, gradient, rate, powers, decay)
        strategy.update(self.updates, lambda updates: updates.assign_add(1))


def _zeros_like(variable: tf.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape), trainable=False)


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
