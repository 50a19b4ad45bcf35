"""Moments in host memory: where they are, and that they are the same moments.

That ten steps with offload (forced on a CPU) are those without, alone and with each kind of
sharding, is in test_shard.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer import offload
from trainer.errors import SettingError
from trainer.optimizer import AdamW
from trainer.settings import TrainingSettings


def test_without_a_gpu_there_is_nothing_to_gain() -> None:
    with pytest.raises(SettingError, match=r"training.offload: there is nothing to gain"):
        offload.check("cpu", has_gpu=False)
    offload.check("cpu", has_gpu=True)
    offload.check("none", has_gpu=False)


def test_ten_updates_on_the_host_are_those_of_the_fused_kernel() -> None:
    random = np.random.default_rng(0)
    shapes = [(7, 5), (5,), ()]
    start = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    settings = TrainingSettings(learning_rate=0.05, weight_decay=0.1, schedule="linear")
    found = []
    for place in ("none", "cpu"):
        weights = [tf.Variable(one) for one in start]
        optimizer = AdamW(weights, settings, total_steps=10, device=offload.place(place))
        apply = tf.function(optimizer.apply, autograph=False)
        random = np.random.default_rng(1)
        for _ in range(10):
            apply([tf.constant(random.normal(size=one), tf.float32) for one in shapes])
        assert int(optimizer.updates) == 10
        found.append([*weights, *optimizer.first, *optimizer.second])
    for one, other in zip(*found, strict=True):
        # the same operations in the same order; a fused multiply-add may round once less
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-7, atol=1e-8)


def test_moments_are_made_on_the_host() -> None:
    optimizer = AdamW(
        [tf.Variable([1.0])], TrainingSettings(), total_steps=1, device=offload.place("cpu")
    )
    assert "CPU:0" in optimizer.first[0].device
