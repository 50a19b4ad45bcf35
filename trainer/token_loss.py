"""The loss of a language model, whole or a chunk of tokens at a time.

Chunked, the logits of all tokens never exist at once: [T, V] float32 is often the largest single
tensor of a language model. The loss is a sum weighed by token, so the gradient of each chunk is
known, but for one factor, as soon as its logits are: it is taken in the forward pass, and nothing
is made twice.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.order import fresh_zeros, in_program_order

LOGITS = 2**20
"""Logits of a chunk: 4 MiB in float32."""
FILLS = 512
"""Tokens of a chunk at least: each one adds to the kernel's gradient, which is a pass over it."""


def pick_chunk(vocabulary: int) -> int:
    """Return how many tokens to take at once, for V logits each."""
    return max(FILLS, LOGITS // vocabulary // 64 * 64)


def plain_token_loss_sum(
    hidden: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> tf.Tensor:
    """Return the cross-entropy of tokens, weighed and summed.

    Args:
        hidden: [T, W], compute dtype.
        kernel: [W, V], as hidden.
        labels: int32 [T].
        weights: float32 [T].
    Returns: float32 scalar, nats.
    """
    logits = tf.cast(tf.matmul(hidden, kernel), tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_sum(losses * weights)


def token_loss_sum(
    hidden: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, chunk: int
) -> tf.Tensor:
    """Return what `plain_token_loss_sum` returns, with the logits of `chunk` tokens at once.

    Args:
        hidden: [T, W], compute dtype; T static.
        kernel: [W, V], as hidden.
        labels: int32 [T].
        weights: float32 [T].
        chunk: tokens at once.
    """

    @tf.custom_gradient
    def loss_sum(hidden: tf.Tensor, kernel: tf.Tensor) -> Any:
        loss, to_hidden, to_kernel = _with_gradients(hidden, kernel, labels, weights, chunk)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            # In float32, since the loss scale is in `upstream`.
            return [
                tf.cast(upstream * tf.cast(to_hidden, tf.float32), hidden.dtype),
                tf.cast(upstream * to_kernel, kernel.dtype),
            ]

        return loss, gradient

    return loss_sum(hidden, kernel)


def token_stats(
    hidden: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, chunk: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the weighed loss sum and the weighed number of likeliest tokens that are right.

    Args:
        hidden: [T, W], compute dtype.
        kernel: [W, V], as hidden.
        labels: int32 [T].
        weights: float32 [T].
        chunk: tokens at once.
    """

    def one(index: tf.Tensor, loss: tf.Tensor, right: tf.Tensor) -> Any:
        rows, label, weight = take(index)
        logits = tf.cast(tf.matmul(rows, kernel), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        hits = tf.cast(tf.argmax(logits, axis=1, output_type=tf.int32) == label, tf.float32)
        return (
            index + 1,
            loss + tf.reduce_sum(losses * weight),
            right + tf.reduce_sum(hits * weight),
        )

    take, steps, _ = _slices(hidden, labels, weights, chunk)
    _, loss, right = tf.while_loop(
        lambda index, *_: index < steps, in_program_order(one),
        (tf.constant(0), tf.constant(0.0), tf.constant(0.0)), parallel_iterations=1,
    )  # fmt: skip
    return loss, right


def _with_gradients(
    hidden: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, chunk: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the loss sum and its gradients: of hidden in its dtype, of the kernel in float32."""
    take, steps, size = _slices(hidden, labels, weights, chunk)

    def one(index: tf.Tensor, loss: tf.Tensor, to_hidden: tf.Tensor, to_kernel: tf.Tensor) -> Any:
        rows, label, weight = take(index)
        logits = tf.cast(tf.matmul(rows, kernel), tf.float32)
        # The fused kernel gives losses and softmax minus one-hot in one pass.
        losses, to_logits = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
            features=logits, labels=label
        )
        to_logits = tf.cast(to_logits * weight[:, None], hidden.dtype)
        part = tf.matmul(to_logits, kernel, transpose_b=True)
        to_kernel += tf.cast(tf.matmul(rows, to_logits, transpose_a=True), tf.float32)
        # A scatter would copy all of it, each time; nobody but this loop ever sees it.
        to_hidden = tf.raw_ops.InplaceUpdate(x=to_hidden, i=tf.reshape(index, [1]), v=part[None])
        return index + 1, loss + tf.reduce_sum(losses * weight), to_hidden, to_kernel

    start = (
        tf.constant(0), tf.constant(0.0),
        fresh_zeros([steps, size, hidden.shape[1]], hidden.dtype), fresh_zeros(kernel.shape),
    )  # fmt: skip
    _, loss, to_hidden, to_kernel = tf.while_loop(
        lambda index, *_: index < steps, in_program_order(one), start, parallel_iterations=1
    )
    flat, tokens = tf.reshape(to_hidden, [steps * size, hidden.shape[1]]), hidden.shape[0]
    return loss, flat if flat.shape[0] == tokens else flat[:tokens], to_kernel


def _slices(
    hidden: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, chunk: int
) -> tuple[Any, int, int]:
    """Return what gives a chunk's rows, labels and weights by its index; how many; of what size.

    The chunks are as equal as can be, so that seldom is anything to be filled up.
    """
    tokens = hidden.shape[0]
    steps = -(-tokens // chunk)
    size = -(-tokens // steps)
    missing = steps * size - tokens
    if missing:
        hidden = tf.pad(hidden, [[0, missing], [0, 0]])
        labels, weights = (tf.pad(one, [[0, missing]]) for one in (labels, weights))

    def take(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        start = index * size
        return (
            tf.slice(hidden, [start, 0], [size, hidden.shape[1]]),
            tf.slice(labels, [start], [size]),
            tf.slice(weights, [start], [size]),
        )

    return take, steps, size
