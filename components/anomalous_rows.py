"""``anomalous_rows.parquet``: every row that shows an anomaly, with place, value and reason.

Written batch by batch while the gate looks at the rows, so that memory stays small whatever their
number; whole or absent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from components import documents, readers
from components.csv_lines import Lines
from components.csv_records import Dialect
from components.evidence import Check, Rows
from components.file_columns import short_name
from components.verdict import Anomaly

FILE = "anomalous_rows.parquet"
SCHEMA = pa.schema([
    ("place", pa.string()),
    ("file", pa.string()),
    ("row", pa.int64()),
    ("split", pa.string()),
    ("feature", pa.string()),
    ("kind", pa.string()),
    ("value", pa.string()),
    ("reason", pa.string()),
])
"""``row`` counts from 1, without a header; ``place`` is ``file:line`` of a CSV, ``file:row N`` of
another table. All three are null where the source is not at hand; ``value`` where it is missing."""


class RowsFile:
    """The file while it is written; there is none when no row was added.

    Args:
        path: the file.
        files: all data files, for their short names.
        dialect: how CSV files are written.
    """

    def __init__(self, path: Path, files: Sequence[str], dialect: Dialect) -> None:
        self._dialect = dialect
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._files = files
        self._writer: pq.ParquetWriter | None = None
        self._lines: dict[tuple[Path, int], Lines] = {}

    def add(self, number: int, one: Anomaly, check: Check, batch: Rows, rows: np.ndarray) -> None:
        """Add the rows of a batch that show an anomaly.

        Args:
            number: of the check, the same for all batches.
            one: the anomaly.
            check: which columns it looked at.
            batch: the rows.
            rows: indices in the batch, int64 [N], ascending.
        """
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._part, SCHEMA, compression="zstd")
        count = len(rows)
        places, file, at = self._places(number, batch, rows)
        value = batch.columns[check.columns[0]].take(pa.array(rows))
        columns = [
            places,
            _same(file, count),
            at,
            _same(one.split, count),
            _same(one.feature, count),
            _same(one.kind, count),
            _texts(value),
            _same(one.message, count),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))

    def _places(
        self, number: int, batch: Rows, rows: np.ndarray
    ) -> tuple[pa.Array, str | None, pa.Array]:
        """Return the rows' places, their file and their numbers."""
        if batch.file is None:
            return _same(None, len(rows)), None, pa.nulls(len(rows), pa.int64())
        name, path = short_name(batch.file, self._files), batch.file
        absolute = rows.astype(np.int64) + batch.first
        if documents.is_document(path):
            places = _same(name, len(rows))
        elif readers.is_csv(path):
            lines = self._lines.setdefault((path, number), Lines(path, self._dialect)).of(absolute)
            places = pa.array([f"{name}:{line}" for line in lines.tolist()], pa.string())
        else:
            places = pa.array([f"{name}:row {row}" for row in (absolute + 1).tolist()], pa.string())
        return places, name, pa.array(absolute + 1)

    def __enter__(self) -> RowsFile:
        """Begin; nothing is written yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Let the file appear whole, or take away what was written of it."""
        if self._writer is None:
            return
        self._writer.close()
        if kind is None:
            os.replace(self._part, self._path)
        else:
            with contextlib.suppress(FileNotFoundError):
                self._part.unlink()


def _same(text: str | None, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def _texts(values: pa.Array) -> pa.Array:
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.string())
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        texts = [one and one.decode(errors="replace") for one in values.to_pylist()]
        return pa.array(texts, pa.string())
    return values.cast(pa.string())
