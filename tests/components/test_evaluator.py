"""Metrics equal scikit-learn's, and only a model better than the baseline is blessed."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics
from tfx.types import standard_artifacts

from components.evaluator import FEW_UPDATES, Evaluator_Executor, bless, evaluate, what_helps
from trainer.errors import NotFinite, TrainingError
from trainer.journal import read
from trainer.settings import Features, LabelFeature, to_json

ROWS = 500


def write_run(folder: Path, feature: LabelFeature, predictions, label) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    features = to_json(Features(numbers=(), categories=(), label=feature))
    (folder / "features.json").write_text(json.dumps(features))
    (folder / "result.json").write_text(json.dumps({"predictions": "predictions.npy"}))
    np.save(folder / "predictions.npy", np.asarray(predictions, np.float32))
    np.save(folder / "label.npy", label)
    return folder


@pytest.fixture
def binary(tmp_path):
    """500 rows of two classes; probabilities lean towards the right one."""
    random = np.random.default_rng(7)
    label = (random.random(ROWS) < 0.3).astype(np.int32)
    probability = np.clip(0.3 + 0.3 * (label - 0.3) + 0.2 * random.normal(size=ROWS), 0.01, 0.99)
    feature = LabelFeature("late", "binary", "int", classes=("0", "1"), frequencies=(0.7, 0.3))
    probability = probability.astype(np.float32)
    return write_run(tmp_path / "run", feature, probability[:, None], label), probability, label


def test_binary_metrics_equal_those_of_scikit_learn(binary):
    run, probability, label = binary
    found = evaluate(run)
    expected = {
        "loss": sklearn_metrics.log_loss(label, probability.astype(np.float64)),
        "auc": sklearn_metrics.roc_auc_score(label, probability),
        "average_precision": sklearn_metrics.average_precision_score(label, probability),
        "accuracy": sklearn_metrics.accuracy_score(label, probability > 0.5),
    }
    assert (
        expected.items()
        <= {name: pytest.approx(value, rel=1e-6) for name, value in found.metrics.items()}.items()
    )
    constant = np.full(ROWS, 0.3)
    assert found.baseline["loss"] == pytest.approx(sklearn_metrics.log_loss(label, constant))
    assert found.baseline["auc"] == pytest.approx(0.5)
    assert found.blessed
    assert found.reason.startswith("loss 0.")
    assert " is below the baseline's 0." in found.reason
    assert not found.remedy


def test_multiclass_metrics_equal_those_of_scikit_learn(tmp_path):
    random = np.random.default_rng(7)
    label = random.integers(0, 3, ROWS).astype(np.int32)
    weights = random.random((ROWS, 3)) + np.eye(3)[label]
    predictions = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    feature = LabelFeature("species", "multiclass", "string", ("a", "b", "c"), (0.2, 0.3, 0.5))
    found = evaluate(write_run(tmp_path, feature, predictions, label))
    probability = predictions.astype(np.float64)
    probability /= probability.sum(axis=1, keepdims=True)
    # 1e-6: float32 probabilities sum to one only within rounding.
    assert found.metrics["loss"] == pytest.approx(
        sklearn_metrics.log_loss(label, probability), rel=1e-6
    )
    assert found.metrics["accuracy"] == sklearn_metrics.accuracy_score(
        label, predictions.argmax(axis=1)
    )
    shares = np.tile([0.2, 0.3, 0.5], (ROWS, 1))
    assert found.baseline["loss"] == pytest.approx(sklearn_metrics.log_loss(label, shares))


def test_regression_metrics_equal_those_of_scikit_learn(tmp_path):
    random = np.random.default_rng(7)
    label = random.normal(4000, 800, ROWS)
    predictions = (label + random.normal(0, 300, ROWS)).astype(np.float32)
    feature = LabelFeature("mass", "regression", "float", mean=4010.0, scale=790.0)
    found = evaluate(write_run(tmp_path, feature, predictions[:, None], label))
    squared = sklearn_metrics.mean_squared_error(label, predictions)
    assert found.metrics["rmse"] == pytest.approx(math.sqrt(squared))
    assert found.metrics["mae"] == pytest.approx(
        sklearn_metrics.mean_absolute_error(label, predictions)
    )
    assert found.metrics["r2"] == pytest.approx(sklearn_metrics.r2_score(label, predictions))
    constant = np.full(ROWS, 4010.0)
    assert found.baseline["rmse"] == pytest.approx(
        math.sqrt(sklearn_metrics.mean_squared_error(label, constant))
    )


@pytest.mark.parametrize(
    ("loss", "baseline", "blessed"),
    [
        (0.4, 0.5, True), (0.5, 0.5, False), (0.6, 0.5, False), (None, 0.5, False),
        (math.nan, 0.5, False), (0.4, None, False), (0.4, math.nan, False),
        (math.inf, math.inf, False), (-math.inf, 0.5, False), (0.4, math.inf, False),
    ],
)  # fmt: skip
def test_only_a_finite_loss_strictly_below_the_baseline_is_blessed(loss, baseline, blessed):
    found, reason = bless(loss, baseline)
    assert found is blessed
    assert reason


@pytest.mark.parametrize(
    ("loss", "baseline", "reason"),
    [
        (0.51823, 0.0340021, "loss 0.5182 is not below the baseline's 0.034"),
        (0.5, 0.5, "loss 0.5 is not below the baseline's 0.5"),
        (0.4, 0.50001, "loss 0.4 is below the baseline's 0.5"),
        (0.5 + 2**-20, 0.5, "loss 0.50000095367431641 is not below the baseline's 0.5"),
    ],
)
def test_the_reason_names_both_losses_with_the_digits_that_tell_them_apart(loss, baseline, reason):
    assert bless(loss, baseline)[1] == reason


def test_few_updates_are_the_first_thing_to_mend():
    said = "training made {}: raise training.epochs or lower training.global_batch"
    assert what_helps(0.5, updates=4) == said.format("4 weight updates")
    assert what_helps(0.5, updates=1) == said.format("1 weight update")
    for updates in (FEW_UPDATES, None):
        assert "training.learning_rate" in what_helps(0.5, updates=updates)
    for loss in (None, math.nan):
        assert "the label in the eval split" in what_helps(loss, updates=4)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_predictions_that_are_not_finite_fail_with_exit_4_and_give_no_verdict(binary, broken):
    run, probability, _ = binary
    probability[3] = broken
    np.save(run / "predictions.npy", probability[:, None])
    with pytest.raises(NotFinite, match="1 of 500 predictions are NaN or infinite") as caught:
        evaluate(run)
    assert caught.value.exit_code == 4


def test_an_auc_of_one_class_is_none_and_told(tmp_path):
    feature = LabelFeature("late", "binary", "int", classes=("0", "1"), frequencies=(0.7, 0.3))
    found = evaluate(write_run(tmp_path, feature, np.full((5, 1), 0.2), np.zeros(5, np.int32)))
    assert found.metrics["auc"] is None
    assert any("auc is not defined" in note for note in found.notes)


def test_predictions_and_labels_of_unlike_number_are_refused(binary):
    run, _, label = binary
    np.save(run / "label.npy", label[:-1])
    with pytest.raises(TrainingError, match="500 predictions and 499 labels"):
        evaluate(run)


@pytest.mark.parametrize("name", ["result.json", "predictions.npy", "label.npy", "features.json"])
def test_a_damaged_or_missing_file_is_named_as_what_to_run_again(binary, name):
    run, *_ = binary
    for damage in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        damage(run / name)
        with pytest.raises(TrainingError, match="--no-cache Trainer"):
            evaluate(run)


def run_component(tmp_path: Path, run: Path) -> dict[str, list]:
    inputs = {
        "examples": [standard_artifacts.Examples()],
        "model": [standard_artifacts.Model()],
        "model_run": [standard_artifacts.ModelRun()],
    }
    inputs["model"][0].uri, inputs["model"][0].id = str(tmp_path / "model"), 12
    inputs["model_run"][0].uri = str(run)
    outputs = {
        "evaluation": [standard_artifacts.ModelEvaluation()],
        "blessing": [standard_artifacts.ModelBlessing()],
    }
    for name, artifacts in outputs.items():
        artifacts[0].uri = str(tmp_path / name)
    Evaluator_Executor().Do(inputs, outputs, {"settings": "{}", "fingerprint": "{}"})
    return outputs


def refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize("blessed", [True, False])
def test_the_component_writes_tfx_layout_and_one_event(tmp_path, binary, monkeypatch, blessed):
    run, probability, _ = binary
    if not blessed:
        np.save(run / "predictions.npy", (1 - probability)[:, None])
        training = {"steps": 1005, "skipped_steps": 1000}
        result = {"predictions": "predictions.npy", "training": training}
        (run / "result.json").write_text(json.dumps(result))
    monkeypatch.setenv("HEADRACE_EVENTS", str(tmp_path / "events.jsonl"))
    outputs = run_component(tmp_path, run)
    artifact = outputs["blessing"][0]
    assert [path.name for path in (tmp_path / "blessing").iterdir()] == [
        "BLESSED" if blessed else "NOT_BLESSED"
    ]
    assert artifact.get_int_custom_property("blessed") == int(blessed)
    assert artifact.get_int_custom_property("current_model_id") == 12
    text = (tmp_path / "evaluation" / "evaluation.json").read_text()
    written = json.loads(text, parse_constant=refuse)
    events, _ = read(tmp_path / "events.jsonl")
    assert [event["event"] for event in events] == ["metrics"]
    for name in ("metrics", "baseline", "blessed"):
        assert events[0][name] == written[name]
    assert written["blessed"] is blessed
    assert written["reason"] == artifact.get_string_custom_property("blessing_message")
    assert written["remedy"] == artifact.get_string_custom_property("blessing_remedy")
    assert written["remedy"].startswith("" if blessed else "training made 5 weight updates: ")
    assert bool(written["remedy"]) is not blessed
