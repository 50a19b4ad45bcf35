"""Confusion, calibration, thresholds and residuals equal scikit-learn's on the same predictions."""

import numpy as np
import pytest
from sklearn import calibration as sklearn_calibration
from sklearn import metrics as sklearn_metrics

from components import diagnostics
from trainer.settings import LabelFeature

ROWS = 600


@pytest.fixture
def binary():
    random = np.random.default_rng(7)
    label = (random.random(ROWS) < 0.3).astype(np.int32)
    probability = np.clip(0.3 + 0.3 * (label - 0.3) + 0.2 * random.normal(size=ROWS), 0.01, 0.99)
    feature = LabelFeature("late", "binary", "int", ("0", "1"), (0.7, 0.3))
    return probability, label, diagnostics.of(probability[:, None], label, feature)


def test_the_confusion_matrix_is_scikit_learn_s(binary):
    probability, label, found = binary
    expected = sklearn_metrics.confusion_matrix(label, probability > 0.5)
    assert found["confusion"] == {"classes": ["0", "1"], "rows": expected.tolist()}


def test_the_calibration_curve_is_scikit_learn_s(binary):
    probability, label, found = binary
    share, confidence = sklearn_calibration.calibration_curve(label, probability, n_bins=10)
    assert [one["share"] for one in found["calibration"]] == pytest.approx(share.tolist())
    assert [one["confidence"] for one in found["calibration"]] == pytest.approx(confidence.tolist())
    assert sum(one["rows"] for one in found["calibration"]) == ROWS


def test_the_threshold_table_is_scikit_learn_s(binary):
    probability, label, found = binary
    for row in found["thresholds"]:
        says = probability > row["threshold"]
        precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(
            label, says, average="binary", zero_division=np.nan
        )
        assert row["recall"] == pytest.approx(recall)
        assert row["share"] == pytest.approx(says.mean())
        assert row["false_positive_rate"] == pytest.approx(says[label == 0].mean())
        if says.any():
            assert row["precision"] == pytest.approx(precision)
            assert row["f1"] == pytest.approx(f1)
        else:
            assert row["precision"] is None


def test_the_roc_curve_lies_on_scikit_learn_s(binary):
    probability, label, found = binary
    false, true, _ = sklearn_metrics.roc_curve(label, probability, drop_intermediate=False)
    points = {(round(x, 9), round(y, 9)) for x, y in zip(false, true, strict=True)}
    assert {(round(x, 9), round(y, 9)) for x, y in found["roc"]} <= points
    assert found["roc"][0] == [0.0, 0.0]
    assert found["roc"][-1] == [1.0, 1.0]
    x, y = np.array(found["roc"]).T
    # At most 200 of 600 points: the area between them is off by less than a point's step.
    assert sklearn_metrics.auc(x, y) == pytest.approx(
        sklearn_metrics.roc_auc_score(label, probability), abs=2 / 200
    )


def test_several_classes_have_a_matrix_and_say_how_sure_they_are():
    random = np.random.default_rng(7)
    label = random.integers(0, 3, ROWS).astype(np.int32)
    weights = random.random((ROWS, 3)) + np.eye(3)[label] * 0.5
    predictions = weights / weights.sum(axis=1, keepdims=True)
    feature = LabelFeature("kind", "multiclass", "string", ("a", "b", "c"), (0.3, 0.3, 0.4))
    found = diagnostics.of(predictions, label, feature)
    expected = sklearn_metrics.confusion_matrix(label, predictions.argmax(axis=1))
    assert found["confusion"]["rows"] == expected.tolist()
    sure = predictions.max(axis=1) > 0.5
    (row,) = [one for one in found["thresholds"] if one["threshold"] == 0.5]
    assert row["share"] == pytest.approx(sure.mean())
    assert row["accuracy"] == pytest.approx(
        sklearn_metrics.accuracy_score(label[sure], predictions[sure].argmax(axis=1))
    )


def test_of_very_many_classes_the_rare_ones_are_together():
    random = np.random.default_rng(7)
    classes = tuple(f"c{at:03}" for at in range(120))
    label = np.minimum(random.geometric(0.05, ROWS) - 1, 119)
    says = np.where(random.random(ROWS) < 0.8, label, random.integers(0, 120, ROWS))
    found = diagnostics.confusion(says, label, classes)
    assert len(found["classes"]) == diagnostics.MOST_CLASSES + 1
    assert found["classes"][-1] == diagnostics.OTHERS
    rows = np.array(found["rows"])
    assert rows.sum() == ROWS
    for name, row in zip(found["classes"][:-1], rows, strict=False):
        assert row.sum() == (label == classes.index(name)).sum()


def test_residuals_are_label_less_prediction():
    random = np.random.default_rng(7)
    label = random.normal(4000, 700, ROWS)
    predicted = label + random.normal(20, 200, ROWS)
    feature = LabelFeature("mass", "regression", "float", mean=4000.0, scale=700.0)
    found = diagnostics.of(predicted[:, None], label, feature)["residuals"]
    assert found["mean"] == pytest.approx((label - predicted).mean())
    assert found["quantiles"]["0.5"] == pytest.approx(np.median(label - predicted))
    assert sum(rows for _, _, rows in found["histogram"]) == ROWS
    sizes = [one["mean_size"] * one["rows"] for one in found["by_prediction"]]
    assert sum(sizes) / ROWS == pytest.approx(sklearn_metrics.mean_absolute_error(label, predicted))


def test_a_language_model_and_no_rows_show_nothing():
    feature = LabelFeature("text", "causal-lm", "string")
    assert diagnostics.of(np.ones((3, 2)), np.ones((3, 4)), feature) == {}
    feature = LabelFeature("late", "binary", "int", ("0", "1"), (0.7, 0.3))
    assert diagnostics.of(np.zeros((0, 1)), np.zeros(0), feature) == {}
