"""Blocks: the same numbers by shorter ways, and what must not depend on the precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.models.blocks import Block, Dense, LayerNorm, dropout, fold_in
from trainer.order import constants
from trainer.precision import POLICIES, policy
from trainer.settings import ModelSettings

TINY = ModelSettings(layers=2, width=8, heads=2, dropout=0.25)


def tokens(rows: int = 3, count: int = 5, kind: str = "float32") -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal([rows, count, 8], [1, 2]), kind)


def test_the_first_token_alone_is_the_first_of_all_and_has_its_gradients() -> None:
    block = Block(TINY, name="block", seed=3, dtype=policy("float32"))
    for place, weight in enumerate(block.weights):
        # Biases start at 0, where forgetting one would not show.
        noise = tf.random.stateless_normal(weight.shape, [place, 7], stddev=0.3)
        weight.assign(weight + noise)
    results, gradients = [], []
    for first_only in (False, True):
        x = tokens()
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = block(x, first_only=first_only)[:, :1]
            loss = tf.reduce_sum(tf.square(result))
        results.append(result)
        gradients.append(tape.gradient(loss, [x, *(one.value for one in block.weights)]))
    assert results[1].shape == (3, 1, 8)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
    for every, first in zip(*gradients, strict=True):
        # Sums of some tens of float32 numbers of size 10.
        np.testing.assert_allclose(first, every, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POLICIES)
def test_a_block_computes_in_its_policys_dtype(name: str) -> None:
    kind = policy(name).compute_dtype
    block = Block(TINY, name="block", seed=3, dtype=policy(name))
    exact = Block(TINY, name="block", seed=3, dtype=policy("float32"))(tokens())
    found = block(tokens(kind=kind))
    assert found.dtype == kind
    assert {weight.dtype for weight in block.weights} == {"float32"}
    # A few roundings of bfloat16's 2^-8, on values of size 3.
    np.testing.assert_allclose(tf.cast(found, tf.float32), exact, atol=0.1)


def test_dropout_depends_on_its_seed_alone_and_keeps_the_mean() -> None:
    ones, seed = tf.ones([100, 100]), tf.constant([4, 5])
    found = dropout(ones, seed, rate=0.25).numpy()
    np.testing.assert_array_equal(dropout(ones, seed, rate=0.25), found)
    assert np.any(dropout(ones, fold_in(seed, 1), rate=0.25).numpy() != found)
    # 10,000 draws: a standard error of 0.0058 of the mean; five of them.
    assert abs(found.mean() - 1) < 0.03
    assert set(np.unique(found)) == {0.0, np.float32(1 / 0.75)}


def test_dropout_drops_the_same_places_in_16_bits() -> None:
    seed = tf.constant([4, 5])
    exact = dropout(tf.ones([1000]), seed, rate=0.1).numpy()
    for kind in (tf.float16, tf.bfloat16):
        found = dropout(tf.ones([1000], kind), seed, rate=0.1)
        np.testing.assert_array_equal(found.numpy() == 0, exact == 0)


def test_a_block_without_training_drops_nothing() -> None:
    block = Block(TINY, name="block", seed=3, dtype=policy("float32"))
    seed = tf.constant([1, 2])
    np.testing.assert_array_equal(block(tokens(), seed=seed), block(tokens()))
    assert np.any(block(tokens(), seed=seed, training=True).numpy() != block(tokens()).numpy())


def test_layer_norm_takes_its_moments_in_float32() -> None:
    norm = LayerNorm(8, name="norm", dtype=policy("mixed_float16"))
    # The squares of these pass float16's 65,504.
    x = np.array([[-900, 900, -300, 300, 100, -100, 0, 500]], np.float16)
    wide = x.astype(np.float64)
    right = (wide - wide.mean()) / wide.std()
    found = norm(tf.constant(x))
    assert found.dtype == tf.float16
    np.testing.assert_allclose(found, right, rtol=2e-3, atol=1e-3)


def test_parts_of_a_dense_layer_are_columns_of_the_whole() -> None:
    dense = Dense(8, 6, name="dense", seed=1, dtype=policy("float32"))
    whole = dense(tokens())
    np.testing.assert_allclose(dense.part(tokens(), 2, 5), whole[..., 2:5], rtol=1e-6)
    by_hand = tokens().numpy() @ dense.kernel.numpy() + dense.bias.numpy()
    np.testing.assert_allclose(whole, by_hand, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_no_constant_of_the_size_of_its_input() -> None:
    # The graph optimizer folds zeros of a known shape into a tensor that stays in memory.
    graph = (
        tf
        .function(lambda x, seed: dropout(x, seed, rate=0.5))
        .get_concrete_function(tf.TensorSpec([100, 10], tf.float32), tf.TensorSpec([2], tf.int32))
        .graph
    )
    kept = constants(graph.get_operations())
    assert kept
    assert all(one.outputs[0].shape.num_elements() < 1000 for one in kept)
