"""The one feature code: raw columns to what the model reads, in training, evaluation and serving.

Numbers: a piecewise-linear encoding over the feature's bins, computed in float64. Texts: ids of a
vocabulary. Missing values have an entry of their own in both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from trainer.settings import CategoryFeature, NumberFeature
from trainer.times import part_of

MISSING_ID = 0
UNKNOWN_ID = 1
FIRST_KNOWN_ID = 2
NO_TEXT = b"\xff"
"""A string that is no UTF-8, so no value of a column."""


def category_table(feature: CategoryFeature) -> tf.lookup.StaticHashTable:
    """Return the table from a text (UTF-8 bytes) to its id, int32; unknown texts give 1.

    An exported module must hold the table itself, so that it is saved with its content.
    """
    known = [text.encode() for text in feature.vocabulary]
    # TensorFlow refuses an empty table, so there is one key more, which is no UTF-8 text.
    ids = [*range(FIRST_KNOWN_ID, FIRST_KNOWN_ID + len(known)), UNKNOWN_ID]
    content = tf.lookup.KeyValueTensorInitializer(
        tf.constant([*known, NO_TEXT]), tf.constant(ids, tf.int32)
    )
    return tf.lookup.StaticHashTable(content, default_value=UNKNOWN_ID)


def category_ids(
    feature: CategoryFeature,
    texts: tf.Tensor,
    *,
    present: tf.Tensor | None = None,
    table: tf.lookup.StaticHashTable | None = None,
) -> tf.Tensor:
    """Return the ids of texts: 0 missing, 1 unknown, 2 and up the feature's vocabulary.

    Args:
        feature: whose vocabulary holds.
        texts: string, any shape.
        present: bool, the same shape; False where the value is missing. None: none is missing.
        table: of `category_table`, where it is kept; None: made anew.
    Returns: int32, the shape of `texts`.
    """
    values = part_of(texts, feature.part) if feature.part else texts
    ids = (category_table(feature) if table is None else table).lookup(values)
    if present is None:
        return ids
    return tf.where(present, ids, tf.constant(MISSING_ID, tf.int32))


def encoded_size(numbers: Sequence[NumberFeature]) -> int:
    """Return the entries a number is encoded into: the most bins of any feature, and missing."""
    return max(len(number.edges) - 1 for number in numbers) + 1


def encode_numbers(
    numbers: Sequence[NumberFeature], values: tf.Tensor, present: tf.Tensor
) -> tf.Tensor:
    """Return the piecewise-linear encoding of numbers.

    A bin below the value holds 1, the bin that holds it the share of the bin below it, a bin
    above 0. Values outside the edges hold all 0 or all 1: unlike the source, which goes on
    linearly there, so that an outlier cannot overflow float16. A missing value has all bins 0 and
    1 in the last entry; NaN counts as missing. Features with fewer bins than the others are
    padded with 0.

    Args:
        numbers: n features, at least one.
        values: float64 [B, n]; anything where not present.
        present: bool [B, n].
    Returns: float32 [B, n, `encoded_size`].
    Source: Gorishniy et al. 2022, arXiv:2203.05556, equation 1.
    """
    lower, width, is_bin = _bins(numbers)
    known = tf.logical_and(present, tf.logical_not(tf.math.is_nan(values)))
    # Scalars: zeros of the batch's shape would be folded into a constant that stays.
    safe = tf.where(known, values, tf.constant(0, values.dtype))
    share = tf.clip_by_value((safe[:, :, None] - lower) / width, 0.0, 1.0)
    use = tf.logical_and(known[:, :, None], is_bin)
    bins = tf.cast(tf.where(use, share, tf.constant(0, share.dtype)), tf.float32)
    missing = tf.cast(tf.logical_not(known), tf.float32)[:, :, None]
    return tf.concat([bins, missing], axis=-1)


def _bins(numbers: Sequence[NumberFeature]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lower edges and widths, float64 [n, bins], and which bins are no padding, bool."""
    shape = (len(numbers), encoded_size(numbers) - 1)
    lower, width, is_bin = np.zeros(shape), np.ones(shape), np.zeros(shape, dtype=bool)
    for row, number in enumerate(numbers):
        edges = np.asarray(number.edges, dtype=np.float64)
        bins = len(edges) - 1
        lower[row, :bins] = edges[:-1]
        width[row, :bins] = np.diff(edges)
        is_bin[row, :bins] = True
    return lower, width, is_bin
