"""What an exported language model answers of texts: how likely each is, and what comes next.

A text is scored by itself: its first token is predicted from an end token, as at the beginning of
a document, then each from the S before it at most, in windows of S. What follows its last token is
predicted from the S last ones.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.settings import TextFeature
from trainer.text_transform import fit, tokenize
from trainer.tokens import BYTES, FIRST_WORD, is_bytes, token_ids

NATS_IN_BIT = 0.6931471805599453


def answer(
    built: Any,
    feature: TextFeature,
    texts: tf.Tensor,
    *,
    table: tf.lookup.StaticHashTable | None,
) -> dict[str, tf.Tensor]:
    """Return what the model says of each text.

    Args:
        built: of `trainer.models`, with ``predict`` and ``next_token``.
        feature: the text column.
        texts: string [B]; a missing text is empty.
        table: of `trainer.text_transform.word_table`.
    Returns: ``tokens`` int32 [B], how many the text has; ``loss`` float32 [B], nats a token, 0 of
        an empty text; ``bits_per_byte`` float32 [B], where tokens are bytes; ``probabilities``
        float32 [B, V] of the next token; ``next_token`` int32 [B], the likeliest, and
        ``next_text`` string [B], its bytes, empty at the end of a document.
    """
    tokens, lengths = tokenize(feature, texts, table)
    size, ids = feature.sequence, token_ids(feature)
    begin = tf.fill([tf.shape(tokens)[0], 1], tf.constant(ids.end, tf.int32))
    stream = tf.concat([begin, tokens], axis=1)
    nats = _nats(built, stream, lengths, size=size, padding=ids.padding)
    loss = nats / tf.maximum(tf.cast(lengths, tf.float32), 1.0)
    logits = built.next_token(*_last(stream, lengths + 1, size=size, padding=ids.padding))
    likeliest = tf.argmax(logits, axis=1, output_type=tf.int32)
    said = {
        "tokens": lengths,
        "loss": loss,
        "probabilities": tf.nn.softmax(logits),
        "next_token": likeliest,
        "next_text": tf.gather(tf.constant(spellings(feature)), likeliest),
    }
    return {**said, "bits_per_byte": loss / NATS_IN_BIT} if is_bytes(feature) else said


def spellings(feature: TextFeature) -> list[bytes]:
    """Return what each token is in a text, [V]; that of padding, ends and unknown words is none."""
    if is_bytes(feature):
        return [*(bytes([one]) for one in range(BYTES)), b""]
    return [*[b""] * FIRST_WORD, *(word.encode() for word in feature.vocabulary)]


def _nats(
    built: Any, stream: tf.Tensor, lengths: tf.Tensor, *, size: int, padding: int
) -> tf.Tensor:
    """Return the summed loss of each text, float32 [B], a window of all texts at once.

    Args:
        built: has ``predict``.
        stream: int32 [B, 1 + longest].
        lengths: tokens that each predicts, int32 [B].
        size: S.
        padding: the token of no meaning.
    """
    windows = tf.maximum((tf.reduce_max(tf.concat([lengths, [0]], 0)) + size - 1) // size, 1)
    padded = fit(stream, windows * size + 1, padding=padding)

    def add(at: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = at * size
        tokens = tf.ensure_shape(padded[:, first : first + size + 1], [None, size + 1])
        left = tf.clip_by_value(lengths - first, 0, size)
        sums = built.predict({"tokens": tokens, "lengths": left})
        return at + 1, total + tf.cast(sums[:, 0], tf.float32)

    start = (tf.constant(0), tf.zeros_like(lengths, tf.float32))
    return tf.while_loop(lambda at, _: at < windows, add, start)[1]


def _last(
    stream: tf.Tensor, lengths: tf.Tensor, *, size: int, padding: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the last S tokens of each row of a stream, int32 [B, S], and how many there are."""
    left = tf.minimum(lengths, size)
    place = (lengths - left)[:, None] + tf.range(size)
    there = place < lengths[:, None]
    safe = tf.minimum(place, tf.shape(stream)[1] - 1)
    tokens = tf.where(there, tf.gather(stream, safe, batch_dims=1), padding)
    return tokens, left
