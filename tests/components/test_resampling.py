"""Weighted metrics equal scikit-learn's with sample weights; intervals hold what they promise."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from components import resampling
from trainer import evaluation
from trainer.settings import LabelFeature

BINARY = LabelFeature("y", "binary", "int", ("0", "1"), (0.6, 0.4))
THREE = LabelFeature("y", "multiclass", "int", ("0", "1", "2"), (0.3, 0.3, 0.4))
NUMBER = LabelFeature("y", "regression", "float", mean=4000.0, scale=700.0)
LANGUAGE = LabelFeature("y", "causal-lm", "string")


def binary(rows: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = (random.random(rows) < 0.4).astype(np.int32)
    # Rounded, so that many scores are equal.
    score = np.round(np.clip(0.35 + 0.2 * label + 0.2 * random.normal(size=rows), 0.01, 0.99), 2)
    return score[:, None], label


def multiclass(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    label = random.integers(0, 3, rows).astype(np.int32)
    weights = random.random((rows, 3)) + 0.7 * np.eye(3)[label]
    return weights / weights.sum(axis=1, keepdims=True), label


def regression(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    label = random.normal(4000, 700, rows)
    return (label + random.normal(0, 200, rows))[:, None], label


def language(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    tokens = random.integers(200, 257, rows)
    sums = np.stack([tokens * random.uniform(1, 2, rows), tokens // 2], axis=1)
    return sums, np.stack([tokens, tokens - 1, sums[:, 0] * 2, tokens // 4], axis=1)


CASES = [(BINARY, binary), (THREE, multiclass), (NUMBER, regression), (LANGUAGE, language)]


@pytest.mark.parametrize(("feature", "make"), CASES)
def test_rows_that_count_once_give_the_metrics_themselves(feature, make):
    predictions, label = make(400)
    score = resampling.scorer(predictions, label, feature)
    expected = evaluation.metrics(predictions, label, label_feature=feature)
    assert score(np.ones(400, np.int64)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("feature", "make"), CASES)
def test_a_row_that_counts_twice_is_a_row_that_is_there_twice(feature, make):
    predictions, label = make(300)
    weights = np.random.default_rng(1).integers(0, 4, 300)
    rows = np.repeat(np.arange(300), weights)
    score = resampling.scorer(predictions, label, feature)
    expected = evaluation.metrics(predictions[rows], label[rows], label_feature=feature)
    assert score(weights) == pytest.approx(expected, rel=1e-9)


def test_weighted_areas_equal_those_of_scikit_learn():
    predictions, label = binary(500)
    weights = np.random.default_rng(2).integers(0, 3, 500)
    found = resampling.scorer(predictions, label, BINARY)(weights)
    kept = weights > 0  # scikit-learn counts a threshold of rows without weight
    scores, true, weighed = predictions[kept, 0], label[kept], weights[kept]
    auc = sklearn_metrics.roc_auc_score(true, scores, sample_weight=weighed)
    precision = sklearn_metrics.average_precision_score(true, scores, sample_weight=weighed)
    assert found["auc"] == pytest.approx(auc, rel=1e-9)
    assert found["average_precision"] == pytest.approx(precision, rel=1e-9)
    assert found["loss"] == pytest.approx(
        sklearn_metrics.log_loss(true, scores, sample_weight=weighed)
    )


def test_the_interval_of_the_auc_is_that_of_a_bootstrap_of_scikit_learn_s():
    predictions, label = binary(400)
    low, high = resampling.intervals(predictions, label, label_feature=BINARY)["auc"]
    random = np.random.default_rng(11)
    areas = []
    for _ in range(400):
        rows = random.integers(0, 400, 400)
        areas.append(sklearn_metrics.roc_auc_score(label[rows], predictions[rows, 0]))
    expected = np.quantile(areas, [0.025, 0.975])
    # Two bootstraps of other draws: their bounds differ by some hundredths of the width.
    assert [low, high] == pytest.approx(expected, abs=0.15 * (expected[1] - expected[0]))
    assert low < sklearn_metrics.roc_auc_score(label, predictions[:, 0]) < high


def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says():
    random = np.random.default_rng(5)
    inside = 0
    for _ in range(100):
        label = random.normal(4000, 700, 200)
        predictions = (label + random.normal(0, 200, 200))[:, None]
        low, high = resampling.intervals(predictions, label, label_feature=NUMBER, most=200)["mae"]
        # The mean size of a normal error of 200.
        inside += low <= 200 * np.sqrt(2 / np.pi) <= high
    # 95 expected; 4 standard deviations of such a count, and the bootstrap's own shortfall.
    assert 85 <= inside <= 100


def test_a_metric_that_most_draws_leave_undefined_has_no_interval():
    predictions, label = binary(50)
    found = resampling.intervals(predictions, np.zeros_like(label), label_feature=BINARY)
    assert found["auc"] is None
    assert found["accuracy"] is not None
    assert resampling.intervals(predictions[:1], label[:1], label_feature=BINARY) == {}


def test_equal_models_do_not_differ_and_a_worse_one_does():
    predictions, label = binary(2000)
    losses = resampling.row_losses(predictions, label, BINARY)
    same = resampling.compare(losses, losses)
    assert (same.difference, same.low, same.high) == (0, 0, 0)
    random = np.random.default_rng(1)
    blurred = np.clip(predictions + 0.2 * random.normal(size=predictions.shape), 0.01, 0.99)
    worse = resampling.compare(resampling.row_losses(blurred, label, BINARY), losses)
    expected = sklearn_metrics.log_loss(label, blurred) - sklearn_metrics.log_loss(
        label, predictions
    )
    assert worse.difference == pytest.approx(expected)
    assert 0 < worse.low < worse.difference < worse.high


def test_the_draws_are_bounded_and_the_same_each_time():
    assert resampling.resamples(10) == resampling.MOST_RESAMPLES
    assert resampling.resamples(10**9) == resampling.LEAST_RESAMPLES
    first, second = (next(iter(resampling.draws(100))) for _ in range(2))
    assert (first == second).all()
    assert first.sum() == 100
