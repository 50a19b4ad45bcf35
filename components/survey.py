"""What a person's files hold, column by column, before there is a configuration: for `init`.

Types, missing values and rows are those of `readers`; ids, dates and free texts are told by the
rules of `checks`; how well a column alone tells the label is measured by `single_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import column_types, readers, split
from components.checks import DATE, DISTINCT_ROWS, DISTINCT_SHARE
from components.column_types import Kind
from components.readers import Source
from components.value_counts import ValueCounts

HEAD_BYTES = 512
"""Of an image that are kept: most say their size in them."""
SAMPLE_ROWS = 50_000
"""About how many rows are looked at closely, from parts spread over the files."""
ID_NAME = re.compile(r"(?i)^(unnamed.*|index|row(_?(id|num(ber)?))?|uuid|guid|key|.*(^|[ _])id)$")
TIME_NAME = re.compile(r"(?i)(time|date|stamp|epoch)")
EPOCH = (5e8, 5e9)
"""Seconds since 1970 of the years 1985 to 2128; a thousand times that as milliseconds."""
TEXT_WORDS, TEXT_BYTES = 4.0, 25.0
"""Words and bytes that the values of free text have at least, on average."""
LEAST_TIMES = 20
"""A column of fewer different times cuts too coarsely to split by."""


@dataclass(frozen=True)
class Column:
    """What the rows show of one column.

    Attributes:
        name: the column's.
        kind: its type.
        missing: share of the rows without a value.
        distinct: values that differ, in the rows that were looked at.
        rows: how many were looked at.
        is_list: some row holds several values.
        role: ``feature``, or why it is none: ``empty``, ``constant``, ``id``, ``date`` (a text),
            ``time`` (a number or a text that rows can be put in order by), ``text``, ``image``.
        example: one of its values, as text.
        values: Arrow array of the rows that were looked at.
    """

    name: str
    kind: Kind
    missing: float
    distinct: int
    rows: int
    is_list: bool
    role: str
    example: str
    values: pa.Array

    @property
    def is_time(self) -> bool:
        """Whether every row has a time in it, and there are enough of them."""
        return self.role == "time" and not self.missing and self.distinct >= LEAST_TIMES


@dataclass(frozen=True)
class Survey:
    """What the files hold.

    Attributes:
        source: the inspected files.
        rows: of all files.
        is_whole: whether all rows were looked at.
        columns: by name, in the files' order.
    """

    source: Source
    rows: int
    is_whole: bool
    columns: dict[str, Column]


def look(files: Sequence[Path]) -> Survey:
    """Read the files and say what their columns are.

    Raises:
        DataFileError: naming file and line of what cannot be read.
    """
    source = readers.inspect(files, column_types.DEFAULT_NULLS)
    rows = sum(source.rows.values())
    table = pa.Table.from_batches(list(_sample(source, rows))).combine_chunks()
    columns = {
        name: _column(name, kind, _array(table, name), is_list=name in source.layout.lists)
        for name, kind in source.layout.kinds.items()
    }
    return Survey(source, rows, table.num_rows == rows, columns)


def _sample(source: Source, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows, or of parts spread over the files as many as make about `SAMPLE_ROWS`."""
    if rows <= 2 * SAMPLE_ROWS:
        for part in source.parts:
            for batch in source.read(part):
                yield _without_images(batch)
        return
    chosen = np.unique(
        np.linspace(0, len(source.parts) - 1, min(16, len(source.parts))).astype(int)
    )
    step = max(1, sum(source.parts[at].rows for at in chosen) // SAMPLE_ROWS)
    for at in chosen:
        for batch in source.read(source.parts[at]):
            yield _without_images(batch.take(pa.array(np.arange(0, batch.num_rows, step))))


def _without_images(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of whose images the heads are left: together they may be larger than memory."""
    columns = [
        pa.array([one and one[:HEAD_BYTES] for one in column.to_pylist()], column.type)
        if pa.types.is_large_binary(column.type) else column
        for column in batch.columns
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _column(name: str, kind: Kind, values: pa.Array, *, is_list: bool) -> Column:
    there = values.drop_null()
    if is_list or kind == "image":
        distinct = len(there)
    else:
        counts = ValueCounts()
        counts.add(there)
        distinct = counts.table().num_rows
    role = "feature" if is_list else _role(name, kind, there, rows=len(values), distinct=distinct)
    example = "bytes" if kind == "image" else str(there[0].as_py())[:40] if len(there) else ""
    return Column(
        name=name,
        kind=kind,
        missing=1 - len(there) / max(len(values), 1),
        distinct=distinct,
        rows=len(values),
        is_list=is_list,
        role=role,
        example=example,
        values=values,
    )


def _role(name: str, kind: Kind, there: pa.Array, *, rows: int, distinct: int) -> str:
    if not len(there):
        return "empty"
    if kind == "image":
        return "image"
    if distinct == 1 and len(there) == rows:
        return "constant"
    if kind == "string":
        return _role_of_texts(name, there, distinct=distinct)
    return _role_of_numbers(name, kind, np.asarray(there, np.float64), distinct=distinct)


def _role_of_texts(name: str, there: pa.Array, *, distinct: int) -> str:
    first = [one.as_py() for one in there[:1000]]
    if all(DATE.match(one) for one in first):
        return (
            "time" if bool(pc.all(pc.match_substring_regex(there, split.ISO)).as_py()) else "date"
        )
    if _are_texts(first) and distinct > DISTINCT_ROWS:
        return "text"
    differs = distinct >= DISTINCT_SHARE * len(there)
    if differs and (len(there) >= DISTINCT_ROWS or ID_NAME.match(name)):
        return "id"
    return "feature"


def _are_texts(values: Sequence[str]) -> bool:
    words = np.mean([len(one.split()) for one in values])
    return bool(words >= TEXT_WORDS and np.mean([len(one) for one in values]) >= TEXT_BYTES)


def _role_of_numbers(name: str, kind: Kind, numbers: np.ndarray, *, distinct: int) -> str:
    if kind == "int" and distinct == len(numbers) and len(numbers) > 1:
        # In Parquet and in sampled rows, too, a row number goes up all the way.
        steps = np.diff(numbers)
        if bool((steps > 0).all()) and (bool((steps == steps[0]).all()) or ID_NAME.match(name)):
            return "id"
    if kind == "int" and ID_NAME.match(name) and distinct >= 0.5 * len(numbers):
        return "id"
    if TIME_NAME.search(name) and any(
        bool(((numbers > EPOCH[0] * unit) & (numbers < EPOCH[1] * unit)).all())
        for unit in (1, 1e3, 1e6, 1e9)
    ):
        return "time"
    return "feature"
