"""Attention a block of queries at a time: that of all at once, for less memory."""

from __future__ import annotations

from typing import Any

import measured
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.attention import attention, drop_scale
from trainer.chunked_attention import chunked_attention, pick_block

SEED = tf.constant([5, 6])

MEASURE = """
import json, tensorflow as tf
from trainer.attention import attention
from trainer.chunked_attention import chunked_attention

def peak(attend, tokens):
    @tf.function
    def gradients(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            loss = tf.reduce_sum(tf.square(attend(query, key, value, causal=True)))
        return tape.gradient(loss, [query, key, value])
    given = [tf.random.stateless_normal([1, 2, tokens, 16], [1, one]) for one in range(3)]
    gradients(*given)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    gradients(*given)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before

print(json.dumps({"plain": peak(attention, 2048), "chunked": peak(chunked_attention, 2048),
                  "twice": peak(chunked_attention, 4096)}))
"""


def drawn(sizes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    rows, heads, queries, keys, depth = sizes
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(rows, heads, queries, depth)) / depth**0.5,
        random.normal(size=(rows, heads, keys, depth)),
        random.normal(size=(rows, heads, keys, depth + 1)),
    ]


def by_hand(tensors: list[tf.Tensor], seen: Any, scale: Any) -> tf.Tensor:
    """Attention in float64, all at once, with the tape's own gradients."""
    query, key, value = tensors
    scores = tf.einsum("bhqd,bhkd->bhqk", query, key)
    scores = tf.where(seen, scores, tf.constant(-1e30, tf.float64))
    weights = tf.exp(scores - tf.reduce_max(scores, axis=-1, keepdims=True))
    weights /= tf.reduce_sum(weights, axis=-1, keepdims=True)
    return tf.einsum("bhqk,bhke->bhqe", weights * scale, value)


def with_gradients(attend: Any, arrays: list[np.ndarray], dtype: Any) -> list[np.ndarray]:
    tensors = [tf.constant(one, dtype) for one in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        out = attend(tensors)
        # Weighed, so that no two entries of the result count alike.
        weight = tf.cast(tf.reshape(tf.range(1, tf.size(out) + 1), tf.shape(out)), dtype)
        loss = tf.reduce_sum(out * weight / tf.cast(tf.size(out), dtype))
    return [one.numpy() for one in (out, *tape.gradient(loss, tensors))]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(1, 9)] * 2, st.integers(1, 5)),
    block=st.integers(1, 5), causal=st.booleans(), masks=st.sampled_from(["none", "keys", "pairs"]),
    rate=st.sampled_from([0.0, 0.4]), seed=st.integers(0, 99),
)  # fmt: skip
def test_values_and_gradients_are_those_of_all_queries_at_once(
    sizes: tuple[int, ...], block: int, causal: bool, masks: str, rate: float, seed: int
) -> None:
    rows, heads, queries, keys, depth = sizes
    if causal:
        queries = keys
    arrays = drawn((rows, heads, queries, keys, depth), seed)
    random = np.random.default_rng(seed)
    seen, mask = np.ones((rows, 1, queries, keys), bool), None
    if masks == "keys":  # padding: from some length on, nothing is seen
        lengths = random.integers(1, keys + 1, rows)
        mask = np.arange(keys) < lengths[:, None, None, None]
    if masks == "pairs":
        mask = random.uniform(size=(rows, 1, queries, keys)) < 0.6
    seen = seen if mask is None else seen & mask
    seen = seen & np.tri(keys, dtype=bool) if causal else seen
    scale = 1.0
    if rate:
        shape = tf.constant([rows, heads, queries, keys])
        scale = drop_scale(shape, SEED, rate=rate, dtype=tf.float64)
    right = with_gradients(lambda one: by_hand(one, seen, scale), arrays, tf.float64)
    found = with_gradients(
        lambda one: chunked_attention(
            *one, block=block, causal=causal, dropout_rate=rate, seed=SEED,
            mask=None if mask is None else tf.constant(mask),
        ),
        arrays, tf.float32,
    )  # fmt: skip
    for one, other in zip(found, right, strict=True):
        # float32: sums of a few numbers of size 1 to 10.
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


def test_16_bits_keep_the_softmax_in_float32() -> None:
    # 4,096 equal scores: a float16 sum of their exponentials would stop growing at 2,048.
    one = tf.ones([1, 1, 4096, 1], tf.float16)
    found = chunked_attention(one[:, :, :2], one, one, block=1)
    assert found.dtype == tf.float16
    np.testing.assert_allclose(found, np.ones((1, 1, 2, 1)), rtol=2e-3)


def test_a_block_holds_no_more_scores_than_was_said() -> None:
    assert pick_block(8192, 8192, 2) * 8192 * 2 <= 2**20
    assert pick_block(7, 7, 1) == 7
    assert pick_block(10**6, 10**6, 64) == 16


def test_a_block_of_none_is_refused() -> None:
    one = tf.ones([1, 1, 2, 1])
    with pytest.raises(ValueError, match="at least 1"):
        chunked_attention(one, one, one, block=0)


def test_plain_attention_drops_the_same_weights() -> None:
    arrays = drawn((2, 2, 7, 7, 3), 1)
    plain, chunked = (
        with_gradients(
            lambda one, attend=attend: attend(*one, causal=True, dropout_rate=0.3, seed=SEED),
            arrays, tf.float32,
        )
        for attend in (attention, chunked_attention)
    )  # fmt: skip
    for one, other in zip(chunked, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    peak = measured.in_child(MEASURE)
    # Of 2,048 queries a block of 256; scores, their gradient and a mask.
    assert peak["chunked"] < peak["plain"] / 5, peak
    assert peak["twice"] < 2.5 * peak["chunked"], peak
