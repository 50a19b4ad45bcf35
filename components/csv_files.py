"""CSV files as Arrow batches: ranges of whole records, parsed apart from one another.

A file is read twice: once to see every value's type, once to convert it. Where something is wrong,
a third, slow pass finds the lines (`csv_records.explain`).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from components import csv_records
from components.column_types import Layout, Nulls, Seen, is_not_finite, see_texts, typed
from components.csv_records import PLAIN, Dialect
from trainer.errors import DataFileError

Range = tuple[int, int]
PACKED: Range = (0, -1)
"""The one range of a packed or decoded file, which cannot be entered in its middle."""


class Unparsed(Exception):
    """A range holds what is no record; `csv_records.explain` tells which lines."""


def ranges(path: Path, dialect: Dialect = PLAIN, size: int = 0) -> list[Range]:
    """Return the first byte and the end of ranges that hold whole records, without the header.

    Args:
        path: the file.
        dialect: how it is written.
        size: about how many bytes one has; 0: `csv_records.BLOCK_BYTES`.

    Raises:
        DataFileError: naming the line of a quote that nothing closes.
    """
    if path.suffix in csv_records.PACKED_SUFFIXES or not dialect.is_utf8:
        return [PACKED]
    found = csv_records.blocks(path, size, dialect)
    return [(start, start + len(data)) for start, data in found]


def see(
    path: Path, part: Range, names: list[str], null: Nulls, dialect: Dialect = PLAIN
) -> tuple[int, dict[str, Seen]]:
    """Return the rows of a range and what its values show, by column.

    Raises:
        Unparsed: when the range does not hold records alone.
    """
    rows, seen = 0, {name: Seen() for name in names}
    for batch in _texts(_blocks(path, part, dialect), names, dialect):
        rows += batch.num_rows
        for name, column in zip(names, batch.columns, strict=True):
            seen[name].merge(see_column(column, null))
    return rows, seen


def head(
    path: Path, names: list[str], *, size: int, dialect: Dialect = PLAIN
) -> tuple[pa.Table, bool]:
    """Return the cells of about the first `size` bytes, and whether those are all of the file.

    Raises:
        Unparsed: when they do not hold records alone.
    """
    found = csv_records.blocks(path, size, dialect)
    batches = list(_texts((data for _, data in itertools.islice(found, 1)), names, dialect))
    texts = pa.schema([(name, pa.string()) for name in names])
    return pa.Table.from_batches(batches, texts), next(found, None) is None


def see_column(column: pa.Array, null: Nulls) -> Seen:
    """Return what the cells of a column show."""
    return see_texts(column.dictionary_encode().dictionary, null)


def read(
    path: Path,
    part: Range,
    names: list[str],
    layout: Layout,
    null: Nulls,
    dialect: Dialect = PLAIN,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a range, typed: int64, float64 or string, missing ones null.

    Raises:
        Unparsed: when the range does not hold records alone.
    """
    for batch in _texts(_blocks(path, part, dialect), names, dialect):
        columns = [
            typed(column, layout.kinds[name], null)
            for name, column in zip(names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names)


def _blocks(path: Path, part: Range, dialect: Dialect) -> Generator[Any, None, None]:
    if part == PACKED:
        for _, data in csv_records.blocks(path, dialect=dialect):
            yield data
        return
    with csv_records.open_bytes(path) as file:
        file.seek(part[0])
        yield file.read(part[1] - part[0])


def _texts(
    blocks: Iterable[bytes], names: list[str], dialect: Dialect
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the cells of whole records as texts, a batch a block.

    Raises:
        Unparsed: when a block does not hold records alone.
    """
    # A file that has lost its end since it was cut gives an empty block, where Arrow sees an error.
    for data in filter(None, blocks):
        try:
            table = _parse(data, names, dialect)
        except pa.ArrowInvalid as error:
            raise Unparsed(str(error)) from error
        yield from table.to_batches()


def _parse(data: bytes, names: list[str], dialect: Dialect) -> pa.Table:
    return pa_csv.read_csv(
        pa.BufferReader(data),
        # One block: the records have been found already.
        read_options=pa_csv.ReadOptions(
            column_names=names, block_size=len(data) + 1, use_threads=False
        ),
        # Without a handler for ragged rows, which would print where their bytes are not UTF-8.
        parse_options=pa_csv.ParseOptions(
            newlines_in_values=True, delimiter=dialect.delimiter, quote_char=dialect.quote
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )


def not_finite(
    path: Path, name: str, null: Nulls, dialect: Dialect = PLAIN
) -> DataFileError | None:
    """Return the error that names the first number of a column that is not finite, if any."""
    records = csv_records.records(path, dialect)
    at = next(records)[2].index(name)
    for line, _, cells in records:
        if is_not_finite(cells[at], null):
            return DataFileError(
                f"column {name} holds a number that is infinite or past what float32 holds",
                where=f"{path}:{line}",
                holds=cells[at].strip(),
                right="put its text into data.null_values to read it as missing",
            )
    return None
