"""Texts to tokens inside a graph, as `trainer.tokens` makes them outside of it: for serving."""

from __future__ import annotations

import tensorflow as tf

from trainer.settings import TextFeature
from trainer.tokens import BYTES, FIRST_WORD, UNKNOWN_WORD, is_bytes, token_ids

SYMBOL = r"([^a-z0-9_\t-\r \x{80}-\x{10FFFF}])"
"""A character that is a word by itself; as in `trainer.tokens.WORD`, in RE2's spelling."""


def word_table(feature: TextFeature) -> tf.lookup.StaticHashTable | None:
    """Return the table from a word to its id, int32; None where the tokens are bytes.

    An exported module must hold the table itself, so that it is saved with its content.
    """
    if is_bytes(feature):
        return None
    known = [word.encode() for word in feature.vocabulary]
    ids = list(range(FIRST_WORD, FIRST_WORD + len(known)))
    content = tf.lookup.KeyValueTensorInitializer(tf.constant(known), tf.constant(ids, tf.int32))
    return tf.lookup.StaticHashTable(content, default_value=UNKNOWN_WORD)


def tokenize(
    feature: TextFeature, texts: tf.Tensor, table: tf.lookup.StaticHashTable | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return all tokens of texts, padded to the longest, and how many each text has.

    Args:
        feature: bytes or words.
        texts: string [B]; a missing text is empty.
        table: of `word_table`.
    Returns: int32 [B, longest] and int32 [B], the ends of the documents not among them.
    """
    if table is None:
        lengths = tf.strings.length(texts)
        # No text at all: a width of 1, since 0 is refused.
        width = tf.maximum(tf.reduce_max(tf.concat([lengths, [1]], axis=0)), 1)
        data = tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=width), tf.int32)
        is_byte = tf.range(width) < lengths[:, None]
        return tf.where(is_byte, data, tf.constant(BYTES, tf.int32)), lengths
    spaced = tf.strings.regex_replace(tf.strings.lower(texts), SYMBOL, r" \1 ")
    words = tf.strings.split(spaced)
    ids = tf.RaggedTensor.from_row_splits(table.lookup(words.values), words.row_splits)
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    return ids.to_tensor(default_value=token_ids(feature).padding), lengths


def sequences(
    feature: TextFeature, tokens: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return tokens of `tokenize` as `trainer.texts.Texts.take` gives them: int32 [B, S], [B]."""
    size, ids = feature.sequence, token_ids(feature)
    fitted = fit(tokens, size, padding=ids.padding)
    fitted = tf.where(tf.range(size) == lengths[:, None], tf.constant(ids.end, tf.int32), fitted)
    return fitted, tf.minimum(lengths + 1, size)


def fit(tokens: tf.Tensor, width: int | tf.Tensor, *, padding: int) -> tf.Tensor:
    """Return tokens [B, any] cut or padded to [B, width]."""
    cut = tokens[:, :width]
    fitted = tf.pad(cut, [[0, 0], [0, width - tf.shape(cut)[1]]], constant_values=padding)
    return tf.ensure_shape(fitted, [None, width]) if isinstance(width, int) else fitted
