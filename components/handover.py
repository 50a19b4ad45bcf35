"""What stands beside a pushed model for the person who takes it over.

    card.md                 what it is, how good, where it fails, how to load and serve it
    schema.pbtxt            the columns, as the data was checked
    statistics/<split>.pb   TFDV's statistics of what it learned from and was judged on
    statistics/shares.json  shares of the train split's values, which `predict` holds new rows to
    pipeline.toml           the settings, passwords left out
    metrics.json            the whole evaluation
    input_example.json      a few rows as the model takes them, by column

TensorFlow Serving and `tf.saved_model.load` pass over all of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from components import model_card, shares, slices, statistics

EXAMPLE_ROWS = 3
CARD, SCHEMA, METRICS = "card.md", "schema.pbtxt", "metrics.json"
STATISTICS, SETTINGS, EXAMPLE = "statistics", "pipeline.toml", "input_example.json"


@dataclass(frozen=True)
class Places:
    """Where a run's artifacts are.

    Attributes:
        model: the SavedModel.
        examples, schema, statistics, evaluation, model_run: folders.
    """

    model: Path
    examples: Path
    schema: Path
    statistics: Path
    evaluation: Path
    model_run: Path


def write(folder: Path, places: Places, settings: Mapping[str, Any]) -> None:
    """Write the files into a folder that is there; what a run did not make is left out.

    Args:
        folder: gets them.
        places: of the artifacts.
        settings: ``name``, of the pipeline, and ``settings``, the configuration by dotted key.
    """
    _copy(places.schema / "schema.pbtxt", folder / SCHEMA)
    for path in sorted(places.statistics.glob("Split-*/FeatureStats.pb")):
        split = path.parent.name.removeprefix("Split-")
        _copy(path, folder / STATISTICS / f"{split}.pb")
    _copy(places.model_run / shares.FILE, folder / STATISTICS / shares.FILE)
    _copy(places.evaluation / "evaluation.json", folder / METRICS)
    flat = settings.get("settings") or {}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in flat.items())
    (folder / SETTINGS).write_text(text, encoding="utf-8")
    described = _json(places.model / "assets" / "columns.json")
    example = _example(places.examples, described)
    if example:
        (folder / EXAMPLE).write_text(json.dumps(example, ensure_ascii=False, indent=1), "utf-8")
    card = model_card.text(
        name=str(settings.get("name") or "model"),
        settings=flat,
        rows=_json(places.examples / statistics.ROWS_FILE),
        features=_json(places.model_run / "features.json"),
        training=_json(places.model_run / "result.json").get("training") or {},
        evaluation=_json(places.evaluation / "evaluation.json"),
        described=described,
        example=example,
    )
    (folder / CARD).write_text(card, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _example(examples: Path, described: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the first eval rows, the model's columns but images by name; None is missing."""
    columns = [one["column"] for one in described.get("columns", ()) if one["kind"] != "image"]
    if not columns or not list(examples.glob("Split-eval*/*")):
        return {}
    batch = next(statistics.read_examples(str(examples), "eval"), None)
    if batch is None:
        return {}
    first = batch.slice(0, EXAMPLE_ROWS)
    return {name: [_plain(value) for value in _values(first, name)] for name in columns}


def _values(rows: pa.RecordBatch, name: str) -> list[Any]:
    at = rows.schema.get_field_index(name)
    return slices.singles(name, rows.column(at)).to_pylist() if at >= 0 else [None] * rows.num_rows


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    # JSON knows no NaN, which is a missing value too.
    return None if isinstance(value, float) and value != value else value
