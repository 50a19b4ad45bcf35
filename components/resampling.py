"""The bootstrap on the eval split: how far a metric may be off, and whether two models differ.

Rows are drawn with replacement as many times as there are rows (Efron 1979); a draw is held as how
often each row was drawn, so that a metric is one weighted sum over rows that were sorted once.
Intervals are the percentiles of the draws, `SHARE` of them inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.losses import LEAST_PROBABILITY
from trainer.settings import LabelFeature

SHARE = 0.95
MOST_RESAMPLES, LEAST_RESAMPLES, MOST_DRAWN = 1000, 100, 20_000_000
"""Draws: as many as make so many drawn rows in all, within these bounds."""
BINS = 10

Interval = tuple[float, float]
Scorer = Callable[[np.ndarray], dict[str, float | None]]
"""Takes how often each row counts, int [N]; returns the metrics."""


@dataclass(frozen=True)
class Compared:
    """The losses of two models on the same rows.

    Attributes:
        difference: mean loss of the first less that of the second, nats or squares.
        low, high: bounds of the difference.
        rows: how many.
    """

    difference: float
    low: float
    high: float
    rows: int


def resamples(rows: int) -> int:
    """Return how many draws are made of so many rows."""
    return min(MOST_RESAMPLES, max(LEAST_RESAMPLES, MOST_DRAWN // max(rows, 1)))


def draws(rows: int, *, seed: int = 7, most: int = MOST_RESAMPLES) -> Iterator[np.ndarray]:
    """Yield how often each of the rows is drawn, int [N], draw by draw; the same for each seed."""
    random = np.random.default_rng(seed)
    for _ in range(min(most, resamples(rows))):
        yield np.bincount(random.integers(0, rows, rows), minlength=rows)


def intervals(
    predictions: np.ndarray,
    label: np.ndarray,
    *,
    label_feature: LabelFeature,
    most: int = MOST_RESAMPLES,
) -> dict[str, Interval | None]:
    """Return the interval of each metric of `trainer.evaluation.metrics`, by the same names.

    Args:
        predictions: [N, C'] as for the metrics.
        label: as for the metrics.
        label_feature: the task.
        most: draws at most.
    Returns: low and high; None where the metric is not defined in most draws, or there are fewer
        than two rows.
    """
    if len(label) < 2:
        return {}
    score = scorer(np.asarray(predictions, np.float64), np.asarray(label), label_feature)
    found = [score(weights) for weights in draws(len(label), most=most)]
    return {name: _interval([one[name] for one in found]) for name in found[0]}


def _interval(values: list[float | None]) -> Interval | None:
    defined = [one for one in values if one is not None]
    if len(defined) * 2 <= len(values):
        return None
    low, high = np.quantile(defined, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)


def compare(losses: np.ndarray, others: np.ndarray) -> Compared:
    """Return how the losses of two models on the same rows differ, by a paired bootstrap.

    Args:
        losses: of each row, float64 [N], N at least 1.
        others: those of the other model.
    """
    gaps = np.asarray(losses, np.float64) - np.asarray(others, np.float64)
    means = [float(weights @ gaps) / len(gaps) for weights in draws(len(gaps))]
    low, high = np.quantile(means, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Compared(float(np.mean(gaps)), float(low), float(high), len(gaps))


def row_losses(
    predictions: np.ndarray, label: np.ndarray, label_feature: LabelFeature
) -> np.ndarray:
    """Return the loss of each row, float64 [N], whose mean is the metric ``loss``.

    Args:
        predictions: [N, C'].
        label: class ids or values.
        label_feature: the task, which is no language model's.
    """
    if label_feature.task == "regression":
        return ((predictions[:, 0] - label) / label_feature.scale) ** 2
    if label_feature.task == "binary":
        true = np.where(label == 1, predictions[:, 0], 1 - predictions[:, 0])
    else:
        true = predictions[np.arange(len(label)), label]
    return -np.log(np.clip(true, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))


def scorer(predictions: np.ndarray, label: np.ndarray, label_feature: LabelFeature) -> Scorer:
    """Return the function from how often each row counts to the metrics of the task."""
    of_task: Mapping[str, Callable[..., Scorer]] = {
        "binary": _binary,
        "multiclass": _multiclass,
        "regression": _regression,
        "causal-lm": _language,
    }
    return of_task[label_feature.task](predictions, label, label_feature)


def _binary(predictions: np.ndarray, label: np.ndarray, feature: LabelFeature) -> Scorer:
    losses, positive = row_losses(predictions, label, feature), label == 1
    ranked = _Ranked(predictions[:, 0], positive)
    right, bins = (predictions[:, 0] > 0.5) == positive, _bins(predictions[:, 0])
    gaps = predictions[:, 0] - positive

    def score(weights: np.ndarray) -> dict[str, float | None]:
        auc, precision = ranked.areas(weights)
        return {
            "loss": _mean(losses, weights),
            "auc": auc,
            "average_precision": precision,
            "accuracy": _mean(right, weights),
            "calibration_error": _calibration_error(gaps, bins, weights),
        }

    return score


def _multiclass(predictions: np.ndarray, label: np.ndarray, feature: LabelFeature) -> Scorer:
    losses, right = row_losses(predictions, label, feature), predictions.argmax(axis=1) == label
    ranked = [_Ranked(predictions[:, at], label == at) for at in range(predictions.shape[1])]
    gaps, bins = predictions.max(axis=1) - right, _bins(predictions.max(axis=1))

    def score(weights: np.ndarray) -> dict[str, float | None]:
        areas = [area for one in ranked if (area := one.areas(weights)[0]) is not None]
        return {
            "loss": _mean(losses, weights),
            "accuracy": _mean(right, weights),
            "auc": float(np.mean(areas)) if areas else None,
            "calibration_error": _calibration_error(gaps, bins, weights),
        }

    return score


def _regression(predictions: np.ndarray, label: np.ndarray, feature: LabelFeature) -> Scorer:
    error = predictions[:, 0] - label
    # Around the mean: far from 0 the two squares below would differ in their last digits alone.
    centred = label - label.mean()
    squares, sizes, label_squares = error**2, np.abs(error), centred**2

    def score(weights: np.ndarray) -> dict[str, float | None]:
        squared = _mean(squares, weights)
        spread = _mean(label_squares, weights) - _mean(centred, weights) ** 2
        return {
            "loss": squared / feature.scale**2,
            "rmse": squared**0.5,
            "mae": _mean(sizes, weights),
            "r2": 1 - squared / spread if spread > 0 else None,
        }

    return score


def _language(sums: np.ndarray, label: np.ndarray, _: LabelFeature) -> Scorer:
    """Windows are drawn: the tokens of one hang together."""

    def score(weights: np.ndarray) -> dict[str, float | None]:
        whole, right = weights @ sums
        tokens, of_text = weights @ label[:, :2].astype(np.float64)
        loss = float(whole / tokens)
        return {
            "loss": loss,
            "bits_per_byte": float(whole / np.log(2) / of_text) if of_text else None,
            "perplexity": float(np.exp(min(loss, 700.0))),
            "accuracy": float(right / tokens),
        }

    return score


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    return float(weights @ values) / float(weights.sum())


def _bins(confidence: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence, side="left")


def _calibration_error(gaps: np.ndarray, bins: np.ndarray, weights: np.ndarray) -> float:
    sums = np.bincount(bins, weights=weights * gaps, minlength=BINS)
    return float(np.abs(sums).sum() / weights.sum())


class _Ranked:
    """Rows sorted by their score, once for all draws."""

    def __init__(self, scores: np.ndarray, positive: np.ndarray) -> None:
        self.order = np.argsort(scores, kind="stable")
        ranked = scores[self.order]
        self.starts = np.flatnonzero(np.append(True, np.diff(ranked) != 0))
        self.positive = positive[self.order]

    def areas(self, weights: np.ndarray) -> tuple[float | None, float | None]:
        """Return AUC (equal scores count half) and average precision; None: not defined."""
        drawn = weights[self.order]
        every = np.add.reduceat(drawn, self.starts).astype(np.float64)
        hits = np.add.reduceat(drawn * self.positive, self.starts).astype(np.float64)
        positive, misses = hits.sum(), every - hits
        if not positive:
            return None, None
        below = np.cumsum(misses) - misses / 2
        area = float(hits @ below / (positive * misses.sum())) if misses.any() else None
        # From the highest score down: of the rows above each one, how many are hits.
        found, taken = np.cumsum(hits[::-1]), np.cumsum(every[::-1])
        precision = found / np.maximum(taken, 1)
        return area, float(hits[::-1] @ precision / positive)
