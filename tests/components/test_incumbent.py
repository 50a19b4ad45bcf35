"""The gate against the last pushed model: a worse model is refused, a better one is not."""

import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from components import incumbent
from components.evaluator import evaluate
from components.incumbent import Incomparable, Incumbent
from components.resampling import compare, row_losses
from trainer.settings import Features, LabelFeature, to_json

ROWS = 900
THREE = LabelFeature("kind", "multiclass", "string", ("a", "b", "c"), (0.3, 0.3, 0.4))
NUMBER = LabelFeature("mass", "regression", "float", mean=0.0, scale=2.0)


class Linear(tf.Module):
    """Answers as a pushed model does: of classes, softmax of x times a row of weights."""

    def __init__(self, weights, classes):
        super().__init__()
        self.kernel, self.classes = tf.Variable(weights), classes

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float64, name="x")])
    def columns(self, x):
        outputs = tf.cast(x, tf.float32)[:, None] * self.kernel[None]
        if not self.classes:
            return {"prediction": outputs[:, 0]}
        names = tf.tile(tf.constant(self.classes)[None], [tf.shape(x)[0], 1])
        return {"probabilities": tf.nn.softmax(outputs), "classes": names}


def push(folder, weights, classes, *, task, label):
    module = Linear(np.asarray(weights, np.float32), list(classes))
    tf.saved_model.save(module, str(folder), signatures={"columns": module.columns})
    (folder / "assets").mkdir(exist_ok=True)
    columns = [{"column": "x", "key": "x", "kind": "float"}]
    described = {"columns": columns, "label": {"column": label, "task": task}}
    (folder / "assets" / "columns.json").write_text(json.dumps(described))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Version 2 of three classes, of which the last one is not known to the new model's rows."""
    folder = tmp_path_factory.mktemp("models")
    push(folder / "2", [-2.0, 0.0, 2.0], "abd", task="multiclass", label="kind")
    (folder / "10").mkdir()  # a number without a model
    return folder


@pytest.fixture
def rows():
    random = np.random.default_rng(7)
    x = random.normal(size=ROWS)
    label = random.integers(0, 3, ROWS).astype(np.int32)
    return x, label


def batches(x, label, classes=("a", "b", "c")):
    for start in range(0, len(x), 250):
        part = slice(start, start + 250)
        names = [[classes[at].encode()] for at in label[part]]
        # A row without a label is not evaluated.
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([*([one] for one in x[part]), [0.5]], pa.large_list(pa.float64())),
                pa.array([*names, []], pa.large_list(pa.large_binary())),
            ],
            ["x", "kind"],
        )


def test_the_last_model_s_loss_is_that_of_a_loop_over_the_rows(models, rows):
    x, label = rows
    predictions = np.full((ROWS, 3), 1 / 3)
    found = incumbent.compare(
        models, batches(x, label), predictions, label, label_feature=THREE, margin=0.01
    )
    logits = np.outer(x.astype(np.float32), [-2.0, 0.0, 2.0])
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    least = np.finfo(np.float32).eps
    # Class c is unknown to version 2, whose third class is d: it gives c no chance.
    losses = [-np.log(max(shares[at, one], least)) if one < 2 else -np.log(least)
              for at, one in enumerate(label)]  # fmt: skip
    assert found.version == "2"
    # float32 predictions.
    assert found.last == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.loss == pytest.approx(np.log(3))
    assert found.margin == pytest.approx(0.01 * np.mean(losses), rel=1e-5)
    assert not found.is_worse


def test_worse_is_above_the_margin_and_no_chance(rows):
    _, label = rows
    random = np.random.default_rng(1)
    good = np.full((ROWS, 3), 0.1)
    good[np.arange(ROWS), label] = 0.8
    losses = row_losses(good, label, THREE)

    def verdict(others, margin):
        return Incumbent("1", 0.0, 0.0, compare(losses + others, losses), margin).is_worse

    noise = random.normal(size=ROWS)
    noise -= noise.mean()
    assert verdict(np.full(ROWS, 0.02), 0.01)
    assert not verdict(np.full(ROWS, 0.02), 0.03)
    assert not verdict(np.full(ROWS, -0.5), 0.01)
    # 0.02 with a standard error of 1/30: above the margin, but maybe by chance.
    assert not verdict(0.02 + noise, 0.01)
    assert verdict(0.2 + noise, 0.01)


def write_run(folder, feature, predictions, label):
    folder.mkdir(exist_ok=True)
    features = to_json(Features(numbers=(), categories=(), label=feature))
    (folder / "features.json").write_text(json.dumps(features))
    (folder / "result.json").write_text(json.dumps({"predictions": "predictions.npy"}))
    np.save(folder / "predictions.npy", np.asarray(predictions, np.float32))
    np.save(folder / "label.npy", label)
    return folder


def test_a_worse_model_is_not_blessed_and_the_reason_names_both(
    tmp_path, models, rows, monkeypatch
):
    x = -np.abs(rows[0])
    label = np.zeros(ROWS, np.int32)  # of such rows version 2 knows well that they are a
    monkeypatch.setattr("components.statistics.read_examples", lambda *_: batches(x, label))
    weak, strong = np.full((2, ROWS, 3), 0.05)
    weak[np.arange(ROWS), label], strong[np.arange(ROWS), label] = 0.08, 0.999
    weak /= weak.sum(axis=1, keepdims=True)
    strong /= strong.sum(axis=1, keepdims=True)
    worse = evaluate(write_run(tmp_path / "a", THREE, weak, label), models=models, margin=0.01)
    better = evaluate(write_run(tmp_path / "b", THREE, strong, label), models=models, margin=0.01)
    alone = evaluate(write_run(tmp_path / "a", THREE, weak, label))
    assert alone.blessed
    assert not worse.blessed
    assert "of version 2 on the same 900 rows" in worse.reason
    assert "runs diff" in worse.remedy
    assert worse.incumbent["is_worse"]
    assert better.blessed
    assert better.reason.startswith("loss ")
    assert "is not worse than" in better.reason
    assert better.incumbent["difference"] < 0


def test_what_cannot_be_compared_is_told_and_no_obstacle(tmp_path, models, rows, monkeypatch):
    x, label = rows
    monkeypatch.setattr("components.statistics.read_examples", lambda *_: batches(x, label))
    with pytest.raises(Incomparable, match="predicts kind, and this one mass"):
        incumbent.compare(models, [], np.zeros((ROWS, 1)), x, label_feature=NUMBER, margin=0.01)
    broken = tmp_path / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "1" / "saved_model.pb").write_bytes(b"")
    strong = np.full((ROWS, 3), 0.05)
    strong[np.arange(ROWS), label] = 0.9
    run = write_run(tmp_path / "c", THREE, strong, label)
    found = evaluate(run, models=broken, margin=0.01)
    assert found.blessed
    assert any("the last pushed model was not compared" in one for one in found.notes)
    assert evaluate(run, models=tmp_path / "none", margin=0.01).incumbent is None


def test_a_quantity_is_compared_in_its_scale(tmp_path, rows):
    x, _ = rows
    push(tmp_path / "1", [1.5], (), task="regression", label="mass")
    label = 2 * x

    def examples():
        yield pa.RecordBatch.from_arrays(
            [pa.array([[one] for one in values], pa.large_list(pa.float64()))
             for values in (x, label)], ["x", "mass"],
        )  # fmt: skip

    found = incumbent.compare(
        tmp_path, examples(), (1.9 * x)[:, None], label, label_feature=NUMBER, margin=0.01
    )
    assert found.last == pytest.approx(np.mean((0.5 * x / 2) ** 2), rel=1e-5)
    assert not found.is_worse
