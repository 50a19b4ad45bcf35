"""Files brought to the data gate, through the work of all nodes before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components import anomalies, example_gen, gate, readers, schema, split, statistics
from components.cleaning import Cleaning, Rules, cleaned_batches
from components.gate import Data

SPLITS = ["train", "eval"]
NULLS = ["", "NA", "NaN", "null"]
BY_COLUMN = {"by": "column", "column": "split", "eval": 0.2}


@dataclass
class Case:
    """A data set on its way to the gate."""

    data: Data
    settings: dict[str, Any]
    folder: Path

    def inspect(self) -> list[dict[str, Any]]:
        return [one.facts() for one in gate.inspect(self.data, self.settings)]

    def run(self) -> None:
        gate.run_gate(self.data, str(self.folder / "verdict"), self.settings)


def case(folder: Path, files: Mapping[str, str], *, schema_file: str = "infer", **settings) -> Case:
    """Write the files and bring them to the gate, split by their column ``split``."""
    paths = [folder / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    return case_of(folder, paths, schema_file=schema_file, **settings)


def case_of(folder: Path, paths: list[Path], *, schema_file: str = "infer", **settings) -> Case:
    told = {
        "files": [str(path) for path in paths],
        "label": "label", "task": "auto", "ignore": ["split"], "null_values": NULLS,
        "split": BY_COLUMN, "on_anomaly": "stop", "rules": {}, "global_batch": 1, **settings,
    }  # fmt: skip
    source = readers.inspect(told["files"], NULLS)

    cleaning = Cleaning(Rules.of(told.get("clean")), source.layout, told["label"])

    def batches():
        return cleaned_batches(source, cleaning)

    places = {
        name: str(folder / name) for name in ("examples", "statistics", "schema", "anomalies")
    }
    for name in SPLITS:
        (folder / "examples" / f"Split-{name}").mkdir(parents=True)
    is_eval = split.by_settings(told["split"], source.layout, batches)
    shards = example_gen.Shards(source, is_eval, folder / "examples", cleaning)
    example_gen.write(shards, None)
    (folder / "examples" / "rows.json").write_text(json.dumps(example_gen.facts(shards)))
    statistics.write_statistics(places["examples"], places["statistics"], SPLITS)
    schema.write_schema(
        places["statistics"], places["schema"], schema=schema_file, label=told["label"]
    )
    anomalies.write_anomalies(
        places["statistics"], places["schema"], places["anomalies"], splits=SPLITS
    )
    return Case(Data(**places), told, folder)
