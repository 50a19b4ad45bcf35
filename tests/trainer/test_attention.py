"""Attention against a NumPy loop."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.attention import attention


def by_loop(query, key, value, allowed) -> np.ndarray:
    result = np.zeros((*query.shape[:3], value.shape[3]))
    for b, h, q in np.ndindex(query.shape[:3]):
        scores = np.array([query[b, h, q] @ one for one in key[b, h]])
        weights = np.where(allowed[q], np.exp(scores - scores.max()), 0)
        result[b, h, q] = weights / weights.sum() @ value[b, h]
    return result


@settings(max_examples=12, deadline=None)
@given(sizes=st.tuples(*[st.integers(1, 5)] * 5), causal=st.booleans(), seed=st.integers(0, 99))
def test_attention_is_the_softmax_of_the_scores(sizes, causal, seed) -> None:
    rows, heads, queries, keys, depth = sizes
    if causal:
        queries = keys
    random = np.random.default_rng(seed)
    query = random.normal(size=(rows, heads, queries, depth))
    key, value = random.normal(size=(2, rows, heads, keys, depth))
    allowed = random.uniform(size=(queries, keys)) < 0.7
    allowed[:, 0] = True
    seen = allowed & np.tri(queries, keys, dtype=bool) if causal else allowed
    tensors = [tf.constant(one, tf.float32) for one in (query, key, value)]
    found = attention(*tensors, mask=tf.constant(allowed), causal=causal)
    # 1e-5: sums of a few float32 numbers of size 1.
    np.testing.assert_allclose(found, by_loop(query, key, value, seen), atol=1e-5)


def test_a_query_that_may_see_nothing_gets_the_mean() -> None:
    value = tf.constant([[[[1.0], [3.0]]]])
    found = attention(tf.ones([1, 1, 1, 1]), value, value, mask=tf.zeros([1, 2], tf.bool))
    np.testing.assert_allclose(found, [[[[2.0]]]])


def test_softmax_statistics_are_float32() -> None:
    # 4,096 equal scores: a float16 sum of their exponentials would stop growing at 2,048.
    one = tf.ones([1, 1, 4096, 1], tf.float16)
    found = attention(one[:, :, :1], one, one)
    assert found.dtype == tf.float16
    # 1/4096 is a power of 2; the float16 sum over the values may lose 2^-10 of it.
    np.testing.assert_allclose(found, [[[[1.0]]]], rtol=2e-3)
