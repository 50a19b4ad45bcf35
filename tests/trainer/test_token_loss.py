"""The loss of a language model a chunk of tokens at a time: that of all, for less memory."""

from __future__ import annotations

import measured
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.token_loss import pick_chunk, plain_token_loss_sum, token_loss_sum, token_stats

MEASURE = """
import json, tensorflow as tf
from trainer.token_loss import plain_token_loss_sum, token_loss_sum

def peak(loss_sum):
    @tf.function
    def gradients(hidden, kernel):
        with tf.GradientTape() as tape:
            tape.watch([hidden, kernel])
            loss = loss_sum(hidden, kernel, tf.zeros([4096], tf.int32), tf.ones([4096]))
        return tape.gradient(loss, [hidden, kernel])
    given = tf.ones([4096, 16]), tf.ones([16, 1000])
    gradients(*given)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    gradients(*given)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before

print(json.dumps({"plain": peak(plain_token_loss_sum),
                  "chunked": peak(lambda *one: token_loss_sum(*one, chunk=256))}))
"""


def by_hand(hidden, kernel, labels, weights) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Loss, its gradients and the right guesses in float64, token by token."""
    loss, right = 0.0, 0.0
    to_hidden, to_kernel = np.zeros_like(hidden), np.zeros_like(kernel)
    for place, label in enumerate(labels):
        logits = hidden[place] @ kernel
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        loss -= weights[place] * np.log(shares[label])
        right += weights[place] * (np.argmax(logits) == label)
        missed = weights[place] * (shares - np.eye(len(shares))[label])
        to_hidden[place] = kernel @ missed
        to_kernel += np.outer(hidden[place], missed)
    return loss, to_hidden, to_kernel, right


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 13), width=st.integers(1, 5), vocabulary=st.integers(2, 7),
    chunk=st.integers(1, 15), factor=st.sampled_from([1.0, 1024.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_loss_and_gradients_are_those_of_all_tokens_at_once(
    tokens: int, width: int, vocabulary: int, chunk: int, factor: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    hidden, kernel = random.normal(size=(tokens, width)), random.normal(size=(width, vocabulary))
    labels = random.integers(0, vocabulary, tokens).astype(np.int32)
    weights = random.choice([0.0, 0.5, 1.0], tokens)
    loss, to_hidden, to_kernel, right = by_hand(hidden, kernel, labels, weights)
    given = [tf.constant(one, tf.float32) for one in (hidden, kernel)]
    rest = tf.constant(labels), tf.constant(weights, tf.float32)
    for loss_sum in (plain_token_loss_sum, lambda *one: token_loss_sum(*one, chunk=chunk)):
        with tf.GradientTape() as tape:
            tape.watch(given)
            found = loss_sum(*given, *rest)
            scaled = factor * found  # as loss scaling does
        gradients = tape.gradient(scaled, given)
        np.testing.assert_allclose(found, loss, rtol=1e-5, atol=1e-5)
        for one, other in zip(gradients, (to_hidden, to_kernel), strict=True):
            np.testing.assert_allclose(one / factor, other, rtol=1e-4, atol=1e-5)
    told = token_stats(*given, *rest, chunk=chunk)
    np.testing.assert_allclose(told, [loss, right], rtol=1e-5, atol=1e-5)


def test_a_chunk_is_not_so_small_that_products_get_slow() -> None:
    assert pick_chunk(257) * 257 <= 2**20
    assert pick_chunk(10**6) == 512


@pytest.mark.slow
def test_the_logits_of_all_tokens_never_exist() -> None:
    peak = measured.in_child(MEASURE)
    # 16 chunks; besides the logits of one there are the gradients, of 0.3 MiB.
    assert peak["chunked"] < peak["plain"] / 8, peak
