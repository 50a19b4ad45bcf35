"""The exported model gives what the evaluation gave, in a process with TensorFlow alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import TrainingError
from trainer.evaluation import predict
from trainer.export import column_keys, export
from trainer.models.tabular import build
from trainer.settings import (
    CategoryFeature,
    Features,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    Techniques,
)

TINY = ModelSettings(layers=2, width=8, heads=2)
# The columns of the case data-8, and names that other parts of TensorFlow or Python take.
NUMBERS = ("concave points_mean", "length (cm)", "größe", "1st", "x/y", "x y", "class", "self")
TEXTS = ("a,b", "_lead", "x:y", "X_Y", "x_y", "日本")
KNOWN = ("UA", "größe", "B6")
LABELS = {
    "binary": LabelFeature("label", "binary", "int", ("-1", "1"), (0.5, 0.5)),
    "multiclass": LabelFeature("label", "multiclass", "string", ("a", "ö", "c"), (0.4, 0.3, 0.3)),
    "regression": LabelFeature("label", "regression", "float", mean=1.7e9, scale=50.0),
}
ROWS = 9

SERVE = """
import pathlib, sys
import numpy as np
import tensorflow as tf

def plain(value):
    return np.char.decode(value.astype(bytes), "utf-8") if value.dtype == object else value

for folder in map(pathlib.Path, sys.argv[1:]):
    model = tf.saved_model.load(str(folder / "model"))
    given = dict(np.load(folder / "given.npz", allow_pickle=True))
    examples = tf.constant(list(given.pop("examples")))
    columns = {name: tf.constant(list(one) if one.dtype == object else one)
               for name, one in given.items()}
    answers = {}
    for name, fed in (("serving_default", {"examples": examples}), ("columns", columns)):
        for output, value in model.signatures[name](**fed).items():
            answers[f"{name}/{output}"] = plain(value.numpy())
    np.savez(folder / "answers.npz", **answers)
taken = {name.split(".")[0] for name in sys.modules}
assert not taken & {"trainer", "components", "pipeline", "tfx"}, taken
"""


def features_of(task: str, numbers=NUMBERS, texts=TEXTS) -> Features:
    return Features(
        tuple(
            NumberFeature(name, "int" if place % 2 else "float", (0.0, 1.0, 3.0), 1.0, 1.0)
            for place, name in enumerate(numbers)
        ),
        tuple(CategoryFeature(name, KNOWN) for name in texts),
        LABELS[task],
    )


class Rows:
    """Raw rows with missing values and unknown texts, as each reader of them wants them."""

    def __init__(self, features: Features) -> None:
        random = np.random.default_rng(11)
        self.features, self.rows = features, ROWS
        numbers, texts = len(features.numbers), len(features.categories)
        # Whole and half numbers: the same in int64, float32 and float64.
        self.numbers = np.round(random.uniform(-1, 4, (ROWS, numbers)))
        for place, one in enumerate(features.numbers):
            self.numbers[:, place] += 0.5 * (one.kind == "float")
        self.numbers[random.uniform(size=self.numbers.shape) < 0.3] = np.nan
        choices = np.array([*KNOWN, "never seen", None], dtype=object)
        self.texts = choices[random.integers(0, len(choices), (ROWS, texts))]

    def inputs(self, rows: np.ndarray) -> Mapping[str, np.ndarray]:
        ids = {None: 0, "never seen": 1} | {text: 2 + place for place, text in enumerate(KNOWN)}
        is_there = ~np.isnan(self.numbers[rows])
        return {
            "number_values": np.where(is_there, self.numbers[rows], 0),
            "number_present": is_there,
            "category_ids": np.vectorize(ids.get, otypes=[np.int32])(self.texts[rows])
            if self.texts.size
            else np.zeros((len(rows), 0), np.int32),
        }

    def columns(self) -> dict[str, np.ndarray]:
        keys = column_keys(self.features)
        numbers = {
            keys[one.name]: self.numbers[:, place]
            for place, one in enumerate(self.features.numbers)
        }
        missing = np.array([b"\xff", b""] * ROWS, dtype=object)[:ROWS]
        texts = {}
        for place, one in enumerate(self.features.categories):
            given = [
                absent if text is None else text.encode()
                for text, absent in zip(self.texts[:, place], missing, strict=True)
            ]
            texts[keys[one.name]] = np.array(given, dtype=object)
        return numbers | texts

    def examples(self) -> list[bytes]:
        return [self._example(row) for row in range(ROWS)]

    def _example(self, row: int) -> bytes:
        example = tf.train.Example()
        for place, one in enumerate(self.features.numbers):
            self._fill_number(example, one, self.numbers[row, place], row)
        for place, one in enumerate(self.features.categories):
            text = self.texts[row, place]
            held = [] if text is None else [text.encode()]
            if held or row % 2:  # missing is told by no feature, or by one with no value
                example.features.feature[one.name].bytes_list.value.extend(held)
                example.features.feature[one.name].bytes_list.SetInParent()
        return example.SerializeToString()

    @staticmethod
    def _fill_number(example, one: NumberFeature, value: float, row: int) -> None:
        if np.isnan(value) and not row % 2:
            return
        feature = example.features.feature[one.name]
        held = feature.int64_list if one.kind == "int" else feature.float_list
        held.SetInParent()
        if not np.isnan(value):
            held.value.append(int(value) if one.kind == "int" else value)


def model_of(features: Features, policy: str = "float32"):
    return build(TINY, features, Techniques(4, recompute=2), policy=policy, seed=3)


def probabilities_of(predictions: np.ndarray) -> np.ndarray:
    if predictions.shape[1] > 1:
        return predictions
    return np.concatenate([1 - predictions, predictions], axis=1)


@pytest.fixture(scope="module")
def served_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a task: its model, what it was given, and what TensorFlow alone answered."""
    root = tmp_path_factory.mktemp("served")
    for task in LABELS:
        features = features_of(task)
        rows = Rows(features)
        export(model_of(features), features, root / task / "model")
        given = {"examples": np.array(rows.examples(), dtype=object), **rows.columns()}
        np.savez(root / task / "given.npz", **given)
    folders = [str(root / task) for task in LABELS]
    # In another folder, so that nothing of this repository can be imported.
    subprocess.run([sys.executable, "-c", SERVE, *folders], check=True, cwd=root)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("task", LABELS)
def test_the_served_model_predicts_what_the_evaluation_predicted(
    task: str, served_tasks: Path
) -> None:
    features = features_of(task)
    answers = np.load(served_tasks / task / "answers.npz")
    right = predict(model_of(features), Rows(features), features, batch=4)
    for signature in ("serving_default", "columns"):
        found = {name.split("/")[1]: answers[name] for name in answers if signature in name}
        if task == "regression":
            assert set(found) == {"prediction"}
            np.testing.assert_allclose(found["prediction"], right[:, 0], rtol=0, atol=1e-4)
            continue
        assert set(found) == {"probabilities", "classes", "prediction"}
        assert found["probabilities"].dtype == np.float32
        # 1e-6: float32 sums over another batch size.
        np.testing.assert_allclose(found["probabilities"], probabilities_of(right), atol=1e-6)
        classes = np.array(features.label.classes)
        assert found["classes"].tolist() == [classes.tolist()] * ROWS
        likeliest = classes[probabilities_of(right).argmax(axis=1)]
        assert found["prediction"].tolist() == likeliest.tolist()


@pytest.mark.parametrize(("numbers", "texts"), [(("x",), ()), ((), ("t",)), (NUMBERS[:2], ())])
def test_models_of_one_kind_of_column_are_exported_too(numbers, texts, tmp_path: Path) -> None:
    features = features_of("binary", numbers, texts)
    model, rows = model_of(features), Rows(features)
    export(model, features, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model"))
    right = probabilities_of(predict(model, rows, features, batch=ROWS))
    columns = {key: tf.constant(list(one)) for key, one in rows.columns().items()}
    for answer in (
        served.signatures["serving_default"](examples=tf.constant(rows.examples())),
        served.signatures["columns"](**columns),
    ):
        np.testing.assert_allclose(answer["probabilities"], right, atol=1e-6)


def test_names_that_cannot_be_keys_are_changed_in_a_fixed_way() -> None:
    assert column_keys(features_of("binary")) == {
        "concave points_mean": "concave_points_mean",
        "length (cm)": "length__cm_",
        "größe": "gr__e",
        "1st": "column_1st",
        "x/y": "x_y_2",
        "x y": "x_y_3",
        "class": "column_class",
        "self": "column_self",
        "a,b": "a_b",
        "_lead": "column__lead",
        "x:y": "x_y_4",
        "X_Y": "X_Y",
        "x_y": "x_y_5",
        "日本": "column___",
    }


def test_the_saved_model_tells_its_keys_and_what_is_missing(tmp_path: Path) -> None:
    features = features_of("binary", ("x/y",), ("x y",))
    export(model_of(features), features, tmp_path / "model")
    said = json.loads((tmp_path / "model" / "assets" / "columns.json").read_text("utf-8"))
    assert said == {
        "columns": [
            {"column": "x/y", "key": "x_y", "kind": "float", "missing": ["NaN"]},
            {"column": "x y", "key": "x_y_2", "kind": "string", "missing": [{"b64": "/w=="}, ""]},
        ],
        "label": {"column": "label", "task": "binary"},
    }


def test_an_empty_text_that_is_a_known_value_is_not_missing(tmp_path: Path) -> None:
    features = Features((), (CategoryFeature("t", ("", "a")),), LABELS["binary"])
    export(model_of(features), features, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["columns"]
    found = served(t=tf.constant([b"", b"\xff", b"a", b"other"]))["probabilities"][:, 0]
    assert len(np.unique(found)) == 4


def test_an_example_with_two_values_in_a_column_is_refused(tmp_path: Path) -> None:
    features = features_of("binary", ("x",), ())
    export(model_of(features), features, tmp_path / "model")
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.extend([1.0, 2.0])
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="x: an example holds more than one"):
        served(examples=tf.constant([example.SerializeToString()]))


def test_a_former_export_is_replaced_and_nothing_is_left_aside(tmp_path: Path) -> None:
    features = features_of("binary", ("x",), ())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    export(model_of(features), features, tmp_path / "model")
    assert [one.name for one in tmp_path.iterdir()] == ["model"]
    assert not (tmp_path / "model" / "old").exists()


def test_an_export_that_fails_leaves_nothing_and_keeps_the_former(tmp_path: Path) -> None:
    features = features_of("binary", ("x",), ())
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be written"):
        export(model_of(features), features, tmp_path / "file" / "model")
    (tmp_path / "model").mkdir()
    model = model_of(features)
    # A variable that is not the model's: saving fails half-way.
    stray = tf.Variable(1.0)
    call = model.predict
    model = replace(model, predict=lambda inputs: call(inputs) + stray)
    with pytest.raises(AssertionError):
        export(model, features, tmp_path / "model")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "model"]
