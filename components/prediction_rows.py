"""Rows of files as a model is asked about them: in order, in batches, each with what is wrong."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components import column_types, example_files, image_files, readers, served
from trainer.errors import DataFileError, InputError

BATCH_ROWS = 4096
"""Rows that are read, looked at and written at once."""
CSV_BYTES = 1 << 20
"""Of a CSV that are read at once by each thread that looks at the types of its columns."""

Batches = Iterator[tuple[pa.RecordBatch, dict[str, np.ndarray], list[str]]]
"""The rows as they were read, the model's columns by key, and what is wrong with each row."""


@dataclass(frozen=True)
class Rows:
    """Files that were looked at.

    Attributes:
        names: columns that they have.
        read: yields their rows; takes whether a row that cannot be read is kept.
    """

    names: frozenset[str]
    read: Callable[[bool], Batches]


@dataclass(frozen=True)
class Files:
    """What a path, a folder or a glob stands for: TFRecord files of ours, or others."""

    paths: list[Path]
    are_records: bool

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(one.stat().st_size for one in self.paths)


def find(data: str) -> Files:
    """Return the files that a path, a folder or a glob stands for.

    Raises:
        InputError: when there are none.
    """
    records = _records(data)
    paths = records or list(readers.resolve(data, Path.cwd()).files)
    return Files(paths, bool(records))


def look(files: Files, columns: list[dict[str, Any]], nulls: list[str]) -> Rows:
    """Look at the types of the columns.

    Args:
        files: of `find`.
        columns: of the model.
        nulls: texts that stand for a missing value.

    Raises:
        InputError: when they cannot be read, or a column of the model holds lists.
    """
    if files.are_records:
        names = frozenset().union(*(example_files.seen(one) for one in files.paths))
        return Rows(names, lambda keep: _of_records(files.paths, columns, keep))
    source = readers.inspect(files.paths, nulls, block=CSV_BYTES)
    kinds = source.layout.kinds
    lists = [one["column"] for one in columns if one["column"] in source.layout.lists]
    if lists:
        what = f"column {lists[0]} holds several values in a row"
        raise InputError(what, where="DATA", right="give one value a row")
    return Rows(frozenset(kinds), lambda keep: _of_tables(source, columns, keep))


def _records(data: str) -> list[Path]:
    path = Path(data).absolute()
    if path.is_dir():
        return sorted(one for one in path.iterdir() if example_files.is_one(one))
    found = sorted(Path(one) for one in glob.glob(str(path), recursive=True))
    return [one for one in found if example_files.is_one(one)]


def _of_records(paths: list[Path], columns: list[dict[str, Any]], keep: bool) -> Batches:
    for path in paths:
        for first, rows, errors in example_files.read(path, columns):
            if not keep:
                _refuse(
                    errors, lambda at, path=path, first=first: f"{path}: record {first + at + 1}"
                )
            fed = {one["key"]: _values(one, rows, errors) for one in columns}
            yield rows, fed, errors


def _of_tables(source: readers.Source, columns: list[dict[str, Any]], keep: bool) -> Batches:
    for part in source.parts:
        first = part.first
        for batch in source.read(part):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                rows = batch.slice(start, BATCH_ROWS)
                errors = [""] * rows.num_rows
                fed = {one["key"]: _values(one, rows, errors) for one in columns}
                if not keep:
                    place = part.path, first + start
                    _refuse(errors, lambda at, p=place: readers.places(p[0], [p[1] + at])[0])
                yield rows, fed, errors
            first += batch.num_rows


def _refuse(errors: list[str], place: Callable[[int], str]) -> None:
    """Refuse the first row that something is wrong with.

    Raises:
        DataFileError: naming its place.
    """
    at = next((at for at, one in enumerate(errors) if one), None)
    if at is not None:
        right = "correct the row, or keep such rows with --keep-errors"
        raise DataFileError(errors[at], where=place(at), right=right)


def _values(column: Mapping[str, Any], rows: pa.RecordBatch, errors: list[str]) -> np.ndarray:
    at = rows.schema.get_field_index(column["column"])
    if at < 0:
        return served.missing(column, rows.num_rows)
    values = rows.column(at)
    if column["kind"] == "image":
        return _images(column, values, errors)
    if column["kind"] == "string" or not pa.types.is_string(values.type):
        return served.plain(column, values)
    return _numbers(column["column"], values.to_pylist(), errors)


def _images(column: Mapping[str, Any], values: pa.Array, errors: list[str]) -> np.ndarray:
    """Return encoded images; a row with none, or one that cannot be decoded, gets an error."""
    name, found = column["column"], served.missing(column, len(values))
    is_bytes = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    for at, value in enumerate(values.to_pylist()):
        what = image_files.problem(value if is_bytes else b"")
        if what:
            errors[at] = errors[at] or f"column {name} {what}"
        else:
            found[at] = value
    return found


def _numbers(name: str, texts: list[str | None], errors: list[str]) -> np.ndarray:
    """Read numbers of a column in which some rows hold texts; these rows get an error."""
    missing = column_types.DEFAULT_NULLS
    numbers = np.full(len(texts), np.nan)
    for at, text in enumerate(texts):
        if text is None or text.strip() in missing:
            continue
        try:
            numbers[at] = float(text)
        except ValueError:
            errors[at] = errors[at] or f"column {name} holds no number: {json.dumps(text)}"
    return numbers
