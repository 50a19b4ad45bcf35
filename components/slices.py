"""Metrics of parts of the eval split: the rows that have the same value in a column.

A column of texts, or of numbers with few different values, has a slice a value, the most frequent
ones; other numbers have four, cut at the quartiles. Rows in which the column is missing are a
slice of their own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import features, resampling
from trainer import evaluation
from trainer.errors import SettingError, TrainingError
from trainer.settings import LabelFeature

MOST_VALUES = 20
"""Values of a column that have a slice of their own; the others are one together."""
MISSING, OTHERS = "missing", "other values"
MOST_RESAMPLES = 200


@dataclass(frozen=True)
class Slice:
    """Rows of one kind.

    Attributes:
        column: whose values tell them.
        value: which, in words.
        rows: bool [N].
    """

    column: str
    value: str
    rows: np.ndarray


def read(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    label: str,
    classes: Iterable[Any] | None,
) -> dict[str, pa.Array]:
    """Return the values of columns, of the rows that were evaluated, in their order.

    Args:
        batches: of the eval split; each column holds lists with at most one value.
        columns: which.
        label: its column, which decides what rows are evaluated.
        classes: its values in the files' type; None: any.

    Raises:
        SettingError: when a column is not there or holds several values in a row.
    """
    parts: dict[str, list[pa.Array]] = {name: [] for name in columns}
    names: list[str] = []
    for batch in batches:
        names = names or batch.schema.names
        kept = features.keep_rows(batch, label, classes)
        for name in columns:
            if name not in names:
                raise SettingError(
                    f"the data has no column {name}",
                    where="evaluation.slices",
                    right=f"the columns are {', '.join(names[:20])}",
                )
            parts[name].append(singles(name, kept.column(kept.schema.get_field_index(name))))
    return {name: _joined(found) for name, found in parts.items()}


def singles(name: str, lists: pa.Array) -> pa.Array:
    """Return the one value of each row of a column of lists, null where it is missing.

    Raises:
        SettingError: when a row has several.
    """
    if pa.types.is_null(lists.type):
        return lists
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    if (lengths > 1).any():
        what = f"column {name} holds several values in a row"
        raise SettingError(what, where="evaluation.slices", right="name columns of single values")
    values = lists.flatten()
    places = np.full(len(lengths), -1, np.int64)
    places[lengths == 1] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


def _joined(parts: list[pa.Array]) -> pa.Array:
    kind = next((one.type for one in parts if not pa.types.is_null(one.type)), pa.null())
    return pa.chunked_array([one.cast(kind) for one in parts], kind).combine_chunks()


def cut(column: str, values: pa.Array) -> Iterator[Slice]:
    """Yield the slices of a column, the most frequent value first, missing values last."""
    is_missing = np.asarray(values.is_null())
    if pa.types.is_floating(values.type):
        is_missing |= np.asarray(pc.fill_null(pc.is_nan(values), True))
    if (~is_missing).any():
        yield from _there(column, values.filter(pa.array(~is_missing)), ~is_missing)
    if is_missing.any():
        yield Slice(column, MISSING, is_missing)


def _there(column: str, values: pa.Array, places: np.ndarray) -> Iterator[Slice]:
    """Yield the slices of values none of which is missing."""

    def rows(chosen: np.ndarray) -> np.ndarray:
        found = np.zeros(len(places), bool)
        found[places] = chosen
        return found

    encoded = values.dictionary_encode()
    codes, texts = np.asarray(encoded.indices), [_text(one) for one in encoded.dictionary]
    if len(texts) > MOST_VALUES and not _holds_texts(values.type):
        for value, chosen in _quartiles(np.asarray(values, np.float64)):
            yield Slice(column, value, rows(chosen))
        return
    order = np.argsort(-np.bincount(codes, minlength=len(texts)), kind="stable")
    for code in order[:MOST_VALUES].tolist():
        yield Slice(column, texts[code], rows(codes == code))
    if len(order) > MOST_VALUES:
        yield Slice(column, OTHERS, rows(np.isin(codes, order[MOST_VALUES:])))


def _holds_texts(kind: pa.DataType) -> bool:
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _text(value: pa.Scalar) -> str:
    found = value.as_py()
    if isinstance(found, bytes):
        return found.decode("utf-8", "backslashreplace")
    return found if isinstance(found, str) else json.dumps(found)


def _quartiles(numbers: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    edges = np.unique(np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1]))
    if len(edges) == 1:
        yield f"{edges[0]:g}", np.ones(len(numbers), bool)
        return
    for at, (low, high) in enumerate(itertools.pairwise(edges)):
        is_last = at == len(edges) - 2
        below = numbers <= high if is_last else numbers < high
        yield f"{low:g} to {high:g}", (numbers >= low) & below


def metrics(
    columns: dict[str, pa.Array],
    predictions: np.ndarray,
    label: np.ndarray,
    *,
    label_feature: LabelFeature,
) -> list[dict[str, Any]]:
    """Return what each slice shows.

    ``column``, ``value``, ``rows``, ``metrics``, ``baseline`` and ``intervals``.

    Args:
        columns: of `read`.
        predictions: [N, C'].
        label: [N].
        label_feature: the task.

    Raises:
        TrainingError: when the columns have not as many rows as were evaluated.
    """
    found = []
    for name, values in columns.items():
        if len(values) != len(label):
            raise TrainingError(
                "the examples and the evaluated rows differ in number",
                where=name,
                holds=f"{len(values)} examples and {len(label)} evaluated rows",
                right="run the training again: headrace run --no-cache Trainer",
            )
        for one in cut(name, values):
            says, true = predictions[one.rows], label[one.rows]
            found.append({
                "column": name,
                "value": one.value,
                "rows": len(true),
                "metrics": evaluation.metrics(says, true, label_feature=label_feature),
                "baseline": evaluation.baseline(label_feature, true),
                "intervals": resampling.intervals(
                    says, true, label_feature=label_feature, most=MOST_RESAMPLES
                ),
            })
    return found
