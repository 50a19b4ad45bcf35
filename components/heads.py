"""The heads of data files: what the first rows of each show, before a run reads all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components import (
    column_types,
    csv_files,
    csv_records,
    documents,
    image_files,
    parquet_files,
    readers,
    split,
    text_choice,
    tfrecord_files,
)
from components.column_types import Layout, Nulls, Seen
from components.csv_records import PLAIN, Dialect
from components.tfrecord_files import is_tfrecord
from components.value_counts import ValueCounts

HEAD_BYTES = 1 << 20
"""Read of a CSV; less where there are many files."""
HEAD_ROWS = 10_000
"""Read of a Parquet file; less where there are many."""
MANY = 64
"""Files whose heads are read in full length: together they take some 64 MiB."""


@dataclass(frozen=True)
class Head:
    """The first rows of one file.

    Attributes:
        path: the file.
        rows: with every column of all files; one that this file lacks is missing in all of them.
        is_whole: whether the file has no more rows.
    """

    path: Path
    rows: pa.RecordBatch
    is_whole: bool


@dataclass(frozen=True)
class Heads:
    """The first rows of all files.

    Attributes:
        layout: columns and types, as far as these rows show them.
        names: each file's own columns.
        files: the rows.
        dialect: how CSV files are written.
    """

    layout: Layout
    names: Mapping[Path, list[str]]
    files: tuple[Head, ...]
    dialect: Dialect = PLAIN

    @property
    def is_whole(self) -> bool:
        """Whether there are no other rows."""
        return all(one.is_whole for one in self.files)

    def distinct(self, column: str) -> int:
        """Return how many values of a column differ in these rows; missing ones are none."""
        counts = ValueCounts()
        for one in self.files:
            counts.add(one.rows.column(column))
        return counts.table().num_rows

    def held_back(self, told: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Return which rows of each file are for evaluation; None where other rows decide, too.

        Args:
            told: ``by``, ``column`` and ``eval``.

        Raises:
            SettingError: when the column is not there or does not hold what a split needs.
            DataFileError: naming the place of a row that does not say which split it is in.
        """
        batches = [one.rows for one in self.files]
        if told["by"] == "time" and not self.is_whole:
            split.check_column(told, self.layout)
            split.times_of(told["column"], batches)
            return None
        is_eval = split.by_settings(told, self.layout, lambda: batches)
        if told["by"] == "hash" and not self.is_whole:
            return None
        found = [_held_back(one, is_eval, self.dialect) for one in self.files]
        return found if self.is_whole else None


def _held_back(head: Head, is_eval: split.IsEval, dialect: Dialect) -> np.ndarray:
    """Return which rows are for evaluation.

    Raises:
        DataFileError: naming the place of a row that does not say so.
    """
    try:
        return is_eval(head.rows)
    except split.RowRefused as error:
        (place,) = readers.places(head.path, [error.row], dialect)
        raise error.at(place) from error


def read(
    files: Sequence[str | Path], null_values: Iterable[str], dialect: Dialect = PLAIN
) -> Heads:
    """Read the head of each file.

    Raises:
        DataFileError: when a header or a head cannot be read, or a file has no rows.
    """
    null = column_types.nulls(null_values)
    paths = [Path(one) for one in files]
    names = {path: readers.header(path, dialect) for path in paths}
    share = max(1, len(paths) / MANY)
    folder = documents.common_folder(paths)
    raw = {path: _first(path, names[path], share, folder, dialect) for path in paths}
    seen = {name: Seen() for path in paths for name in names[path]}
    infinite: dict[Path, list[str]] = {}
    for path, (table, _) in raw.items():
        for name, one in _see(path, table, null).items():
            seen[name].merge(one)
            if one.is_infinite:
                infinite.setdefault(path, []).append(name)
    layout = text_choice.with_places(column_types.settle(seen))
    readers.check_finite(layout, infinite, null, dialect)
    heads = [
        Head(path, _typed(path, table, layout, null), is_whole)
        for path, (table, is_whole) in raw.items()
    ]
    return Heads(layout, names, tuple(heads), dialect)


def _first(
    path: Path, names: list[str], share: float, folder: str, dialect: Dialect
) -> tuple[pa.Table, bool]:
    """Return the first rows of a file as they are, and whether those are all.

    Raises:
        DataFileError: when they cannot be read, or there are none.
    """
    if documents.is_document(path):
        batch, is_whole = documents.read(path, folder, most=max(1000, int(HEAD_BYTES / share)))
        return pa.Table.from_batches([batch]), is_whole
    if image_files.is_image(path):
        batch, is_whole = image_files.read(path, folder, most=max(1000, int(HEAD_BYTES / share)))
        return pa.Table.from_batches([batch]), is_whole
    if readers.is_csv(path):
        with readers.explained(path, names, dialect):
            table, is_whole = csv_files.head(
                path, names, size=int(HEAD_BYTES / share), dialect=dialect
            )
    else:
        head = tfrecord_files.head if is_tfrecord(path) else parquet_files.head
        table, is_whole = head(path, rows=max(100, int(HEAD_ROWS / share)))
    if not table.num_rows:
        empty = csv_records.no_rows(path, names)
        raise empty
    return table.combine_chunks(), is_whole


def _see(path: Path, table: pa.Table, null: Nulls) -> dict[str, Seen]:
    see = csv_files.see_column if readers.is_csv(path) else parquet_files.see_column
    return {name: see(_array(table, name), null) for name in table.column_names}


def _typed(path: Path, table: pa.Table, layout: Layout, null: Nulls) -> pa.RecordBatch:
    def typed(name: str) -> pa.Array:
        column = _array(table, name)
        if readers.is_csv(path):
            return column_types.typed(column, layout.kinds[name], null)
        return parquet_files.typed_column(column, name, layout, null)

    columns = [typed(name) for name in table.column_names]
    return readers.completed(pa.RecordBatch.from_arrays(columns, table.column_names), layout)


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
