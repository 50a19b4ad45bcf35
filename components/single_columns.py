"""How well one column alone tells the label: what a leak is known by.

A column's values are put into bins on one half of the rows; what the bins say of the label is
judged on the other half. 0: no better than knowing nothing; 1: all of it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BINS = 64
PRIOR_ROWS = 0.1
"""How many rows' worth of the whole label each bin is given beside its own rows."""
LEAK_OF_CLASSES, LEAK_OF_NUMBERS = 0.93, 0.99
"""From here on a column tells the label almost alone."""
STRONG = 0.5
"""From here on it is worth asking whether a column is known before the label."""
LEAST_ROWS = 50


def tells(values: pa.Array, label: pa.Array, *, is_regression: bool) -> float:
    """Return the share of the label that the column tells, 0 to 1.

    For classes, of their entropy; for a quantity, of its variance.

    Args:
        values: int64, float64 or string [N], null where missing.
        label: of the same kinds [N].
        is_regression: whether the label is a quantity.
    """
    known = np.asarray(pc.is_valid(label))
    if known.sum() < LEAST_ROWS:
        return 0.0
    values, label = values.filter(pa.array(known)), label.filter(pa.array(known))
    # Every second row, mixed: neighbours in a file are often alike.
    half = np.random.default_rng(7).permutation(len(label)) % 2 == 0
    bins = _bins(values, half)
    if is_regression:
        return _of_variance(bins, np.asarray(label.cast(pa.float64())), half)
    return _of_entropy(bins, _codes(label), half)


def is_leak(told: float, *, is_regression: bool) -> bool:
    """Say whether a column that tells so much tells the label almost alone."""
    return told >= (LEAK_OF_NUMBERS if is_regression else LEAK_OF_CLASSES)


def _codes(values: pa.Array) -> np.ndarray:
    encoded = values.dictionary_encode()
    return np.asarray(pc.fill_null(encoded.indices, len(encoded.dictionary)), np.int64)


def _bins(values: pa.Array, half: np.ndarray) -> np.ndarray:
    """Return each row's bin: a text's own; a number's, between quantiles of one half."""
    if pa.types.is_string(values.type):
        return _codes(values)
    numbers = np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), np.nan))
    there = numbers[half & ~np.isnan(numbers)]
    if not len(there):
        return np.zeros(len(numbers), np.int64)
    edges = np.unique(there)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(there, np.linspace(0, 1, BINS + 1)))
    found = np.searchsorted(edges, numbers, side="right")
    return np.where(np.isnan(numbers), len(edges) + 1, found)


def _of_entropy(bins: np.ndarray, classes: np.ndarray, half: np.ndarray) -> float:
    """Return the share of the label's cross-entropy that the bins take away, on the other half."""
    size = int(classes.max()) + 1
    counts = np.zeros((int(bins.max()) + 1, size))
    np.add.at(counts, (bins[half], classes[half]), 1)
    whole = counts.sum(axis=0) + 1e-3
    whole /= whole.sum()
    by_bin = counts + PRIOR_ROWS * whole
    by_bin /= by_bin.sum(axis=1, keepdims=True)
    other = ~half
    nothing = -np.log(whole[classes[other]]).mean()
    something = -np.log(by_bin[bins[other], classes[other]]).mean()
    return float(np.clip(1 - something / nothing, 0, 1)) if nothing > 0 else 0.0


def _of_variance(bins: np.ndarray, label: np.ndarray, half: np.ndarray) -> float:
    """Return R² of the bins' means on the other half."""
    mean = label[half].mean()
    rows = np.bincount(bins[half], minlength=int(bins.max()) + 1)
    sums = np.bincount(bins[half], label[half], minlength=len(rows))
    means = (sums + PRIOR_ROWS * mean) / (rows + PRIOR_ROWS)
    other = label[~half]
    spread = ((other - mean) ** 2).mean()
    left = ((other - means[bins[~half]]) ** 2).mean()
    return float(np.clip(1 - left / spread, 0, 1)) if spread > 0 else 0.0
