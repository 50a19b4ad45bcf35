"""Parquet files: one range a row group; types as in `column_types`, refused by column and row."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.column_types import Layout, Nulls, Seen, is_not_finite, see_numbers, typed
from trainer.errors import DataFileError

BATCH_ROWS, IMAGE_ROWS = 1 << 15, 256
"""Rows at once, and where they hold images."""
BYTES = "bytes"
Range = tuple[int, int]


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    # Names are decoded when the footer is read: damaged ones may be no UTF-8.
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise DataFileError(
            f"the file is no Parquet that can be read ({str(error).splitlines()[0]})",
            where=str(path),
            right="write it again, or give it the ending of what it is",
        ) from error


def header(path: Path) -> list[str]:
    """Return the column names.

    Raises:
        DataFileError: the file cannot be read, or a column has a type that no rule covers.
    """
    schema = _open(path).schema_arrow
    for number, field in enumerate(schema, start=1):
        if not field.name.strip():
            raise DataFileError(
                f"column {number} has no name",
                where=str(path),
                right="give every column a name",
            )
        if (first := schema.names.index(field.name) + 1) != number:
            raise DataFileError(
                f"column name '{field.name}' occurs twice (columns {first} and {number})",
                where=str(path),
                right="give each column a name of its own",
            )
        if not _is_covered(_item(field.type)):
            raise DataFileError(
                f"column {field.name} has a type that cannot be read",
                where=str(path),
                holds=str(field.type),
                right="write it as numbers, texts, booleans, dates, times, lists of them, or bytes "
                "of images",
            )
    return list(schema.names)


def _item(kind: pa.DataType) -> pa.DataType:
    """Return the type of one value: of a list's item, a dictionary's values, a struct's bytes."""
    if _holds_bytes(kind):
        return kind.field(kind.get_field_index(BYTES)).type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _holds_bytes(kind: pa.DataType) -> bool:
    """Say whether values are structs with the bytes of an image, as some tools write them."""
    return pa.types.is_struct(kind) and kind.get_field_index(BYTES) >= 0


def _is_covered(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_null,
        pa.types.is_temporal,
        pa.types.is_binary,
        pa.types.is_large_binary,
    )
    return any(test(kind) for test in tests) and not pa.types.is_duration(kind)


def ranges(path: Path) -> list[Range]:
    """Return row groups, each with its number and its first row."""
    file = _open(path)
    found, row = [], 0
    for group in range(file.num_row_groups):
        found.append((group, row))
        row += file.metadata.row_group(group).num_rows
    return found


def see(path: Path, part: Range, null: Nulls) -> tuple[int, dict[str, Seen]]:
    """Return the rows of a row group and what its values show, by column.

    Raises:
        DataFileError: naming column and row of a text that is not UTF-8.
    """
    rows, seen = 0, {name: Seen() for name in header(path)}
    for batch in _batches(path, part):
        check_texts(path, batch, part[1] + rows)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            seen[name].merge(see_column(column, null))
        rows += batch.num_rows
    return rows, seen


def head(path: Path, *, rows: int) -> tuple[pa.Table, bool]:
    """Return the first rows of a file, and whether those are all.

    Raises:
        DataFileError: when they cannot be read, or hold a text that is not UTF-8.
    """
    file = _open(path)
    batches = []
    if file.num_row_groups:
        batches = list(itertools.islice(_batches(path, (0, 0), rows=rows), 1))
    for batch in batches:
        check_texts(path, batch, 0)
    found = pa.Table.from_batches(batches, batches[0].schema if batches else file.schema_arrow)
    return found, found.num_rows == file.metadata.num_rows


def check_texts(path: Path, batch: pa.RecordBatch, first: int) -> None:
    """Refuse text that is not UTF-8: Arrow reads it from Parquet without looking at its bytes.

    Args:
        path: the file.
        batch: some of its rows.
        first: the row that they begin with.

    Raises:
        DataFileError: naming column and row.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            not_text = _not_utf8(path, name, column, first)
            raise not_text from error


def see_column(column: pa.Array, null: Nulls) -> Seen:
    """Return what the values of a column show."""
    is_list = _is_list(column.type)
    values = _decoded(column.flatten() if is_list else column)
    if pa.types.is_decimal(values.type):
        seen = see_numbers(values.cast(pa.float64(), safe=False))
    elif pa.types.is_boolean(values.type):
        seen = see_numbers(values.cast(pa.int8()))
    elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        seen = see_numbers(values)
    elif _is_bytes(values.type):
        has_values = values.null_count < len(values)
        seen = Seen(has_values=has_values, is_image=has_values)
    else:
        there = values.drop_null()
        if pa.types.is_string(there.type) or pa.types.is_large_string(there.type):
            texts = there.dictionary_encode().dictionary
            missing = pc.is_in(texts, value_set=pa.array(null.number, texts.type))
            there = texts.filter(pc.invert(missing))
        seen = Seen(has_values=len(there) > 0, is_text=len(there) > 0)
    seen.is_list = is_list
    return seen


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _not_utf8(path: Path, name: str, column: pa.Array, first: int) -> DataFileError:
    """Return the error that names the first row whose text is not UTF-8."""
    row = next((at for at in range(len(column)) if not _is_text(column[at : at + 1])), 0)
    return DataFileError(
        f"column {name} holds text that is not UTF-8",
        where=f"{path}:row {first + row + 1}",
        right="write the column's texts in UTF-8",
    )


def _is_text(one: pa.Array) -> bool:
    try:
        one.to_pylist()
    except UnicodeDecodeError:
        return False
    return True


def not_finite(path: Path, name: str, null: Nulls) -> DataFileError | None:
    """Return the error that names the first number of a column that is not finite, if any."""
    for part in ranges(path):
        first = part[1]
        for batch in _batches(path, part):
            row = _first_not_finite(batch.column(batch.schema.get_field_index(name)), null)
            if row is not None:
                return DataFileError(
                    f"column {name} holds a number that is infinite or past what float32 holds",
                    where=f"{path}:row {first + row + 1}",
                    right="write it as null to have it read as missing",
                )
            first += batch.num_rows
    return None


def _first_not_finite(column: pa.Array, null: Nulls) -> int | None:
    for row, cell in enumerate(column.to_pylist()):
        for value in cell if isinstance(cell, list) else [cell]:
            if value is not None and is_not_finite(str(value), null):
                return row
    return None


def read(
    path: Path, part: Range, layout: Layout, null: Nulls
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a row group, typed as in `column_types`; lists stay lists."""
    for batch in _batches(path, part):
        columns = [
            typed_column(column, name, layout, null)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, batch.schema.names)


def typed_column(column: pa.Array, name: str, layout: Layout, null: Nulls) -> pa.Array:
    """Return a column typed as in `column_types`; lists stay lists."""
    kind = layout.kinds[name]
    if not _is_list(column.type):
        return typed(_plain(column), kind, null)
    values = typed(_plain(column.flatten()), kind, null)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # A missing value inside a list is left out.
    there = np.concatenate([[0], np.cumsum(np.asarray(values.is_valid()))])
    return pa.LargeListArray.from_arrays(
        pa.array(there[offsets].astype(np.int64)), values.drop_null()
    )


def _plain(values: pa.Array) -> pa.Array:
    """Return what has no number or text of its own as one."""
    values = _decoded(values)
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int8())
    if pa.types.is_decimal(values.type):
        return values.cast(pa.float64(), safe=False)
    if pa.types.is_temporal(values.type):
        return _iso(values)
    return values


def _iso(values: pa.Array) -> pa.Array:
    """Return dates, times and timestamps as ISO 8601 text, with a T between date and time."""
    if pa.types.is_timestamp(values.type) and values.type.tz:
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    texts = values.cast(pa.string())
    return pc.replace_substring(texts, " ", "T") if pa.types.is_timestamp(values.type) else texts


def _bytes_of(column: pa.Array) -> pa.Array:
    """Return the bytes of structs that hold some, others as they are."""
    if not _holds_bytes(column.type):
        return column
    return pc.struct_field(column, [column.type.get_field_index(BYTES)])


def _batches(
    path: Path, part: Range, rows: int = BATCH_ROWS
) -> Generator[pa.RecordBatch, None, None]:
    try:
        file = _open(path)
        if any(_is_bytes(_item(one.type)) for one in file.schema_arrow):
            rows = min(rows, IMAGE_ROWS)
        for batch in file.iter_batches(rows, row_groups=[part[0]], use_threads=False):
            columns = [_bytes_of(one) for one in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataFileError(
            f"the file is damaged in row group {part[0] + 1} ({str(error).splitlines()[0]})",
            where=str(path),
            right="copy it here again, or write it again",
        ) from error
