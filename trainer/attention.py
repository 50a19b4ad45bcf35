"""Softmax attention."""

from __future__ import annotations

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
) -> tf.Tensor:
    """Return softmax(query key^T) value; needs O(Q * S) memory a head.

    Args:
        query: [B, H, Q, D], compute dtype, already divided by sqrt(D).
        key: [B, H, S, D], as query.
        value: [B, H, S, E], as query.
        mask: bool, broadcast to [B, H, Q, S]; True where a query may see a key. A query that sees
            none gets the mean of all values.
        causal: query i sees keys 0..i only; needs Q = S.
    Returns: [B, H, Q, E] in query's dtype; softmax statistics are float32.
    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """
    scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
    if causal:
        length = tf.shape(scores)[-1]
        seen = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
        mask = seen if mask is None else tf.logical_and(mask, seen)
    if mask is not None:
        scores = tf.where(mask, scores, tf.constant(MASKED_SCORE, tf.float32))
    return tf.matmul(tf.cast(tf.nn.softmax(scores), value.dtype), value)
