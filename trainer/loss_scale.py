"""Dynamic loss scale: a state machine of four numbers, no framework object.

float16 gradients below 2^-24 become 0, so the loss is multiplied by a scale before the backward
pass and the gradients are divided by it afterwards. The scale starts at 2^15, halves on every step
whose gradients are not finite, and doubles after 2,000 good steps in a row; it is never below 1.

Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

START = 2.0**15
FLOOR = 1.0
GROW_AFTER = 2000
"""Good steps in a row after which the scale doubles."""


class LossScale(NamedTuple):
    """The state; each field a scalar tensor (or variable).

    Attributes:
        scale: float32, what the loss is multiplied by.
        good_steps: int32, finite steps since the scale last changed.
        skipped_steps: int32, steps that were not finite, in all.
        successive_skips: int32, steps that were not finite since the last finite one.
    """

    scale: tf.Tensor
    good_steps: tf.Tensor
    skipped_steps: tf.Tensor
    successive_skips: tf.Tensor


def start(*, is_scaled: bool) -> LossScale:
    """Return the state before the first step; without scaling the scale is 1 and stays so."""
    zero = tf.constant(0, tf.int32)
    return LossScale(tf.constant(START if is_scaled else 1.0, tf.float32), zero, zero, zero)


def advance(state: LossScale, is_finite: tf.Tensor, *, is_scaled: bool) -> LossScale:
    """Return the state after one step.

    Args:
        state: the state before it.
        is_finite: scalar bool: the step's gradients were finite, so it was applied.
        is_scaled: whether the scale moves; the counts move either way.
    """
    good = tf.where(is_finite, state.good_steps + 1, 0)
    grows = tf.logical_and(is_finite, good >= GROW_AFTER)
    moved = tf.where(is_finite, state.scale, tf.maximum(FLOOR, state.scale / 2.0))
    # Doubling stops where float32 has no larger power of two left to give.
    moved = tf.where(grows, tf.minimum(moved * 2.0, 2.0**126), moved)
    return LossScale(
        scale=moved if is_scaled else tf.identity(state.scale),
        good_steps=tf.where(grows, 0, good),
        skipped_steps=state.skipped_steps + tf.where(is_finite, 0, 1),
        successive_skips=tf.where(is_finite, 0, state.successive_skips + 1),
    )
