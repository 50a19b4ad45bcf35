"""AdamW, schedules and clipping, against hand sums and a NumPy loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from trainer.optimizer import AdamW, clip, global_norm, learning_rate
from trainer.settings import TrainingSettings


def _settings(**keys: object) -> TrainingSettings:
    return TrainingSettings(**{"schedule": "constant", "clip_norm": 0.0, **keys})


def _numpy_adamw(
    weight: np.ndarray, gradients: list[np.ndarray], *, rate: float, decay: float
) -> np.ndarray:
    """Algorithm 2 of Loshchilov and Hutter 2019 in float64."""
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for update, gradient in enumerate(gradients, 1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step = (first / (1 - 0.9**update)) / (np.sqrt(second / (1 - 0.999**update)) + 1e-8)
        weight = weight - rate * decay * weight - rate * step
    return weight


def test_ten_updates_equal_a_numpy_loop() -> None:
    random = np.random.default_rng(3)
    start, gradients = random.normal(size=(3, 4)), random.normal(size=(10, 3, 4))
    weight = tf.Variable(start.astype(np.float32))
    optimizer = AdamW([weight], _settings(learning_rate=0.05, weight_decay=0.1), total_steps=10)
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient, tf.float32)])
    right = _numpy_adamw(start, list(gradients), rate=0.05, decay=0.1)
    # float32 rounding over ten updates
    np.testing.assert_allclose(weight.numpy(), right, rtol=1e-5, atol=1e-6)
    assert int(optimizer.updates) == 10


def test_zero_gradients_leave_decay_alone() -> None:
    # cases/training.md, training-6: (1 - 0.1 * 0.1)^2 after two updates
    weight = tf.Variable([[1.0]])
    optimizer = AdamW([weight], _settings(learning_rate=0.1, weight_decay=0.1), total_steps=2)
    for _ in range(2):
        optimizer.apply([tf.zeros([1, 1])])
    assert weight.numpy().item() == pytest.approx(0.9801, rel=1e-6)


def test_only_matrices_decay() -> None:
    vector, scalar = tf.Variable([1.0]), tf.Variable(1.0)
    optimizer = AdamW(
        [vector, scalar], _settings(learning_rate=0.1, weight_decay=0.1), total_steps=1
    )
    optimizer.apply([tf.zeros([1]), tf.zeros([])])
    assert (vector.numpy().item(), scalar.numpy().item()) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("schedule", "warmup", "total", "right"),
    [
        ("constant", 0, 4, [1.0, 1.0, 1.0, 1.0]),
        # training-6: a linear schedule over 2 updates counts updates
        ("linear", 0, 2, [1.0, 0.5, 0.0]),
        ("linear", 2, 4, [0.5, 1.0, 1.0, 0.5]),
        ("cosine", 0, 4, [0.5 * (1 + math.cos(math.pi * s / 4)) for s in range(5)]),
        ("cosine", 10, 5, [0.1, 0.2, 0.3]),
    ],
)
def test_the_rate_of_each_update_is_the_schedule_s(
    schedule: str, warmup: int, total: int, right: list[float]
) -> None:
    settings = _settings(schedule=schedule, warmup_steps=warmup, learning_rate=0.2)
    rates = [
        float(learning_rate(tf.constant(one), settings=settings, total_steps=total))
        for one in range(len(right))
    ]
    np.testing.assert_allclose(rates, 0.2 * np.asarray(right), rtol=1e-6, atol=1e-8)


def test_the_schedule_moves_with_applied_updates() -> None:
    weight = tf.Variable([[1.0]])
    optimizer = AdamW([weight], _settings(schedule="linear", learning_rate=0.1), total_steps=2)
    rates = [float(optimizer.rate())]
    optimizer.apply([tf.ones([1, 1])])
    rates.append(float(optimizer.rate()))
    assert rates == pytest.approx([0.1, 0.05])


def test_a_gradient_of_3_clipped_to_1_moves_a_weight_by_the_rate() -> None:
    # training-6: micro gradients +10 and -4 have the mean +3; clipped once to 1, so a step of -0.1
    gradient = [tf.constant([[3.0]])]
    clipped = clip(gradient, global_norm(gradient), clip_norm=1.0)
    assert clipped[0].numpy().item() == pytest.approx(1.0)
    weight = tf.Variable([[0.0]])
    optimizer = AdamW([weight], _settings(learning_rate=0.1, weight_decay=0.0), total_steps=1)
    optimizer.apply(clipped)
    assert weight.numpy().item() == pytest.approx(-0.1, rel=1e-5)


def test_clipping_is_by_the_norm_over_all_gradients() -> None:
    gradients = [tf.constant([3.0]), tf.constant([[4.0]])]
    norm = global_norm(gradients)
    assert float(norm) == pytest.approx(5.0)
    clipped = clip(gradients, norm, clip_norm=1.0)
    assert [one.numpy().item() for one in clipped] == pytest.approx([0.6, 0.8])
    unclipped = clip(gradients, norm, clip_norm=6.0)
    assert [one.numpy().item() for one in unclipped] == [3.0, 4.0]
