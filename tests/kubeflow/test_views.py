from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics

from components import diagnostics
from kubeflow import views

RANDOM = np.random.default_rng(0)


def test_a_metric_that_is_no_number_is_told_as_a_text():
    told = views.numbers({"metrics": {"loss": 0.5, "auc": None, "x": float("nan")}})
    assert told == {"loss": 0.5, "auc": "undefined", "x": "undefined"}
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("rows", [2, 7, 60])
@pytest.mark.parametrize("distinct", [3, 1000])
def test_the_roc_curve_is_scikit_learns(rows, distinct):
    truth = np.arange(rows) % 2
    score = RANDOM.integers(0, distinct, rows) / distinct
    points = views.roc(score, truth)
    json.dumps(points, allow_nan=False)
    across, up, thresholds = metrics.roc_curve(truth, score, drop_intermediate=False)
    assert [one["falsePositiveRate"] for one in points] == pytest.approx(across)
    assert [one["recall"] for one in points] == pytest.approx(up)
    # Its first threshold is infinite, which JSON has not.
    assert [one["confidenceThreshold"] for one in points[1:]] == pytest.approx(thresholds[1:])
    assert points[0]["confidenceThreshold"] > score.max()


def test_a_long_roc_curve_is_cut_and_keeps_its_ends_and_its_area():
    truth = RANDOM.integers(0, 2, 5000)
    score = truth * 0.3 + RANDOM.random(5000)
    points = views.roc(score, truth)
    assert len(points) <= views.CURVE_POINTS + 1
    across = [one["falsePositiveRate"] for one in points]
    up = [one["recall"] for one in points]
    assert (across[0], up[0], across[-1], up[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert metrics.auc(across, up) == pytest.approx(metrics.roc_auc_score(truth, score), abs=2e-3)


def test_one_class_alone_has_no_roc_curve():
    assert views.roc(np.array([0.9, 0.8]), np.array([1, 1])) == []


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_kfp_is_told_the_confusion_matrix_of_the_evaluation(tmp_path, task):
    classes = ["no", "yes"] if task == "binary" else ["a", "b", "c"]
    truth = np.arange(30) % len(classes)
    if task == "binary":
        predictions = RANDOM.random((30, 1))
        chosen = (predictions[:, 0] > 0.5).astype(int)
    else:
        predictions = RANDOM.dirichlet(np.ones(3), 30)
        chosen = predictions.argmax(axis=1)
    evaluation, run = tmp_path / "evaluation", tmp_path / "model_run"
    evaluation.mkdir()
    run.mkdir()
    found = {"metrics": {"loss": 0.5}}
    if task != "regression":
        found["confusion"] = diagnostics.confusion(chosen, truth, tuple(classes))
    (evaluation / "evaluation.json").write_text(json.dumps(found))
    label = {"task": task, "classes": classes}
    (run / "features.json").write_text(json.dumps({"label": label}))
    np.save(run / "label.npy", truth)
    np.save(run / "predictions.npy", predictions)
    spec = {
        "views": ["classification", "metrics"],
        "inputs": {"in_trainer_model_run": ["Trainer", "model_run"]},
        "outputs": {"evaluation": "evaluation"},
    }
    places = {
        "in_trainer_model_run": run, "out_evaluation": evaluation,
        "view_metrics": tmp_path / "numbers", "view_classification": tmp_path / "classes",
    }  # fmt: skip
    given = {name: {"path": str(path)} for name, path in places.items()}
    told = views.write(spec, given, tmp_path)["view_classification"]
    assert json.loads((tmp_path / "classes").read_text()) == told
    if task == "regression":
        assert told == {}
        return
    matrix = told["confusionMatrix"]
    assert [one["displayName"] for one in matrix["annotationSpecs"]] == classes
    right = metrics.confusion_matrix(truth, chosen)
    assert [one["row"] for one in matrix["rows"]] == right.tolist()
    assert ("confidenceMetrics" in told) == (task == "binary")
    if task == "binary":
        up = [one["recall"] for one in told["confidenceMetrics"]]
        across = [one["falsePositiveRate"] for one in told["confidenceMetrics"]]
        area = metrics.roc_auc_score(truth, predictions[:, 0])
        assert metrics.auc(across, up) == pytest.approx(area)
