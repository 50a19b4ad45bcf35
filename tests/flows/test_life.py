"""A person's file through `init`, `run` and `predict`, with no edit."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import real_sets
from flows.commands import headrace

from components import readers, split

pytestmark = pytest.mark.slow
NULLS = ["", "NA", "NaN", "null"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The penguins, after `init` and `run`."""
    folder = tmp_path_factory.mktemp("penguins")
    real_sets.write("species", folder)
    assert headrace("init", "species.csv", "--label", "species", cwd=folder).code == 0
    done = headrace("run", "--json", cwd=folder)
    assert done.code == 0, done.err
    assert done.json["metrics"]["loss"] < done.json["baseline"]["loss"]
    return folder


def predicted(folder: Path, data: str, out: str, *options: str) -> pa.Table:
    said = headrace("predict", "runs/species/models", data, "--out", out, *options, cwd=folder)
    assert said.code == 0, said.err
    read = pq.read_table if out.endswith(".parquet") else pa.csv.read_csv
    return read(folder / out)


def test_predict_equals_the_evaluation_s_predictions_row_by_row(trained: Path) -> None:
    found = predicted(trained, "species.csv", "out.parquet")
    source = readers.inspect([trained / "species.csv"], NULLS)
    (part,) = source.parts
    (batch,) = source.read(part)
    held_back = split.by_hash(source.layout.kinds, 0.2)(batch)
    records = (trained / "runs" / "species" / "Trainer" / "model_run").glob("*")
    record = min(records, key=lambda one: int(one.name))
    evaluated = np.load(record / "predictions.npy")
    classes = json.loads((record / "features.json").read_text())["label"]["classes"]
    ours = np.stack([found[f"probability:{one}"] for one in classes], axis=1)
    assert found.num_rows == 344
    # float32, other batches: some 1e-6.
    np.testing.assert_allclose(ours[held_back], evaluated, atol=1e-5)


def test_columns_in_another_order_extra_missing_and_without_the_label(trained: Path) -> None:
    with open(trained / "species.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [one for one in reversed(rows[0]) if one not in {"species", "sex"}]
    with open(trained / "other.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*names, "extra"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**one, "extra": "x"} for one in rows)
    found = predicted(trained, "other.csv", "other-out.csv")
    assert found.num_rows == 344
    assert set(found["prediction"].to_pylist()) <= {"Adelie", "Chinstrap", "Gentoo"}


def test_a_row_that_cannot_be_read_is_refused_by_place_or_kept_with_an_error(
    trained: Path,
) -> None:
    lines = (trained / "species.csv").read_text().splitlines()
    cells = lines[3].split(",")
    lines[3] = ",".join([*cells[:2], "long", *cells[3:]])
    (trained / "bad.csv").write_text("\n".join(lines) + "\n")
    command = ("predict", "runs/species/models", "bad.csv", "--out", "bad-out.parquet")
    refused = headrace(*command, cwd=trained)
    assert refused.code == 2
    assert 'bad.csv:4: column bill_length_mm holds no number: "long"' in refused.err
    assert not (trained / "bad-out.parquet").exists()
    kept = predicted(trained, "bad.csv", "bad-out.parquet", "--keep-errors")
    assert kept.num_rows == 344
    assert [at for at, one in enumerate(kept["error"].to_pylist()) if one] == [2]
    assert kept["prediction"][2].as_py() is None


TENSORFLOW_ONLY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {rooms}:
            raise ImportError(name + " is not on this machine")
sys.meta_path.insert(0, Refuse())
"""
ROOMS = {
    "pipeline",
    "components",
    "trainer",
    "kubeflow",
    "tfx",
    "tfx_bsl",
    "mlflow",
    "pandas",
    "pyarrow",
    "apache_beam",
    "sklearn",
    "tensorflow_data_validation",
    "tensorflow_metadata",
    "ml_metadata",
    "pydantic",
    "typer",
}


def test_the_card_s_own_lines_load_the_model_where_there_is_only_tensorflow(trained: Path) -> None:
    folder = trained / "runs" / "species" / "models" / "1"
    card = (folder / "card.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(lines.splitlines()) == 3
    done = subprocess.run(
        [sys.executable, "-I", "-c", TENSORFLOW_ONLY.format(rooms=ROOMS) + lines],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "probabilities" in done.stdout
    assert "| loss | " in card
    for name in ("saved_model.pb", "schema.pbtxt", "statistics/train.pb", "statistics/eval.pb",
                 "metrics.json", "pipeline.toml", "input_example.json"):  # fmt: skip
        assert (folder / name).is_file(), name
    assert len(json.loads((folder / "input_example.json").read_text())["island"]) == 3


def test_a_worse_model_is_not_pushed_and_the_reason_is_told(trained: Path) -> None:
    said = headrace(
        "run", "--json", "--set", "training.epochs=1", "--set", "training.learning_rate=3e-3",
        cwd=trained,
    )  # fmt: skip
    assert said.code == 0, said.err
    result = said.json
    assert result["metrics"]["loss"] < result["baseline"]["loss"]
    (why,) = [one["why"] for one in result["nodes"] if one["id"] == "Pusher"]
    assert "of version 1 on the same" in why
    assert "more than the margin of" in why
    assert result["model"] is None
    report = Path(result["report"]).read_text()
    assert "The model is not pushed: loss" in report
    assert [one.name for one in (trained / "runs" / "species" / "models").iterdir()] == ["1"]


def test_tfrecord_in_equals_csv_in_and_the_model_comes_from_the_registry(trained: Path) -> None:
    examples = sorted((trained / "runs/species/ExampleGen/examples").glob("*/Split-eval/*.gz"))
    (trained / "eval.tfrecord.gz").write_bytes(b"".join(one.read_bytes() for one in examples))
    said = headrace("run", "--json", "--set", "tracking.register=species", cwd=trained)
    assert said.code == 0, said.err
    assert said.json["mlflow"]["model"] == "models:/species/1"
    from_registry = headrace(
        "predict", "models:/species/1", "eval.tfrecord.gz", "--out", "records.parquet", cwd=trained
    )
    assert from_registry.code == 0, from_registry.err
    assert "warning" not in from_registry.out
    found = pq.read_table(trained / "records.parquet")
    # The first training's; a later test's model was not pushed.
    records = (trained / "runs/species/Trainer/model_run").glob("*")
    record = min(records, key=lambda one: int(one.name))
    evaluated = np.load(record / "predictions.npy")
    classes = json.loads((record / "features.json").read_text())["label"]["classes"]
    ours = np.stack([found[f"probability:{one}"] for one in classes], axis=1)
    np.testing.assert_allclose(ours, evaluated, atol=1e-5)


def test_rows_unlike_those_of_training_are_told_once_with_their_columns(trained: Path) -> None:
    with open(trained / "species.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    with open(trained / "moved.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**one, "island": "Dream", "body_mass_g": "6000"} for one in rows)
    said = headrace(
        "predict", "runs/species/models", "moved.csv", "--out", "moved-out.csv", cwd=trained
    )
    assert said.code == 0, said.err
    (warning,) = [one for one in said.out.splitlines() if one.startswith("warning")]
    assert "island (Dream" in warning
    assert "body_mass_g" in warning
    assert "bill_length_mm" not in warning
