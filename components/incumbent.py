"""The last pushed model, asked about the same eval rows: is the new one worse?

A new model is worse when its mean loss is above the other's by more than a margin, and a paired
bootstrap over the rows says that this is no chance: 95 % of its draws lie above 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components import features, resampling, served, slices
from components.verdict import count_rows
from trainer.errors import InputError
from trainer.losses import LEAST_PROBABILITY
from trainer.settings import LabelFeature

BATCH_ROWS = 1024
REMEDY = (
    "see what changed with headrace runs diff, or raise evaluation.margin to push it all the same"
)


@dataclass(frozen=True)
class Incumbent:
    """What came of the comparison.

    Attributes:
        version: of the last pushed model.
        loss: the new model's on the eval rows.
        last: the last pushed model's on the same rows.
        compared: the difference and its bounds.
        margin: most that the difference may be.
    """

    version: str
    loss: float
    last: float
    compared: resampling.Compared
    margin: float

    @property
    def is_worse(self) -> bool:
        """Whether the new model is worse by more than the margin, and not by chance."""
        return self.compared.difference > self.margin and self.compared.low > 0

    @property
    def reason(self) -> str:
        """The comparison in one sentence."""
        found = self.compared
        between = f"95 % between {found.low:.3g} and {found.high:.3g}"
        other = f"the {self.last:.4g} of version {self.version}"
        on = f"on the same {count_rows(found.rows)}"
        by = f"{found.difference:.3g} ({between})"
        if self.is_worse:
            than = f"more than the margin of {self.margin:.3g}"
            return f"loss {self.loss:.4g} is above {other} {on}, by {by}, {than}"
        than = f"difference {by}, margin {self.margin:.3g}"
        return f"loss {self.loss:.4g} is not worse than {other} {on}: {than}"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        found = self.compared
        return {
            "version": self.version,
            "loss": self.loss,
            "last_loss": self.last,
            "difference": found.difference,
            "interval": [found.low, found.high],
            "margin": self.margin,
            "rows": found.rows,
            "is_worse": self.is_worse,
        }


class Incomparable(Exception):
    """The last pushed model cannot be asked about these rows; says why."""


def compare(
    models: Path,
    batches: Iterable[pa.RecordBatch],
    predictions: np.ndarray,
    label: np.ndarray,
    *,
    label_feature: LabelFeature,
    margin: float,
) -> Incumbent | None:
    """Return how the new model stands to the last pushed one; None: there is none.

    Args:
        models: folder of the version folders.
        batches: of the eval split.
        predictions: the new model's, [N, C'].
        label: class ids or values, [N].
        label_feature: the label as the new model has it.
        margin: share of the last pushed model's loss.

    Raises:
        Incomparable: when it cannot be loaded, or predicts something else.
    """
    folder = served.newest(models) if models.is_dir() else None
    if folder is None:
        return None
    if label_feature.task == "causal-lm":
        raise Incomparable("language models are not compared")
    try:
        model = served.load(folder)
    except InputError as error:
        raise Incomparable(str(error)) from error
    _check(model, label_feature)
    losses = resampling.row_losses(np.asarray(predictions, np.float64), label, label_feature)
    others = last_losses(model, batches, label, label_feature)
    if len(others) != len(losses):
        raise Incomparable(f"{len(others)} examples and {len(losses)} evaluated rows")
    if not np.isfinite(others).all():
        raise Incomparable("its predictions are not finite")
    last = float(others.mean())
    return Incumbent(
        version=folder.name,
        loss=float(losses.mean()),
        last=last,
        compared=resampling.compare(losses, others),
        margin=margin * last,
    )


def _check(model: served.Served, label: LabelFeature) -> None:
    name, task = model.label["column"], model.label["task"]
    if name != label.name:
        raise Incomparable(f"it predicts {name}, and this one {label.name}")
    if (task == "regression") is not (label.task == "regression"):
        raise Incomparable(f"it is a model of {task}, and this one of {label.task}")


def last_losses(
    model: served.Served,
    batches: Iterable[pa.RecordBatch],
    label: np.ndarray,
    label_feature: LabelFeature,
) -> np.ndarray:
    """Return a loaded model's loss of each eval row, float64 [N].

    A class that it lacks has no chance.
    """
    parts, first = [], 0
    for columns, rows in _columns(model, batches, label_feature):
        answers = model.answer(columns)
        parts.append(_losses(answers, label[first : first + rows], label_feature))
        first += rows
    return np.concatenate(parts) if parts else np.zeros(0)


def _columns(
    model: served.Served, batches: Iterable[pa.RecordBatch], label: LabelFeature
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield the model's columns of the rows that are evaluated, and how many rows there are."""
    classes = typed_classes(label)
    for batch in batches:
        kept = features.keep_rows(batch, label.name, classes)
        for start in range(0, kept.num_rows, BATCH_ROWS):
            rows = kept.slice(start, BATCH_ROWS)
            yield {one["key"]: _values(one, rows) for one in model.columns}, rows.num_rows


def _values(column: Mapping[str, Any], rows: pa.RecordBatch) -> np.ndarray:
    at = rows.schema.get_field_index(column["column"])
    if at < 0:
        return served.missing(column, rows.num_rows)
    values = slices.singles(column["column"], rows.column(at))
    is_text = not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type))
    if column["kind"] not in {"string", "image"} and is_text and not pa.types.is_null(values.type):
        raise Incomparable(f"it reads {column['column']} as a number, which holds texts now")
    return served.plain(column, values)


def _losses(
    answers: Mapping[str, np.ndarray], label: np.ndarray, feature: LabelFeature
) -> np.ndarray:
    if feature.task == "regression":
        return ((answers["prediction"].astype(np.float64) - label) / feature.scale) ** 2
    known = {name.decode(): at for at, name in enumerate(answers["classes"][0])}
    places = np.array([known.get(one, -1) for one in feature.classes])[label]
    picked = answers["probabilities"].astype(np.float64)[np.arange(len(label)), places]
    true = np.where(places < 0, 0.0, picked)
    return -np.log(np.clip(true, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))


def typed_classes(label: LabelFeature) -> Sequence[Any] | None:
    """Return the label's classes as values of the files' type; None: any value is evaluated."""
    if not label.classes:
        return None
    convert = {"int": int, "float": float, "string": str.encode}[label.kind]
    return [convert(one) for one in label.classes]
