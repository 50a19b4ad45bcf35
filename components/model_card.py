"""The model card: one page of Markdown for who takes a pushed model over.

Source of its parts: Mitchell et al. 2019, arXiv:1810.03993.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_SLICES = 30
MOST_COLUMNS = 40
FEW_ROWS = 100
"""Slices of fewer rows say little."""

Facts = Mapping[str, Any]


def text(
    *,
    name: str,
    settings: Facts,
    rows: Facts,
    features: Facts,
    training: Facts,
    evaluation: Facts,
    described: Facts,
    example: Facts,
) -> str:
    """Return the card.

    Args:
        name: of the pipeline.
        settings: the configuration by dotted key.
        rows: content of the examples' `rows.json`.
        features: content of `features.json`.
        training: the training's own figures.
        evaluation: content of `evaluation.json`.
        described: content of the model's `columns.json`.
        example: a few rows by column.
    """
    label = features.get("label") or {}
    parts = [
        f"# {name}\n",
        _summary(label, settings, training),
        "## Data\n",
        *_data(settings, rows, features),
        "## How good it is\n",
        *_metrics(evaluation),
        *_slices(evaluation.get("slices") or ()),
        "## Limits\n",
        *(f"- {one}" for one in _limits(features, evaluation)),
        "",
        "## Load and serve\n",
        *_use(name, label, described, example),
    ]
    return "\n".join(parts) + "\n"


def _summary(label: Facts, settings: Facts, training: Facts) -> str:
    column, task = label.get("name", "its label"), label.get("task", "")
    says = {
        "binary": f"whether `{column}` is {_one(label, -1)} (else {_one(label, 0)})",
        "multiclass": f"which of {len(label.get('classes') or ())} classes `{column}` is",
        "regression": f"the number `{column}`",
        "causal-lm": f"the next token of a text in `{column}`",
    }.get(task, f"`{column}`")
    kind, layers = settings.get("model.kind", ""), settings.get("model.layers", "")
    shape = f"{layers} layers of width {settings.get('model.width', '')}" if layers else ""
    steps = f", {training['steps']:,} weight updates" if training.get("steps") else ""
    day = datetime.datetime.now(tz=datetime.UTC).date()
    return f"Predicts {says}. A {kind} model, {shape}{steps}, pushed on {day}.\n"


def _one(label: Facts, at: int) -> str:
    classes = label.get("classes") or ("",)
    return json.dumps(classes[at], ensure_ascii=False)


def _data(settings: Facts, rows: Facts, features: Facts) -> Iterator[str]:
    counts = ", ".join(
        f"{split} {count:,}" for split, count in (rows.get("examples") or {}).items()
    )
    by, column = settings.get("data.split.by"), settings.get("data.split.column")
    held = {"time": f"the newest rows by `{column}`", "column": f"as `{column}` says"}.get(
        str(by), "by a hash of the row" if not column else f"by a hash of `{column}`"
    )
    yield f"Rows: {counts}. Held back for evaluation: {held}.\n"
    yield "| file | rows | SHA-256 |"
    yield "|---|---|---|"
    for one in rows.get("files") or ():
        name = Path(str(one.get("path", ""))).name
        yield f"| {_cell(name)} | {one.get('rows', 0):,} | `{str(one.get('sha256'))[:16]}…` |"
    yield ""
    numbers = [one["name"] for one in features.get("numbers") or ()]
    texts = [one["name"] for one in features.get("categories") or ()]
    yield f"Numbers it reads: {_names(numbers)}.  "
    yield f"Categories it reads: {_names(texts)}."
    if features.get("text"):
        yield f"Text it reads: `{features['text']['name']}`."
    if image := features.get("image"):
        shades = "grey" if image["channels"] == 1 else "in colours"
        yield (
            f"Image it reads: `{image['name']}`, PNG or JPEG, as {image['size']} x {image['size']} "
            f"pixels {shades}."
        )
    if ignored := settings.get("data.ignore"):
        yield f"Not features: {_names(ignored)}."
    yield ""


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{one}`" for one in names[:MOST_COLUMNS])
    more = f" and {len(names) - MOST_COLUMNS} more" if len(names) > MOST_COLUMNS else ""
    return (shown + more) or "none"


def _metrics(evaluation: Facts) -> Iterator[str]:
    bounds = evaluation.get("intervals") or {}
    yield "On the eval split; the interval is what 95 % of a bootstrap's draws lie between, the "
    yield "baseline knows no column.\n"
    yield "| metric | model | interval | baseline |"
    yield "|---|---|---|---|"
    for name, value in (evaluation.get("metrics") or {}).items():
        other = (evaluation.get("baseline") or {}).get(name)
        yield f"| {name} | {_number(value)} | {_bounds(bounds.get(name))} | {_number(other)} |"
    yield ""


def _slices(found: Sequence[Facts]) -> Iterator[str]:
    if not found:
        return
    names = list(found[0]["metrics"])[:3]
    yield "### By slice\n"
    yield "| slice | rows | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(names)
    for one in found[:MOST_SLICES]:
        cells = " | ".join(_number(one["metrics"].get(name)) for name in names)
        yield f"| {_cell(one['column'])} = {_cell(one['value'])} | {one['rows']:,} | {cells} |"
    if len(found) > MOST_SLICES:
        yield f"\n{len(found) - MOST_SLICES} more are in `metrics.json`."
    yield ""


def _limits(features: Facts, evaluation: Facts) -> Iterator[str]:
    for one in features.get("numbers") or ():
        low, high = one["edges"][0], one["edges"][-1]
        yield f"`{one['name']}` was between {low:g} and {high:g}; beyond, it counts as the edge."
    if features.get("categories"):
        yield "A category that it did not learn counts as unknown; a missing one as missing."
    for one in evaluation.get("slices") or ():
        loss, other = one["metrics"].get("loss"), (one.get("baseline") or {}).get("loss")
        where = f"{_cell(one['column'])} = {_cell(one['value'])}"
        if loss is not None and other is not None and loss >= other:
            yield f"Where {where} it is no better than the baseline ({one['rows']:,} rows)."
        elif one["rows"] < FEW_ROWS:
            yield f"{where} has only {one['rows']:,} eval rows."
    error = (evaluation.get("metrics") or {}).get("calibration_error")
    if error is not None:
        yield f"Its probabilities are off by {error:.3f} on average (calibration error)."
    yield from evaluation.get("notes") or ()
    yield "It was judged on rows like those it learned from; later or other data may differ. " \
          "`headrace predict` warns when they do."  # fmt: skip


def _use(name: str, label: Facts, described: Facts, example: Facts) -> Iterator[str]:
    if label.get("task") == "causal-lm":
        rows = {one["key"]: ["A text"] for one in described.get("columns") or ()}
    else:
        rows = {one["key"]: example.get(one["column"], [])[:1]
                for one in described.get("columns") or ()}  # fmt: skip
    kinds = {one["key"]: one["kind"] for one in described.get("columns") or ()}
    fed = ", ".join(
        f"{key}=tf.constant({_fed(values, kinds[key])})" for key, values in rows.items()
    )
    yield "In Python, in this folder; NaN and the byte 255 stand for missing values:\n"
    yield "```python"
    yield "import tensorflow as tf"
    yield 'model = tf.saved_model.load(".")'
    yield f'print(model.signatures["columns"]({fed}))'
    yield "```\n"
    yield "Over files, and as a server:\n"
    yield "```sh"
    yield "headrace predict . data.csv --out predictions.csv"
    served = f"--rest_api_port=8501 --model_name={name}"
    yield f'tensorflow_model_server {served} --model_base_path="$(dirname "$PWD")"'
    yield "```"


def _fed(values: Iterable[Any], kind: str) -> str:
    one = next(iter(values), None)
    if kind == "image":
        return '[open("picture.png", "rb").read()]'
    if kind == "string":
        return '[b"\\xff"]' if one is None else f"[{json.dumps(one, ensure_ascii=False)}]"
    number = 'float("nan")' if one is None else repr(float(one))
    return f"[{number}], tf.float64"


def _cell(value: Any) -> str:
    """Return a text as one cell of a table: data may hold bars, breaks and marks."""
    shown = "".join(one if one.isprintable() else " " for one in str(value))
    return shown.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


def _bounds(bounds: Any) -> str:
    return f"{_number(bounds[0])} to {_number(bounds[1])}" if bounds else "-"
