"""What an evaluation shows beside its metrics: confusion, calibration, thresholds, residuals.

Plain values, ready for JSON. Rates that cannot be computed, of no rows, are None.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.settings import LabelFeature

BINS = 10
"""Of the calibration curve, all of the same width."""
THRESHOLDS = np.linspace(0.05, 0.95, 19)
MOST_CLASSES = 50
"""Classes that have a row of their own in the confusion matrix, the most frequent ones."""
MOST_POINTS = 200
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
RESIDUAL_BUCKETS = 20
OTHERS = "other classes"


def of(predictions: np.ndarray, label: np.ndarray, feature: LabelFeature) -> dict[str, Any]:
    """Return what belongs to the task, by name.

    Binary: ``confusion``, ``calibration``, ``thresholds``, ``roc``. Multiclass: ``confusion``,
    ``calibration`` (of the likeliest class) and ``thresholds`` (rows that are that sure).
    Regression: ``residuals``. A language model: nothing.

    Args:
        predictions: [N, C'].
        label: class ids or values, [N].
        feature: the label.
    """
    predictions = np.asarray(predictions, np.float64)
    if feature.task == "causal-lm" or not len(label):
        return {}
    if feature.task == "regression":
        return {"residuals": residuals(predictions[:, 0], np.asarray(label))}
    if feature.task == "binary":
        probability, positive = predictions[:, 0], np.asarray(label) == 1
        return {
            "confusion": confusion(probability > 0.5, positive, feature.classes),
            "calibration": calibration(probability, positive),
            "thresholds": thresholds(probability, positive),
            "roc": roc(probability, positive),
        }
    confidence, says = predictions.max(axis=1), predictions.argmax(axis=1)
    right = says == label
    return {
        "confusion": confusion(says, np.asarray(label), feature.classes),
        "calibration": calibration(confidence, right),
        "thresholds": answered(confidence, right),
    }


def confusion(says: np.ndarray, label: np.ndarray, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return ``classes`` and ``rows``: [true class][predicted class], counts.

    Where there are more than `MOST_CLASSES`, the rarest true ones are together at the end.
    """
    number, kept = len(classes), list(range(len(classes)))
    names = list(classes)
    if number > MOST_CLASSES:
        counts = np.bincount(label, minlength=number)
        kept = sorted(np.argsort(-counts, kind="stable")[:MOST_CLASSES].tolist())
        names = [classes[at] for at in kept] + [OTHERS]
    place = np.full(number, len(kept), np.int64)
    place[kept] = np.arange(len(kept))
    size = len(names)
    pairs = place[np.asarray(label, np.int64)] * size + place[np.asarray(says, np.int64)]
    rows = np.bincount(pairs, minlength=size * size).reshape(size, size)
    return {"classes": names, "rows": rows.tolist()}


def calibration(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, Any]]:
    """Return of each bin of the confidence ``from``, ``to``, ``rows``, ``confidence`` (its mean)
    and ``share`` (of rows that are right); bins without rows are left out.

    Bins are open on the left, as in the calibration error.
    """
    edges = np.linspace(0, 1, BINS + 1)
    bins = np.searchsorted(edges[1:-1], confidence, side="left")
    rows = np.bincount(bins, minlength=BINS)
    sums = np.bincount(bins, weights=confidence, minlength=BINS)
    hits = np.bincount(bins, weights=right, minlength=BINS)
    return [
        {
            "from": float(edges[at]),
            "to": float(edges[at + 1]),
            "rows": int(rows[at]),
            "confidence": float(sums[at] / rows[at]),
            "share": float(hits[at] / rows[at]),
        }
        for at in range(BINS)
        if rows[at]
    ]


def thresholds(probability: np.ndarray, positive: np.ndarray) -> list[dict[str, Any]]:
    """Return what comes of calling a row positive above each threshold.

    ``threshold``, ``share`` of rows that are, ``precision``, ``recall``, ``f1`` and
    ``false_positive_rate``.
    """
    count, others = int(positive.sum()), int((~positive).sum())
    table = []
    for threshold in THRESHOLDS:
        taken = probability > threshold
        hits = int((taken & positive).sum())
        precision, recall = _share(hits, int(taken.sum())), _share(hits, count)
        table.append({
            "threshold": round(float(threshold), 2),
            "share": _share(int(taken.sum()), len(taken)),
            "precision": precision,
            "recall": recall,
            "f1": _share(2 * hits, int(taken.sum()) + count),
            "false_positive_rate": _share(int(taken.sum()) - hits, others),
        })
    return table


def answered(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, Any]]:
    """Return of each threshold the ``share`` of rows that are surer, and their ``accuracy``."""
    table = []
    for threshold in THRESHOLDS:
        taken = confidence > threshold
        table.append({
            "threshold": round(float(threshold), 2),
            "share": _share(int(taken.sum()), len(taken)),
            "accuracy": _share(int((taken & right).sum()), int(taken.sum())),
        })
    return table


def roc(probability: np.ndarray, positive: np.ndarray) -> list[list[float]]:
    """Return points [false positive rate, true positive rate], from [0, 0] to [1, 1].

    At most about `MOST_POINTS` of them, evenly by row; none where there is one class only.
    """
    if positive.all() or not positive.any():
        return []
    order = np.argsort(-probability, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(probability[order]) != 0, True))
    hits = np.cumsum(positive[order])[ends]
    misses = ends + 1 - hits
    if len(ends) > MOST_POINTS:
        every = np.unique(np.linspace(0, len(ends) - 1, MOST_POINTS).astype(int))
        hits, misses = hits[every], misses[every]
    points = np.stack([misses / misses[-1], hits / hits[-1]], axis=1)
    return [[0.0, 0.0], *points.tolist()]


def residuals(predicted: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    """Return how far the label is from the prediction: label less prediction, in its unit.

    ``mean``, ``quantiles`` (share to value), ``histogram`` ([from, to, rows]) and, of tenths of the
    rows in the order of their predictions, ``by_prediction``: ``from``, ``to``, ``rows``, ``mean``
    (of the residual) and ``mean_size``.
    """
    found = np.asarray(label, np.float64) - predicted
    heights, edges = np.histogram(found, bins=RESIDUAL_BUCKETS)
    order = np.argsort(predicted, kind="stable")
    parts = [one for one in np.array_split(order, BINS) if len(one)]
    return {
        "mean": float(found.mean()),
        "quantiles": {f"{share:g}": float(np.quantile(found, share)) for share in QUANTILES},
        "histogram": [
            [float(low), float(high), int(rows)]
            for low, high, rows in zip(edges[:-1], edges[1:], heights, strict=True)
        ],
        "by_prediction": [
            {
                "from": float(predicted[part[0]]),
                "to": float(predicted[part[-1]]),
                "rows": len(part),
                "mean": float(found[part].mean()),
                "mean_size": float(np.abs(found[part]).mean()),
            }
            for part in parts
        ],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
