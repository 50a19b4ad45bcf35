"""Recomputed gradients are plain gradients, for less memory."""

from __future__ import annotations

import measured
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.blocks import dropout
from trainer.recompute import recompute

MEASURE = """
import json, tensorflow as tf
from trainer.models.blocks import Block
from trainer.precision import policy
from trainer.recompute import recompute
from trainer.settings import ModelSettings

settings = ModelSettings(layers=8, width=32, heads=4, dropout=0.1)
blocks = [Block(settings, name=f"b{i}", seed=i, dtype=policy("float32")) for i in range(8)]
variables = [one for block in blocks for one in block.trainable_variables]

def peak(is_recomputed):
    @tf.function
    def gradients(tokens):
        with tf.GradientTape() as tape:
            for number, block in enumerate(blocks):
                run = lambda x, seed, block=block: block(x, seed=seed, training=True)
                run = recompute(run) if is_recomputed else run
                tokens = run(tokens, tf.constant([7, number]))
            loss = tf.reduce_sum(tokens)
        return tape.gradient(loss, [one.value for one in variables])
    tokens = tf.ones([256, 16, 32])
    gradients(tokens)
    tf.config.experimental.reset_memory_stats("CPU:0")
    gradients(tokens)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"]

print(json.dumps({"plain": peak(False), "recomputed": peak(True)}))
"""


def gradients(function, x: tf.Tensor, weight: tf.Variable, seed: tf.Tensor) -> list[np.ndarray]:
    @tf.function
    def run(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x, seed)
            loss = tf.reduce_sum(tf.square(result))
        return [result, *tape.gradient(loss, [x, weight])]

    return [one.numpy() for one in run(x)]


def test_recomputed_gradients_are_plain_ones_with_dropout_on() -> None:
    weight = tf.Variable(tf.random.stateless_normal([5, 4], [1, 2]))
    x = tf.random.stateless_normal([6, 5], [3, 4])

    def block(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return dropout(tf.matmul(x, weight), seed, rate=0.5)

    seed = tf.constant([8, 9])
    plain = gradients(block, x, weight, seed)
    replayed = gradients(recompute(block), x, weight, seed)
    for one, other in zip(plain, replayed, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


def test_dropped_units_and_only_they_have_no_gradient() -> None:
    weight = tf.Variable(tf.eye(64))

    def block(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return dropout(tf.matmul(x, weight), seed, rate=0.5)

    result, gradient, _ = gradients(recompute(block), tf.ones([1, 64]), weight, tf.constant([1, 2]))
    np.testing.assert_array_equal(result == 0, gradient == 0)
    assert 0 < np.count_nonzero(result) < 64


@pytest.mark.slow
def test_recomputation_saves_measured_memory() -> None:
    peak = measured.in_child(MEASURE)
    # Eight blocks: the activations of one, and the inputs of each, instead of those of eight.
    assert peak["recomputed"] < 0.4 * peak["plain"], peak
