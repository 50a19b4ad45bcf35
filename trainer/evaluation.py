"""Predictions over a whole split without gradients, and metrics in NumPy beside the baseline's.

A metric that the split cannot define (one class only, a constant label, no rows) is None, never
NaN, and `notes` says why.

The rows of a language model are windows. It predicts two sums of each, loss and right tokens, so
that no logits of a whole split are ever held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from trainer.errors import NotFinite
from trainer.losses import LEAST_PROBABILITY
from trainer.losses import predictions as predictions_of
from trainer.models.built import Built
from trainer.settings import Features, LabelFeature

METRICS = {
    "binary": ("loss", "auc", "average_precision", "accuracy", "calibration_error"),
    "multiclass": ("loss", "accuracy", "auc", "calibration_error"),
    "regression": ("loss", "rmse", "mae", "r2"),
    "causal-lm": ("loss", "bits_per_byte", "perplexity", "accuracy"),
}
"""Names of the metrics of each task."""

CALIBRATION_BINS = 10
MOST_NATS = 700.0
"""Above it the perplexity would be past what a number holds."""

Predictor = Callable[[Mapping[str, Any]], tf.Tensor]


class Columns(Protocol):
    """A split's columns, as `trainer.batches.Columns` holds them."""

    rows: int

    def inputs(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Return the model inputs of these rows, in this order."""
        ...


def predictor(built: Built, features: Features) -> Predictor:
    """Return the traced function from model inputs to predictions; keep it to trace once."""

    @tf.function(reduce_retracing=True)
    def run(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return predictions_of(built.predict(inputs), label_feature=features.label)

    return run


def predict(
    built: Built,
    columns: Columns,
    features: Features,
    *,
    batch: int,
    run: Predictor | None = None,
) -> np.ndarray:
    """Return the predictions of every row, in order; no gradient is kept, no row is dropped.

    Args:
        built: of `trainer.models`.
        columns: the split.
        features: the columns that the model reads, and the label.
        batch: rows at once; the last batch is filled up with its last row, then cut.
        run: of `predictor`, where one was kept; None: made anew.
    Returns: [N, C'] as `trainer.losses.predictions`: float32, for regression float64.
    """
    run = predictor(built, features) if run is None else run
    # No rows: the kind of the result still comes from one run, over nothing.
    starts = range(0, columns.rows, batch) if columns.rows else (0,)
    parts = [_predict_rows(run, columns, start, batch) for start in starts]
    return np.concatenate(parts)


def _predict_rows(run: Predictor, columns: Columns, start: int, batch: int) -> np.ndarray:
    rows = np.arange(start, min(start + batch, columns.rows), dtype=np.int64)
    filled = np.pad(rows, (0, batch - len(rows)), mode="edge") if len(rows) else rows
    inputs = {name: tf.convert_to_tensor(one) for name, one in columns.inputs(filled).items()}
    return np.asarray(run(inputs))[: len(rows)]


def metrics(
    predictions: np.ndarray, label: np.ndarray, *, label_feature: LabelFeature
) -> dict[str, float | None]:
    """Return the metrics of the task, in the order of `METRICS`.

    Binary: loss (cross-entropy, nats), auc (ties count half), average_precision (a sum over
    thresholds, not interpolated), accuracy (class 1 above 0.5), calibration_error.
    Multiclass: loss, accuracy (the first of equal probabilities wins), auc (one class against
    the rest, the plain mean over the classes that have both), calibration_error.
    Regression: loss (mean squared error of the standardised label), rmse and mae in the label's
    unit, r2.
    Language model: loss (nats a predicted token, ends of documents among them), bits_per_byte (the
    whole loss in bits, over the bytes of text that are predicted), perplexity (e to the loss),
    accuracy (tokens that the likeliest one is).

    Args:
        predictions: [N, C'] of `predict`.
        label: class ids [N], or values [N] in the label's unit; of a language model [N, 4], as
            `trainer.texts.WINDOW_LABEL` names them.
        label_feature: task, classes, mean and scale.
    Returns: a finite number for each name, or None where `notes` says why there is none.

    Raises:
        NotFinite: when a prediction is NaN or infinite. The loop evaluates before it saves, so
            such weights end the training (exit 4); they are neither a checkpoint nor exported.
    """
    broken = int(np.sum(~np.isfinite(predictions).all(axis=-1)))
    if broken:
        raise NotFinite(
            f"{broken} of {len(predictions)} predictions are NaN or infinite",
            where="evaluation",
            right="a lower training.learning_rate, or training.precision = float32",
        )
    if len(label) == 0:
        return dict.fromkeys(METRICS[label_feature.task])
    measure = {
        "binary": _binary,
        "multiclass": _multiclass,
        "regression": _regression,
        "causal-lm": _language,
    }
    return measure[label_feature.task](
        np.asarray(predictions, dtype=np.float64), np.asarray(label), label_feature
    )


def notes(label: np.ndarray, *, label_feature: LabelFeature) -> list[str]:
    """Return why metrics of this split are None or leave something out, one sentence each."""
    if len(label) == 0:
        return ["no metric is defined: the split has no rows"]
    if label_feature.task == "causal-lm":
        counts_bytes = np.asarray(label)[:, 1].any()
        return [] if counts_bytes else ["bits_per_byte is not defined: the tokens are words"]
    if label_feature.task == "regression":
        constant = np.ptp(label) == 0
        return [f"r2 is not defined: all labels are {label[0]:g}"] if constant else []
    absent = [
        text
        for number, text in enumerate(label_feature.classes)
        if not np.any(np.asarray(label) == number)
    ]
    if len(label_feature.classes) - len(absent) < 2:
        only = label_feature.classes[int(label[0])]
        return [f'auc is not defined: the split has one class only, "{only}"', *_precision(label)]
    if absent and label_feature.task == "multiclass":
        names = ", ".join(f'"{text}"' for text in absent)
        return [f"auc leaves out classes that the split does not have: {names}"]
    return []


def _precision(label: np.ndarray) -> list[str]:
    if np.any(label):
        return []
    return ["average_precision is not defined: the split has no row of the positive class"]


def baseline(label_feature: LabelFeature, label: np.ndarray) -> dict[str, float | None]:
    """Return the metrics of the trivial prediction: class frequencies, or the mean, of train.

    Of a language model: the frequencies of the train split's tokens, whatever came before.

    Args:
        label_feature: holds frequencies or mean.
        label: of the evaluated split, as for `metrics`.
    """
    if label_feature.task == "causal-lm":
        return metrics(np.asarray(label)[:, 2:], label, label_feature=label_feature)
    says = {
        "binary": label_feature.frequencies[1:],
        "multiclass": label_feature.frequencies,
        "regression": (label_feature.mean,),
    }[label_feature.task]
    constant = np.tile(np.asarray(says, dtype=np.float64), (len(label), 1))
    return metrics(constant, label, label_feature=label_feature)


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Return the area under the ROC curve: the chance that a positive row scores higher.

    Equal scores count half (Mann and Whitney 1947).

    Args:
        scores: [N].
        positive: bool [N].
    Returns: None when there are only positive rows, or none.
    """
    count = int(positive.sum())
    others = len(positive) - count
    if not count or not others:
        return None
    _, place, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    middle_rank = ends - (sizes - 1) / 2
    return float((middle_rank[place][positive].sum() - count * (count + 1) / 2) / (count * others))


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Return the sum over thresholds of precision times the recall that each one adds.

    Args:
        scores: [N].
        positive: bool [N].
    Returns: None when no row is positive.
    """
    if not positive.any():
        return None
    order = np.argsort(-scores, kind="stable")
    last_of_equal = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(positive[order])[last_of_equal]
    taken = np.flatnonzero(last_of_equal) + 1
    return float(np.sum(np.diff(hits, prepend=0) * hits / taken) / positive.sum())


def calibration_error(confidence: np.ndarray, is_right: np.ndarray) -> float:
    """Return the expected calibration error over 10 equal bins of 0 to 1, open on the left.

    The mean over rows of how far their bin's mean confidence is from its share of right ones. For
    two classes the confidence is the probability of class 1 and "right" is being of class 1; for
    more it is the largest probability and "right" is that the class is the true one.

    Args:
        confidence: [N].
        is_right: bool [N].
    Source: Guo et al. 2017, arXiv:1706.04599.
    """
    inner_edges = np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1]
    bins = np.searchsorted(inner_edges, confidence, side="left")
    gaps = np.bincount(bins, weights=confidence - is_right, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def _binary(predictions: np.ndarray, label: np.ndarray, _: LabelFeature) -> dict[str, float | None]:
    probability, positive = predictions[:, 0], label == 1
    return {
        "loss": _cross_entropy(np.where(positive, probability, 1 - probability)),
        "auc": auc(probability, positive),
        "average_precision": average_precision(probability, positive),
        "accuracy": float(np.mean((probability > 0.5) == positive)),
        "calibration_error": calibration_error(probability, positive),
    }


def _multiclass(
    predictions: np.ndarray, label: np.ndarray, _: LabelFeature
) -> dict[str, float | None]:
    is_right = predictions.argmax(axis=1) == label
    return {
        "loss": _cross_entropy(predictions[np.arange(len(label)), label]),
        "accuracy": float(np.mean(is_right)),
        "auc": _mean_auc(predictions, label),
        "calibration_error": calibration_error(predictions.max(axis=1), is_right),
    }


def _regression(
    predictions: np.ndarray, label: np.ndarray, label_feature: LabelFeature
) -> dict[str, float | None]:
    error = predictions[:, 0] - label
    squared = float(np.mean(error**2))
    spread = float(np.mean((label - np.mean(label)) ** 2))
    return {
        "loss": float(np.mean((error / label_feature.scale) ** 2)),
        "rmse": squared**0.5,
        "mae": float(np.mean(np.abs(error))),
        "r2": 1 - squared / spread if np.ptp(label) > 0 else None,
    }


def _language(sums: np.ndarray, label: np.ndarray, _: LabelFeature) -> dict[str, float | None]:
    whole, right = sums.sum(axis=0)
    tokens, of_text = label[:, :2].sum(axis=0)
    loss = float(whole / tokens)
    return {
        "loss": loss,
        "bits_per_byte": float(whole / np.log(2) / of_text) if of_text else None,
        "perplexity": float(np.exp(min(loss, MOST_NATS))),
        "accuracy": float(right / tokens),
    }


def _mean_auc(predictions: np.ndarray, label: np.ndarray) -> float | None:
    found = list(_class_aucs(predictions, label))
    return float(np.mean(found)) if found else None


def _class_aucs(predictions: np.ndarray, label: np.ndarray) -> Iterator[float]:
    for number in range(predictions.shape[1]):
        area = auc(predictions[:, number], label == number)
        if area is not None:
            yield area


def _cross_entropy(true_probability: np.ndarray) -> float:
    kept = np.clip(true_probability, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return float(-np.mean(np.log(kept)))
