"""A person's own Keras model, in a module beside the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.commands import headrace

pytestmark = pytest.mark.slow
MINE = """
import keras

from parts import WIDTH


def build(features, label):
    inputs = {name: one.input() for name, one in features.items()}
    numbers = [inputs[name] for name, one in features.items() if one.kind == "number"]
    x = keras.layers.Dense(WIDTH, activation="relu")(keras.layers.Concatenate()(numbers))
    return keras.Model(inputs, keras.layers.Dense(label.logits)(x))
"""


def test_it_is_imported_from_there_and_trained_again_when_it_changes(tmp_path: Path) -> None:
    assert headrace("example", "penguins", cwd=tmp_path).code == 0
    folder = tmp_path / "penguins"
    config = folder / "pipeline.toml"
    shape = ("layers", "width", "heads")
    lines = [one for one in config.read_text().splitlines() if not one.startswith(shape)]
    config.write_text("\n".join(lines).replace('kind = "tabular"', 'kind = "mine:build"'))
    (folder / "mine.py").write_text(MINE)
    (folder / "parts.py").write_text("WIDTH = 8\n")
    first = headrace("run", "penguins/pipeline.toml", "--json", cwd=tmp_path)
    assert first.code == 0, first.err
    assert first.json["metrics"]["loss"] < first.json["baseline"]["loss"]
    (folder / "parts.py").write_text("WIDTH = 16\n")
    again = headrace("run", "penguins/pipeline.toml", "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    nodes = {one["id"]: one for one in again.json["nodes"]}
    assert nodes["DataGate"]["state"] == "cached"
    assert nodes["Trainer"]["why"] == "ran: code changed: parts"
