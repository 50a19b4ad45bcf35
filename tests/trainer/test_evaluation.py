"""Metrics against scikit-learn, and predictions of every row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from trainer.errors import NotFinite
from trainer.evaluation import METRICS, baseline, metrics, notes, predict, predictor
from trainer.models.tabular import build
from trainer.settings import (
    CategoryFeature,
    Features,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    Techniques,
)

BINARY = LabelFeature("late", "binary", "int", ("no", "yes"), (0.75, 0.25))
THREE = LabelFeature("kind", "multiclass", "string", ("a", "b", "c"), (0.5, 0.3, 0.2))
REGRESSION = LabelFeature("delay", "regression", "float", mean=3.0, scale=2.0)
FEATURES = Features(
    (NumberFeature("x", "float", (0.0, 1.0, 2.0), 1.0, 1.0),),
    (CategoryFeature("c", ("a", "b")),),
    BINARY,
)


class SplitOfRows:
    """A split whose rows are told apart by their number."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.asked: list[int] = []

    def inputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        self.asked.append(len(rows))
        return {
            "number_values": (rows / 4)[:, None].astype(np.float64),
            "number_present": np.ones((len(rows), 1), bool),
            "category_ids": (rows % 4)[:, None].astype(np.int32),
        }


def draw(seed: int, rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities with many ties, float32, and a label with every class."""
    random = np.random.default_rng(seed)
    logits = random.integers(-3, 4, size=(rows, classes)) / 2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    label = random.integers(0, classes, rows)
    label[:classes] = np.arange(classes)
    return probabilities.astype(np.float32), label.astype(np.int32)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(2, 60))
def test_binary_metrics_are_scikit_learns(seed: int, rows: int) -> None:
    both, label = draw(seed, rows, 2)
    scores = both[:, 1]
    found = metrics(scores[:, None], label, label_feature=BINARY)
    assert tuple(found) == METRICS["binary"]
    right = {
        "loss": sk.log_loss(label, scores.astype(np.float64)),
        "auc": sk.roc_auc_score(label, scores),
        "average_precision": sk.average_precision_score(label, scores),
        "accuracy": sk.accuracy_score(label, scores > 0.5),
    }
    for name, value in right.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(3, 60))
def test_multiclass_metrics_are_scikit_learns(seed: int, rows: int) -> None:
    probabilities, label = draw(seed, rows, 3)
    probabilities = probabilities.astype(np.float64)
    # scikit-learn refuses rows that do not add up to 1 within float64.
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    found = metrics(probabilities, label, label_feature=THREE)
    assert tuple(found) == METRICS["multiclass"]
    assert found["loss"] == pytest.approx(sk.log_loss(label, probabilities), rel=1e-9)
    assert found["auc"] == pytest.approx(
        sk.roc_auc_score(label, probabilities, multi_class="ovr", average="macro"), rel=1e-9
    )
    assert found["accuracy"] == pytest.approx(
        sk.accuracy_score(label, probabilities.argmax(axis=1))
    )


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(2, 60))
def test_regression_metrics_are_scikit_learns(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    label, values = random.normal(3, 2, (2, rows))
    found = metrics(values[:, None], label, label_feature=REGRESSION)
    assert tuple(found) == METRICS["regression"]
    assert found["rmse"] == pytest.approx(sk.mean_squared_error(label, values) ** 0.5)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(label, values))
    assert found["r2"] == pytest.approx(sk.r2_score(label, values))
    assert found["loss"] == pytest.approx(sk.mean_squared_error(label / 2, values / 2))


def test_binary_calibration_error_is_that_of_scikit_learns_curve() -> None:
    random = np.random.default_rng(3)
    scores = random.uniform(size=500)
    label = (random.uniform(size=500) < scores**2).astype(np.int32)
    share, confidence = calibration_curve(label, scores, n_bins=10, strategy="uniform")
    sizes = np.histogram(scores, bins=10, range=(0, 1))[0]
    right = np.sum(np.abs(share - confidence) * sizes) / 500
    found = metrics(scores[:, None], label, label_feature=BINARY)
    assert found["calibration_error"] == pytest.approx(right, rel=1e-9)


def test_multiclass_calibration_error_is_of_the_likeliest_class() -> None:
    # Two bins: 0.6 twice, right once; 0.9 once, right. (|0.6 - 0.5| * 2 + |0.9 - 1|) / 3.
    says = np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.05, 0.05, 0.9]])
    found = metrics(says, np.array([0, 2, 2]), label_feature=THREE)
    assert found["calibration_error"] == pytest.approx(0.1)


def test_a_sure_and_wrong_prediction_has_a_finite_loss() -> None:
    found = metrics(np.array([[1.0], [0.0]], np.float32), np.array([0, 1]), label_feature=BINARY)
    assert found["loss"] == pytest.approx(-np.log(2.0**-23))


def test_one_class_leaves_metrics_undefined_and_says_so() -> None:
    says = np.array([[0.2], [0.6]], np.float32)
    found = metrics(says, np.array([0, 0]), label_feature=BINARY)
    assert [name for name, value in found.items() if value is None] == ["auc", "average_precision"]
    said = notes(np.array([0, 0]), label_feature=BINARY)
    assert said[0] == 'auc is not defined: the split has one class only, "no"'
    assert "average_precision" in said[1]
    found = metrics(says, np.array([1, 1]), label_feature=BINARY)
    assert found["average_precision"] == pytest.approx(1.0)
    assert len(notes(np.array([1, 1]), label_feature=BINARY)) == 1


def test_a_class_that_the_split_lacks_is_left_out_of_the_mean_and_named() -> None:
    says, _ = draw(1, 20, 3)
    label = np.arange(20) % 2
    right = np.mean([sk.roc_auc_score(label == one, says[:, one]) for one in (0, 1)])
    assert metrics(says, label, label_feature=THREE)["auc"] == pytest.approx(right)
    assert notes(label, label_feature=THREE) == [
        'auc leaves out classes that the split does not have: "c"'
    ]


def test_a_constant_label_has_no_r2() -> None:
    found = metrics(np.array([[1.0], [2.0]]), np.array([5.0, 5.0]), label_feature=REGRESSION)
    assert found["r2"] is None
    assert notes(np.array([5.0, 5.0]), label_feature=REGRESSION) == [
        "r2 is not defined: all labels are 5"
    ]


@pytest.mark.parametrize("feature", [BINARY, THREE, REGRESSION])
def test_a_split_with_no_rows_has_no_metrics(feature: LabelFeature) -> None:
    empty = np.zeros((0, 3 if feature is THREE else 1))
    found = metrics(empty, np.zeros(0), label_feature=feature)
    assert found == dict.fromkeys(METRICS[feature.task])
    assert baseline(feature, np.zeros(0)) == found
    assert notes(np.zeros(0), label_feature=feature) == [
        "no metric is defined: the split has no rows"
    ]


def test_predictions_that_are_not_numbers_are_refused_and_counted() -> None:
    says = np.array([[0.5], [np.nan], [np.inf]])
    with pytest.raises(NotFinite, match="2 of 3 predictions"):
        metrics(says, np.array([0, 1, 1]), label_feature=BINARY)


def test_the_binary_baseline_says_the_frequencies_of_train() -> None:
    found = baseline(BINARY, np.array([0, 0, 0, 1]))
    assert found["loss"] == pytest.approx(-(3 * np.log(0.75) + np.log(0.25)) / 4)
    assert found["auc"] == pytest.approx(0.5)
    assert found["average_precision"] == pytest.approx(0.25)
    assert found["accuracy"] == pytest.approx(0.75)
    assert found["calibration_error"] == pytest.approx(0)


def test_the_multiclass_and_regression_baselines() -> None:
    found = baseline(THREE, np.array([0, 1, 2, 0]))
    assert found["auc"] == pytest.approx(0.5)
    assert found["accuracy"] == pytest.approx(0.5)
    found = baseline(REGRESSION, np.array([1.0, 5.0]))
    assert found["rmse"] == pytest.approx(2)
    assert found["r2"] == pytest.approx(0)


@pytest.mark.parametrize("rows", [1, 5, 8, 11])
def test_every_row_is_predicted_once_and_in_order(rows: int) -> None:
    model = build(
        ModelSettings(layers=2, width=8, heads=2),
        FEATURES,
        Techniques(4),
        policy="float32",
        seed=1,
    )
    split = SplitOfRows(rows)
    run = predictor(model, FEATURES)
    found = predict(model, split, FEATURES, batch=4, run=run)
    assert found.shape == (rows, 1)
    assert found.dtype == np.float32
    assert set(split.asked) == {4}
    whole = predict(model, SplitOfRows(rows), FEATURES, batch=rows)
    np.testing.assert_allclose(found, whole, rtol=1e-5)
    assert run.experimental_get_tracing_count() == 1


def test_no_rows_give_no_predictions() -> None:
    model = build(
        ModelSettings(layers=1, width=8, heads=2),
        FEATURES,
        Techniques(4),
        policy="float32",
        seed=1,
    )
    assert predict(model, SplitOfRows(0), FEATURES, batch=4).shape == (0, 1)


LANGUAGE = LabelFeature("text", "causal-lm", "string")


def test_a_language_model_s_metrics_are_over_all_tokens_not_means_of_windows() -> None:
    # tokens, bytes of text, and what the unigram made of each window: loss, right ones
    label = np.asarray([[8, 7, 16.0, 2], [2, 1, 6.0, 1]])
    sums = np.asarray([[8.0, 4], [6.0, 0]], np.float32)
    found = metrics(sums, label, label_feature=LANGUAGE)
    assert tuple(found) == METRICS["causal-lm"]
    expected = {
        "loss": 14 / 10, "bits_per_byte": 14 / np.log(2) / 8, "perplexity": np.exp(1.4),
        "accuracy": 0.4,
    }  # fmt: skip
    assert found == pytest.approx(expected)
    trivial = baseline(LANGUAGE, label)
    assert trivial["loss"] == pytest.approx(2.2)
    assert trivial["accuracy"] == pytest.approx(0.3)
    assert notes(label, label_feature=LANGUAGE) == []


def test_words_have_no_bits_per_byte_and_no_window_no_metric() -> None:
    label = np.asarray([[4, 0, 4.0, 0]])
    assert metrics(np.asarray([[4.0, 1]]), label, label_feature=LANGUAGE)["bits_per_byte"] is None
    assert "words" in notes(label, label_feature=LANGUAGE)[0]
    nothing = metrics(np.zeros((0, 2)), np.zeros((0, 4)), label_feature=LANGUAGE)
    assert set(nothing.values()) == {None}
    assert metrics(np.asarray([[1e6, 0]]), label, label_feature=LANGUAGE)["perplexity"] > 1e300
    with pytest.raises(NotFinite):
        metrics(np.asarray([[np.nan, 1]]), label, label_feature=LANGUAGE)
