"""Schema and train statistics to what the model reads; examples to column files.

A column file is a NumPy file that can be memory-mapped, so that `trainer` needs no Arrow. A split's
folder holds ``columns.json``, and for the column with index i: numbers as ``i.values.npy`` (int64
or float64 [N], 0 where missing) and ``i.present.npy`` (bool [N]); text as ``i.codes.npy`` (int32
[N], -1 where missing) and ``i.distinct.json`` (the texts, by code); the label as ``label.npy``
(int32 [N] class ids, or float64 [N] values). A text that is read as such: see `text_columns`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.text_columns import TextFiles
from trainer.errors import SettingError
from trainer.settings import CategoryFeature, Features, LabelFeature, NumberFeature

Kind = Literal["int", "float", "string", "image"]
EDGES = 48
"""Most bin edges of a number. A column with fewer distinct values has an edge at each of them."""
FILES: dict[Kind, dict[str, type]] = {
    "string": {"codes": np.int32},
    "int": {"values": np.int64, "present": np.bool_},
    "float": {"values": np.float64, "present": np.bool_},
}
FEW_CLASSES = 20
"""An integer label with more distinct values than this is a quantity, unless the task says so."""


LEAST_TIMES = 10
"""Different times that a column holds before it counts as one of times."""
DATE_ROWS = 20
"""Rows that a date has on average before it is a category."""
MOST_PARTS, TWO_YEARS = 4096, 24
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")


@dataclass(frozen=True)
class Column:
    """A column of the examples and its type in the schema.

    Attributes:
        name: the column's.
        kind: its type.
        is_text: whether it is read token by token, or is the image that is read, and so written
            whole.
    """

    name: str
    kind: Kind
    is_text: bool = False


class SplitWriter:
    """Writes one split's columns, batch by batch, into files made for at most `rows` rows."""

    def __init__(self, folder: Path, columns: Iterable[Column], *, rows: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._columns = list(columns)
        self._rows = rows
        self.written = 0
        self._distinct: dict[str, dict[Any, int]] = {}
        self._texts = {
            one.name: TextFiles(folder, index)
            for index, one in enumerate(self._columns)
            if one.is_text
        }
        self._files = [
            [] if one.is_text else self._open(index, one) for index, one in enumerate(self._columns)
        ]

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of one batch; its columns are lists with at most one value each."""
        start, end = self.written, self.written + batch.num_rows
        for column, files in zip(self._columns, self._files, strict=True):
            lists = _lists(batch, column.name)
            if column.is_text:
                self._texts[column.name].add(_as_bytes(lists), batch.num_rows)
            elif column.kind == "string":
                files[0][start:end] = self._codes(column.name, lists, batch.num_rows)
            else:
                values, present = _numbers(lists, batch.num_rows)
                files[0][start:end], files[1][start:end] = values, present
        self.written = end

    def close(self) -> None:
        """Write what the reader needs to find the columns."""
        described = {}
        for index, column in enumerate(self._columns):
            kind = "text" if column.is_text else column.kind
            described[column.name] = {"kind": kind, "index": index}
            if column.is_text:
                self._texts[column.name].close()
                continue
            for array in self._files[index]:
                if isinstance(array, np.memmap):
                    array.flush()
            self._trim(index, column)
            if column.kind == "string":
                texts = [_text(value) for value in self._distinct[column.name]]
                (self._folder / f"{index}.distinct.json").write_text(json.dumps(texts))
        (self._folder / "columns.json").write_text(
            json.dumps({"rows": self.written, "features": described})
        )
        self._files = []

    def _open(self, index: int, column: Column) -> list[np.ndarray]:
        if column.kind == "string":
            self._distinct[column.name] = {}
        return [
            _create(self._folder / f"{index}.{name}.npy", kind, self._rows)
            for name, kind in FILES[column.kind].items()
        ]

    def _trim(self, index: int, column: Column) -> None:
        """Cut a column's files to the rows that were written, where rows were left out."""
        if self.written == self._rows:
            return
        for name in FILES[column.kind]:
            path = self._folder / f"{index}.{name}.npy"
            np.save(path, np.array(np.load(path, mmap_mode="r")[: self.written]))

    def _codes(self, name: str, lists: pa.Array | None, rows: int) -> np.ndarray:
        codes = np.full(rows, -1, np.int32)
        if lists is None or lists.null_count == rows:
            return codes
        known = self._distinct[name]
        values = lists.flatten()
        # A frozen schema may call text what this file has as numbers; the gate has said so.
        values = values.cast(pa.string()) if _is_number(values.type) else values
        encoded = values.dictionary_encode()
        of_batch = [known.setdefault(value, len(known)) for value in encoded.dictionary.to_pylist()]
        codes[_present(lists)] = np.asarray(of_batch, np.int32)[encoded.indices.to_numpy()]
        return codes


def _create(path: Path, kind: type, rows: int) -> np.ndarray:
    if rows == 0:
        # A file of no bytes cannot be mapped.
        np.save(path, np.zeros(0, kind))
        return np.load(path)
    return np.lib.format.open_memmap(path, "w+", kind, (rows,))


def _lists(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    if index < 0 or pa.types.is_null(batch.schema.field(index).type):
        return None
    return batch.column(index)


def _as_bytes(lists: pa.Array | None) -> pa.Array | None:
    """Return a column of texts; numbers, where a frozen schema calls them text, as texts."""
    if lists is None or not _is_number(lists.type.value_type):
        return lists
    return lists.cast(pa.large_list(pa.large_string())).cast(pa.large_list(pa.large_binary()))


def _present(lists: pa.Array) -> np.ndarray:
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return np.asarray(lengths) > 0


def _numbers(lists: pa.Array | None, rows: int) -> tuple[np.ndarray, np.ndarray]:
    if lists is None or lists.null_count == rows:
        return np.zeros(rows), np.zeros(rows, np.bool_)
    present = _present(lists)
    values = lists.flatten()
    # A frozen schema may call a number what this file has as text; the gate has said so.
    flat = np.asarray(values if _is_number(values.type) else [_parsed(one) for one in values])
    values = np.zeros(rows, flat.dtype)
    values[present] = flat
    nan = np.isnan(values) if values.dtype.kind == "f" else np.zeros(rows, np.bool_)
    values[nan] = 0
    return values, present & ~nan


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _parsed(value: pa.Scalar) -> float:
    """Return a text as a number, NaN (missing) where it is none."""
    try:
        return float(value.as_py())
    except ValueError:
        return float("nan")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def keep_rows(batch: pa.RecordBatch, label: str, classes: Iterable[Any] | None) -> pa.RecordBatch:
    """Return the rows whose label is there and, where `classes` is given, one of them."""
    lists = _lists(batch, label)
    if lists is None:
        return batch.slice(0, 0)
    keep = _present(lists)
    if classes is not None:
        flat = lists.flatten()
        known = pc.is_in(flat, value_set=pa.array(list(classes), flat.type))
        keep[np.flatnonzero(keep)] = np.asarray(known)
    return batch if keep.all() else batch.filter(pa.array(keep))


def number_feature(column: Column, values: np.ndarray, present: np.ndarray) -> NumberFeature | None:
    """Describe a number from its train values; None when it never differs.

    Args:
        column: the column.
        values: int64 or float64 [N].
        present: bool [N].
    """
    there = np.asarray(values)[np.asarray(present)].astype(np.float64)
    there = there[np.isfinite(there)]
    if not len(there):
        return None
    edges = np.unique(there)
    if len(edges) > EDGES:
        edges = np.unique(np.quantile(there, np.linspace(0, 1, EDGES)))
    if len(edges) == 1:
        if np.asarray(present).all():
            return None
        edges = np.asarray([edges[0], edges[0] + 1])
    return NumberFeature(
        name=column.name,
        kind="int" if column.kind == "int" else "float",
        edges=tuple(float(edge) for edge in edges),
        mean=float(there.mean()),
        scale=float(there.std()) or 1.0,
    )


def category_feature(
    name: str, top_values: Mapping[str, float], *, rows: int
) -> CategoryFeature | None:
    """Describe a text column from TFDV's top values; None when nothing can be learned from it.

    A value seen once in many rows stays unknown: that is what an unseen value will be like, and
    without such rows the unknown entry would never be trained.
    """
    least = 2 if rows >= 1000 else 1
    vocabulary = tuple(value for value, count in top_values.items() if count >= least)
    is_constant = len(top_values) == 1 and sum(top_values.values()) >= rows
    return CategoryFeature(name, vocabulary) if vocabulary and not is_constant else None


def time_parts(folder: Path, name: str, *, is_by_time: bool) -> list[CategoryFeature]:
    """Describe the parts of a text column of times; nothing where it holds something else.

    A part that is the same in every row is left out, and so is what comes not again: the date where
    it has few rows, and in a split by time always, as are month and day of less than two years.

    Args:
        folder: of the train split's column files.
        name: the column's.
        is_by_time: whether the eval split is later than the train split.
    """
    texts = _distinct_texts(folder, name)
    if len(texts) < LEAST_TIMES or not all(map(_TIME.match, texts)):
        return []
    # Imports TensorFlow, which only a column of times needs here.
    from trainer import times

    _, counts = text_counts(folder, name)
    rows = int(counts.sum())
    found = []
    once = ("date", "month", "day") if len({one[:7] for one in texts}) < TWO_YEARS else ("date",)
    for part in (one for one in times.PARTS if not (is_by_time and one in once)):
        parts = times.part_of(np.asarray(texts, object), part).numpy()
        values, places = np.unique(parts.astype(bytes), return_inverse=True)
        of_value = np.bincount(places, weights=counts, minlength=len(values))
        if part == "date" and rows < DATE_ROWS * len(values):
            continue
        known = {value.decode(): float(count) for value, count in zip(values, of_value, strict=True)
                 if value != times.NONE}  # fmt: skip
        ordered = dict(sorted(known.items(), key=lambda one: -one[1])[:MOST_PARTS])
        one = category_feature(f"{name}:{part}", ordered, rows=rows)
        if one is not None and len(ordered) > 1:
            found.append(replace(one, part=part))
    return found


def text_counts(folder: Path, name: str) -> tuple[list[str], np.ndarray]:
    """Return a written text column's different texts, and how many rows hold each."""
    index = json.loads((folder / "columns.json").read_text())["features"][name]["index"]
    texts = _distinct_texts(folder, name)
    codes = np.load(folder / f"{index}.codes.npy", mmap_mode="r")
    return texts, np.bincount(codes[codes >= 0], minlength=len(texts))


def _distinct_texts(folder: Path, name: str) -> list[str]:
    described = json.loads((folder / "columns.json").read_text())["features"][name]
    if described["kind"] != "string":
        return []
    return json.loads((folder / f"{described['index']}.distinct.json").read_text())


def label_feature(name: str, kind: Kind, values: np.ndarray, *, task: str) -> LabelFeature:
    """Describe the label from its train values.

    Args:
        name: the label's column.
        kind: its type in the files.
        values: int64, float64 or str [N], none missing.
        task: ``auto``, ``binary``, ``multiclass`` or ``regression``; ``image``: classes.

    Raises:
        SettingError: when the task does not fit the label's values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    decided = task if task != "auto" else guess_task(kind, len(distinct))
    if decided == "image":
        decided = "binary" if len(distinct) == 2 else "multiclass"
    if decided == "regression":
        if kind == "string":
            raise SettingError(
                "a text label cannot be a quantity",
                where="data.task",
                holds='"regression"',
                right=f"use multiclass, or name a number as the label instead of {name}",
            )
        numbers = values.astype(np.float64)
        scale = float(numbers.std()) or 1.0
        return LabelFeature(name, "regression", kind, mean=float(numbers.mean()), scale=scale)
    if decided == "binary" and len(distinct) != 2:
        raise SettingError(
            f"the label {name} has {len(distinct)} distinct values in the train split, not 2",
            where="data.task",
            holds='"binary"',
            right="use multiclass, or auto"
            if kind == "string"
            else "use multiclass or regression, or auto",
        )
    return LabelFeature(
        name,
        "binary" if decided == "binary" else "multiclass",
        kind,
        classes=tuple(str(value) for value in distinct.tolist()),
        frequencies=tuple(float(count) / len(values) for count in counts),
    )


def guess_task(kind: Kind, distinct: int) -> str:
    """Return the task that a label of this type and number of distinct values stands for."""
    if kind == "float" and distinct > 2:
        return "regression"
    if distinct == 2:
        return "binary"
    return "regression" if kind == "int" and distinct > FEW_CLASSES else "multiclass"


def class_ids(label: LabelFeature, values: np.ndarray) -> np.ndarray:
    """Return the label as the trainer reads it: int32 class ids, or float64 values, [N]."""
    if label.task == "regression":
        return values.astype(np.float64)
    kinds: dict[str, type] = {"int": np.int64, "float": np.float64, "string": np.str_}
    distinct = np.asarray(label.classes).astype(kinds[label.kind])
    return np.searchsorted(distinct, values).astype(np.int32)


def read_values(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a written column's values (texts where it is text) and whether each is there."""
    described = json.loads((folder / "columns.json").read_text())["features"][name]
    index = described["index"]
    if described["kind"] == "string":
        codes = np.load(folder / f"{index}.codes.npy", mmap_mode="r")
        texts = json.loads((folder / f"{index}.distinct.json").read_text())
        return np.asarray([*texts, ""], np.str_)[codes], np.asarray(codes) >= 0
    values = np.load(folder / f"{index}.values.npy", mmap_mode="r")
    return values, np.load(folder / f"{index}.present.npy", mmap_mode="r")


def features_of(
    folder: Path,
    columns: Iterable[Column],
    label: LabelFeature,
    *,
    top_values: Mapping[str, Mapping[str, float]],
    rows: int,
    is_by_time: bool = False,
) -> Features:
    """Describe every column of the train split that something can be learned from.

    Args:
        folder: of the train split's column files.
        columns: which.
        label: is none of them.
        top_values: of texts, by column.
        rows: of the train split.
        is_by_time: whether the eval split is later than the train split.
    """
    numbers, categories = [], []
    for column in columns:
        if column.name == label.name or column.is_text or column.kind == "image":
            continue
        if column.kind == "string":
            parts = time_parts(folder, column.name, is_by_time=is_by_time)
            found = category_feature(column.name, top_values.get(column.name, {}), rows=rows)
            categories.extend(parts or ([found] if found else []))
        else:
            values, present = read_values(folder, column.name)
            number = number_feature(column, values, present)
            numbers.extend([number] if number else [])
    return Features(tuple(numbers), tuple(categories), label)
