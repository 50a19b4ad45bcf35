"""Softmax attention."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

MASKED_SCORE = -1e30
"""Score of a pair that may not attend: finite, so that a row with no allowed key is no NaN."""


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return softmax(query key^T) value; needs O(Q * S) memory a head.

    Its gradient is written out: the softmax is the only thing of that size which is kept for it.

    Args:
        query: [B, H, Q, D], compute dtype, already divided by sqrt(D).
        key: [B, H, S, D], as query.
        value: [B, H, S, E], as query.
        mask: bool, broadcast to [B, H, Q, S]; True where a query may see a key. A query that sees
            none gets the mean of all values.
        causal: query i sees keys 0..i only; needs Q = S.
        dropout_rate: share of the weights of values that is dropped, 0 to below 1.
        seed: int32 [2], of dropout; None: nothing is dropped.
    Returns: [B, H, Q, E] in query's dtype; softmax statistics are float32.
    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        seen = tf.logical_and(mask, _triangle(key)) if causal and mask is not None else mask
        weights = _weights(query, key, seen=seen, causal=causal)
        scale = None
        if dropout_rate and seed is not None:
            scale = drop_scale(tf.shape(weights), seed, rate=dropout_rate, dtype=weights.dtype)
        # Made here, so that it is kept for the gradient, and not what each query sees.
        is_moved = None if seen is None else sees_any(seen, value.dtype)
        used = tf.cast(weights if scale is None else weights * scale, value.dtype)
        mixed = tf.matmul(used, value)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            moving = upstream if is_moved is None else upstream * is_moved
            to_weights = _wide(tf.matmul(moving, value, transpose_b=True))
            if scale is not None:
                to_weights *= scale
            # Of a row, the sum of weights times their gradients: from the result, which is smaller.
            inner = tf.reduce_sum(_wide(mixed) * _wide(moving), axis=-1, keepdims=True)
            to_scores = tf.cast(weights * (to_weights - inner), query.dtype)
            return [
                tf.matmul(to_scores, key),
                tf.matmul(to_scores, query, transpose_a=True),
                tf.matmul(used, upstream, transpose_a=True),
            ]

        return mixed, gradient

    return attend(query, key, value)


def _weights(
    query: tf.Tensor, key: tf.Tensor, *, seen: tf.Tensor | None, causal: bool
) -> tf.Tensor:
    """Return softmax(query key^T), float32 (float64 of float64).

    Args:
        query: [B, H, Q, D].
        key: [B, H, S, D].
        seen: which keys a query sees, broadcast to [B, H, Q, S]; None: all, or what `causal` says.
        causal: query i sees keys 0..i only; in `seen` that is so already.
    """
    scores = _wide(tf.matmul(query, key, transpose_b=True))
    hidden = tf.constant(MASKED_SCORE, scores.dtype)
    if seen is not None:
        return tf.nn.softmax(tf.where(seen, scores, hidden))
    if causal:
        # Added: on CPUs twice as fast as a choice by a mask that is broadcast.
        scores += tf.where(_triangle(key), tf.constant(0, scores.dtype), hidden)
    return tf.nn.softmax(scores)


def _triangle(key: tf.Tensor) -> tf.Tensor:
    """Return which keys each query sees that sees none after itself, bool [S, S]."""
    length = tf.shape(key)[2]
    return tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)


def sees_any(seen: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return 1 for a query that sees a key, and 0 for one that sees none: [..., Q, 1].

    What such a query gets is the mean of all values, whatever its scores: no gradient goes through
    them.
    """
    return tf.cast(tf.reduce_any(seen, axis=-1, keepdims=True), dtype)


def _wide(x: tf.Tensor) -> tf.Tensor:
    """Return x in float32, or in float64 if it is that."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def drop_scale(
    shape: tf.Tensor, seed: tf.Tensor, *, rate: float, first: Any = 0, dtype: Any = tf.float32
) -> tf.Tensor:
    """Return 0 where a weight is dropped and 1 / (1 - rate) elsewhere.

    What is dropped depends on the seed, the head and the pair (query, key) alone, so that a block
    of queries has the mask that all of them at once would have. A counter through the finaliser
    of MurmurHash3 (Appleby 2011), which spreads each bit over all others.

    Args:
        shape: int32 [4]: B, H, queries, keys.
        seed: int32 [2].
        rate: 0 to below 1.
        first: number of the first query.
        dtype: of the result.
    """
    mixed = _spread(tf.bitcast(seed, tf.uint32))
    heads = tf.range(shape[0] * shape[1])
    rows = first + tf.range(shape[2])
    of_head = _spread(tf.cast(heads, tf.uint32) * tf.constant(0x9E3779B9, tf.uint32) + mixed[0])
    of_row = _spread(
        tf.cast(rows, tf.uint32)[None] * tf.constant(0x85EBCA6B, tf.uint32)
        + of_head[:, None] + mixed[1]
    )  # fmt: skip
    keys = tf.cast(tf.range(shape[3]), tf.uint32) * tf.constant(0xC2B2AE35, tf.uint32)
    drawn = _spread(of_row[:, :, None] + keys)
    is_kept = drawn >= tf.constant(int(rate * 2**32), tf.uint32)
    return tf.reshape(tf.cast(is_kept, dtype) * tf.cast(1 / (1 - rate), dtype), shape)


def _spread(x: tf.Tensor) -> tf.Tensor:
    """Return 32-bit hashes of 32-bit numbers."""

    def shifted(x: tf.Tensor, places: int) -> tf.Tensor:
        right = tf.bitwise.right_shift(x, tf.constant(places, tf.uint32))
        return tf.bitwise.bitwise_xor(x, right)

    x = shifted(x, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    x = shifted(x, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    return shifted(x, 16)
