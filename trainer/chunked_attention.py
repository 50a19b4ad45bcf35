"""Softmax attention a block of queries at a time: memory O(S * block), forward and backward.

A block's scores with all keys are made, used and thrown away; the backward pass makes them again.
Nothing but queries, keys and values is kept for it. Each row of scores is whole, so softmax needs
no running maximum, and the sums over keys are those of plain attention.

Source: Rabe and Staats 2021, arXiv:2112.05682 (blocks of queries); backward as in Dao et al. 2022,
arXiv:2205.14135, without blocks of keys: they help where a small fast memory must hold a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.attention import MASKED_SCORE, drop_scale, sees_any
from trainer.order import fresh_zeros, in_program_order

SCORES = 2**20
"""Scores that a block makes, over all heads: 4 MiB in float32, what a core's cache can hold."""
PANELS = 8
"""Parts of a causal attention, each over no more keys than its last query sees."""


def pick_block(queries: int, keys: int, heads: int) -> int:
    """Return how many queries to take at once.

    Args:
        queries: Q.
        keys: S.
        heads: B H.
    """
    block = SCORES // max(keys * heads, 1) // 16 * 16
    return min(max(block, 16), queries)


def chunked_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    block: int | None = None,
    mask: tf.Tensor | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return what `trainer.attention.attention` returns, with memory O(S * block) a head.

    Args:
        query: [B, H, Q, D], compute dtype, already divided by sqrt(D); Q static.
        key: [B, H, S, D], as query; S static.
        value: [B, H, S, E], as query.
        block: queries at once; None: `pick_block`.
        mask: bool, broadcast to [B, H, Q, S]; True where a query may see a key.
        causal: query i sees keys 0..i only; needs Q = S.
        dropout_rate: share of the weights of values that is dropped.
        seed: int32 [2], of dropout: the same mask as in plain attention, whatever the block.
    Returns: [B, H, Q, E] in query's dtype; softmax statistics are float32.

    Raises:
        ValueError: when block is below 1.
    """
    queries, keys = query.shape[2], key.shape[2]
    if block is None:
        block = pick_block(queries, keys, (query.shape[0] or 1) * query.shape[1])
    if block < 1:
        raise ValueError(f"block: must be at least 1; it holds {block}")
    # A row that sees no key is the mean of all values, so with a mask no key is left out.
    panels = _panels(queries, block) if causal and mask is None else [(0, queries)]
    plan = _Plan(block, causal, dropout_rate, panels)

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        parts: list[tf.Tensor] = []
        for start, stop in panels:
            seen = stop if causal and mask is None else keys
            # One after another: TensorFlow would else run them at once, and hold all their blocks.
            with tf.control_dependencies(parts[-1:]):
                parts.append(_forward(plan, start, query[:, :, start:stop], key[:, :, :seen],
                                      value[:, :, :seen], mask, seed))  # fmt: skip
        out = parts[0] if len(parts) == 1 else tf.concat(parts, axis=2)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            return _backward(plan, query, key, value, mask, seed, out, upstream)

        return out, gradient

    return attend(query, key, value)


@dataclass(frozen=True)
class _Plan:
    """How the queries are cut: blocks of `block` within panels (start, stop)."""

    block: int
    causal: bool
    dropout_rate: float
    panels: Sequence[tuple[int, int]]


def _panels(queries: int, block: int) -> list[tuple[int, int]]:
    """Cut the queries into at most `PANELS` parts of whole blocks."""
    size = -(-queries // (PANELS * block)) * block
    return [(start, min(start + size, queries)) for start in range(0, queries, size)]


def _whole_blocks(plan: _Plan, x: tf.Tensor) -> tf.Tensor:
    """Return [B, H, blocks * block, D] of [B, H, Q, D], filled up with zeros."""
    missing = -x.shape[2] % plan.block
    return tf.pad(x, [[0, 0], [0, 0], [0, missing], [0, 0]]) if missing else x


def _block(plan: _Plan, x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Return block `index` of the queries, [B, H, block, D]."""
    rows = x.shape[0] or tf.shape(x)[0]
    return tf.slice(x, [0, 0, index * plan.block, 0], [rows, x.shape[1], plan.block, x.shape[3]])


def _zeros(plan: _Plan, like: tf.Tensor, depth: int, dtype: tf.DType) -> tf.Tensor:
    """Return zeros [blocks, B, H, block, depth]."""
    count, rows = like.shape[2] // plan.block, like.shape[0] or tf.shape(like)[0]
    zeros = fresh_zeros(tf.stack([count, rows, like.shape[1], plan.block, depth]), dtype)
    return tf.ensure_shape(zeros, [count, like.shape[0], like.shape[1], plan.block, depth])


def _joined(x: tf.Tensor, queries: int) -> tf.Tensor:
    """Return [B, H, Q, D] of [blocks, B, H, block, D]."""
    shape = tf.shape(x)
    x = tf.transpose(x, [1, 2, 0, 3, 4])
    x = tf.reshape(x, [shape[1], x.shape[1], x.shape[2] * x.shape[3], x.shape[4]])
    return x[:, :, :queries]


def _seen(plan: _Plan, mask: tf.Tensor | None, first: tf.Tensor, keys: int) -> tf.Tensor | None:
    """Return which keys a block's queries see, broadcast to [B, H, block, S]; None: all.

    Args:
        plan: block and causal.
        mask: of all queries.
        first: number of the block's first query.
        keys: S.
    """
    seen = _mask_of(plan, mask, first)
    if plan.causal:
        rows = first + tf.range(plan.block)
        before = tf.range(keys)[None] <= rows[:, None]
        seen = before if seen is None else tf.logical_and(before, seen)
    return seen


def _weights(query: tf.Tensor, key: tf.Tensor, seen: tf.Tensor | None) -> tf.Tensor:
    """Return softmax(query key^T), [B, H, block, S], float32 (float64 of float64).

    Args:
        query: [B, H, block, D].
        key: [B, H, S, D].
        seen: broadcast to [B, H, block, S]; None: all.
    """
    scores = tf.matmul(query, key, transpose_b=True)
    scores = scores if scores.dtype == tf.float64 else tf.cast(scores, tf.float32)
    if seen is not None:
        scores = tf.where(seen, scores, tf.constant(MASKED_SCORE, scores.dtype))
    return tf.nn.softmax(scores)


def _mask_of(plan: _Plan, mask: tf.Tensor | None, first: tf.Tensor) -> tf.Tensor | None:
    """Return the part of a mask that a block of queries needs."""
    if mask is None or mask.shape.rank is None or mask.shape.rank < 2 or mask.shape[-2] == 1:
        return mask
    missing = -mask.shape[-2] % plan.block
    padded = tf.pad(mask, [[0, 0]] * (mask.shape.rank - 2) + [[0, missing], [0, 0]])
    return tf.gather(padded, first + tf.range(plan.block), axis=mask.shape.rank - 2)


def _dropped(plan: _Plan, shape: Any, seed: Any, first: tf.Tensor, dtype: Any) -> tf.Tensor | None:
    if not plan.dropout_rate or seed is None:
        return None
    return drop_scale(shape, seed, rate=plan.dropout_rate, first=first, dtype=dtype)


def _forward(
    plan: _Plan,
    start: int,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None,
    seed: Any,
) -> tf.Tensor:
    """Return the attention of the queries of one panel, [B, H, Q, E]."""
    whole = _whole_blocks(plan, query)
    start_out = _zeros(plan, whole, value.shape[3], value.dtype)

    def one(index: tf.Tensor, out: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = start + index * plan.block
        asked = _block(plan, whole, index)
        weights = _weights(asked, key, _seen(plan, mask, first, key.shape[2]))
        scale = _dropped(plan, tf.shape(weights), seed, first, weights.dtype)
        weights = weights if scale is None else weights * scale
        mixed = tf.matmul(tf.cast(weights, value.dtype), value)
        return index + 1, tf.tensor_scatter_nd_update(out, [[index]], mixed[None])

    return _joined(_loop(start_out.shape[0], one, start_out), query.shape[2])


def _backward(
    plan: _Plan,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None,
    seed: Any,
    out: tf.Tensor,
    upstream: tf.Tensor,
) -> list[tf.Tensor]:
    """Return the gradients of query, key and value."""
    wide = tf.float64 if query.dtype == tf.float64 else tf.float32
    # What softmax's gradient takes from each row: the sum over keys of gradient times weight.
    inner = tf.reduce_sum(tf.cast(out, wide) * tf.cast(upstream, wide), axis=-1, keepdims=True)
    parts: list[tf.Tensor] = []
    sums = [tf.ensure_shape(fresh_zeros(tf.shape(one), wide), one.shape) for one in (key, value)]
    # From the last panel, which sees all keys: the others go on with the first part of its sums.
    # Zeros of its own for each panel would be folded into constants, which stay.
    for start, stop in reversed(plan.panels):
        seen = stop if plan.causal and mask is None else key.shape[2]
        with tf.control_dependencies(parts[-1:]):
            part, *found = _panel_backward(
                plan, start, query[:, :, start:stop], key[:, :, :seen], value[:, :, :seen],
                mask, seed, inner[:, :, start:stop], upstream[:, :, start:stop],
                [one[:, :, :seen] for one in sums],
            )  # fmt: skip
        parts.append(part)
        sums = [
            tf.concat([one, before[:, :, seen:]], axis=2) if seen < key.shape[2] else one
            for one, before in zip(found, sums, strict=True)
        ]
    to_query = parts[0] if len(parts) == 1 else tf.concat(parts[::-1], axis=2)
    return [to_query, tf.cast(sums[0], key.dtype), tf.cast(sums[1], value.dtype)]


def _panel_backward(
    plan: _Plan,
    start: int,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None,
    seed: Any,
    inner: tf.Tensor,
    upstream: tf.Tensor,
    sums: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradient of the queries of one panel, and what it adds to those of the keys."""
    wide = tf.float64 if query.dtype == tf.float64 else tf.float32
    whole, coming, taken = (_whole_blocks(plan, one) for one in (query, upstream, inner))

    def one(index: tf.Tensor, to_query: tf.Tensor, to_key: tf.Tensor, to_value: tf.Tensor) -> Any:
        first = start + index * plan.block
        asked, came, less = (_block(plan, one, index) for one in (whole, coming, taken))
        seen = _seen(plan, mask, first, key.shape[2])
        weights = _weights(asked, key, seen)
        scale = _dropped(plan, tf.shape(weights), seed, first, weights.dtype)
        used = tf.cast(weights if scale is None else weights * scale, value.dtype)
        to_value += tf.cast(tf.matmul(used, came, transpose_a=True), wide)
        if mask is not None:
            is_moved = sees_any(seen, wide)
            came, less = came * tf.cast(is_moved, came.dtype), less * is_moved
        to_weights = tf.cast(tf.matmul(came, value, transpose_b=True), wide)
        to_weights = to_weights if scale is None else to_weights * scale
        to_scores = tf.cast((to_weights - less) * weights, query.dtype)
        to_key += tf.cast(tf.matmul(to_scores, asked, transpose_a=True), wide)
        mixed = tf.matmul(to_scores, key)
        to_query = tf.tensor_scatter_nd_update(to_query, [[index]], mixed[None])
        return index + 1, to_query, to_key, to_value

    start_out = _zeros(plan, whole, query.shape[3], query.dtype)
    to_query, to_key, to_value = _loop(start_out.shape[0], one, start_out, *sums)
    return _joined(to_query, query.shape[2]), to_key, to_value


def _loop(count: int, body: Any, *carried: tf.Tensor) -> Any:
    """Run body(index, *carried) for each block, one at a time; return what was carried."""
    _, *found = tf.while_loop(
        lambda index, *_: index < count, in_program_order(body), (tf.constant(0), *carried),
        parallel_iterations=1,
    )  # fmt: skip
    return found[0] if len(found) == 1 else found
