"""Which rows are held back for evaluation: by hash, by time, or by a column that says so.

By hash, a row's split depends on what the row holds and on nothing else: not on the order of rows,
the number of files or their format, nor on columns without a value. Equal rows share a split.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.column_types import Layout
from components.value_counts import ValueCounts
from components.verdict import count_rows
from trainer.errors import DataFileError, SettingError

SPLITS = ("train", "eval")
IsEval = Callable[[pa.RecordBatch], np.ndarray]
"""Takes rows with the layout's columns, returns bool [rows]: held back or not."""

KEPT_HASHES = 1 << 16
"""Texts whose hashes are kept: most come again, and this is done while other threads wait."""
_MISSING = np.uint64(0x9E3779B97F4A7C15)
ISO = r"^\d{4}-\d{2}-\d{2}"


class RowRefused(DataFileError):
    """A row does not say which split it is in.

    Attributes:
        row: its place in the batch, from 0.
    """

    row = 0

    def at(self, place: str) -> DataFileError:
        """Return the error with the row's place in its file."""
        return DataFileError(self.what, where=place, holds=self.holds, right=self.right)


def by_settings(
    split: Mapping[str, Any], layout: Layout, batches: Callable[[], Iterable[pa.RecordBatch]]
) -> IsEval:
    """Return the function that the settings ask for.

    Args:
        split: ``by``, ``column`` and ``eval``.
        layout: the columns.
        batches: yields all rows; called only where the split depends on all of them.

    Raises:
        SettingError: when the column is not there or does not hold what a split needs.
    """
    check_column(split, layout)
    column = split["column"]
    if split["by"] == "time":
        return by_time(column, split["eval"], batches())
    if split["by"] == "column":
        return by_column(column)
    columns = (
        [column]
        if column
        else [one for one in layout.kinds if one not in layout.places | layout.empty]
    )
    return by_hash(columns, split["eval"])


def differs_by_design(split: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the column that the splits are made by: train never holds what eval does."""
    return (split["column"],) if split["by"] in {"column", "time"} else ()


def check_column(split: Mapping[str, Any], layout: Layout) -> None:
    """Refuse a column that cannot say what split a row is in.

    Args:
        split: ``by`` and ``column``.
        layout: the columns.

    Raises:
        SettingError: when it is not there, or holds lists.
    """
    column = split["column"]
    if column and column not in layout.kinds:
        raise SettingError(
            "the data has no such column",
            where="data.split.column",
            holds=f'"{column}"',
            right=f"the columns are {', '.join(list(layout.kinds)[:20])}",
        )
    if column in layout.lists and split["by"] != "hash":
        raise SettingError(
            "the column holds lists", where="data.split.column", holds=f'"{column}"',
            right="name a column with one value in each row",
        )  # fmt: skip


def by_hash(columns: Iterable[str], share: float) -> IsEval:
    """Hold back the rows whose hash of these columns falls into the lowest `share` of its range."""
    names = sorted(columns)
    limit = np.uint64(min(int(share * 2**64), 2**64 - 1))

    def is_eval(batch: pa.RecordBatch) -> np.ndarray:
        return hash_rows(batch, names) < limit

    return is_eval


def hash_rows(batch: pa.RecordBatch, columns: Iterable[str], *, salt: int = 0) -> np.ndarray:
    """Return a hash of each row's values in these columns, uint64 [rows].

    Each value is mixed with its column's name, the mixes are added up, and the sum is mixed again,
    so the order of columns does not matter. Mixing is the finaliser of SplitMix64 (Steele et al.
    2014, doi:10.1145/2714064.2660195); texts are hashed by BLAKE2b. Another salt makes another
    hash of the same values.
    """
    total = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        of_name = _text_hash(name) ^ np.uint64(salt * 0xD6E8FEB86659FD93 % 2**64)
        total += _mix(_value_hashes(batch.column(batch.schema.get_field_index(name))) ^ of_name)
    return _mix(total)


def _value_hashes(column: pa.Array) -> np.ndarray:
    if pa.types.is_large_list(column.type):
        if pa.types.is_floating(column.type.value_type):
            column = column.cast(pa.large_list(pa.float32()))
        return np.array([_text_hash(repr(one or [])) for one in column.to_pylist()], np.uint64)
    present = np.asarray(pc.is_valid(column))
    if pa.types.is_large_binary(column.type):
        hashes = np.array([_bytes_hash(one or b"") for one in column.to_pylist()], np.uint64)
    elif pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        of_text = np.array(
            [_text_hash(one) for one in encoded.dictionary.to_pylist()] or [0], np.uint64
        )
        hashes = of_text[np.asarray(pc.fill_null(encoded.indices, 0))]
    else:
        hashes = _mix(_number_bits(np.asarray(pc.fill_null(column, 0))))
    return np.where(present, hashes, _MISSING)


def _number_bits(values: np.ndarray) -> np.ndarray:
    """Return int64 or float64 as uint64, the same for equal numbers of either type.

    So no row changes its split when a fraction in another row makes the column float, and minus
    zero is zero. Fractions are taken as float32, as which examples hold them.
    """
    if values.dtype == np.int64:
        return values.view(np.uint64)
    with np.errstate(over="ignore"):
        short = values.astype(np.float32).astype(np.float64)
    values = np.where(values == np.floor(values), values, short)
    is_whole = (values == np.floor(values)) & (np.abs(values) < 2**63)
    integers = np.where(is_whole, values, 0).astype(np.int64)
    return np.where(is_whole, integers.view(np.uint64), values.view(np.uint64))


@functools.lru_cache(maxsize=KEPT_HASHES)
def _text_hash(text: str) -> np.uint64:
    return _bytes_hash(text.encode())


def _bytes_hash(data: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big"))


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def by_time(column: str, share: float, batches: Iterable[pa.RecordBatch]) -> IsEval:
    """Hold back the newest `share` of the rows, and those as old as the oldest of them.

    Args:
        column: numbers, or texts that begin with an ISO 8601 date.
        share: of the rows.
        batches: all rows.

    Raises:
        SettingError: when a row has no time, its text is no date, or all have the same time.
    """
    table = times_of(column, batches)
    times = table["value"]
    if len(times) < 2:
        raise SettingError(
            f"all rows have the same time in column {column}",
            where="data.split.column",
            holds=f'"{column}"',
            right="split by hash, or by a column whose times differ",
        )
    until = np.cumsum(np.asarray(table["count"]))
    first = min(round(int(until[-1]) * (1 - share)), int(until[-1]) - 1)
    # The oldest time is always for training.
    cut = times[max(int(np.searchsorted(until, first, side="right")), 1)].as_py()

    def is_eval(batch: pa.RecordBatch) -> np.ndarray:
        return np.asarray(pc.greater_equal(batch.column(batch.schema.get_field_index(column)), cut))

    return is_eval


def times_of(column: str, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return columns ``value`` and ``count`` of the rows' times, oldest first.

    Raises:
        SettingError: when a row has no time, or its text is no date.
    """
    counts, missing = ValueCounts(), 0
    for batch in batches:
        own = batch.column(batch.schema.get_field_index(column))
        counts.add(own)
        missing += own.null_count
    if missing:
        raise SettingError(
            f"column {column} has no time in {count_rows(missing)}",
            where="data.split.column",
            holds=f'"{column}"',
            right="split by hash, or by a column that every row fills",
        )
    table = counts.table().sort_by("value")
    if pa.types.is_string(table["value"].type):
        wrong = table["value"].filter(pc.invert(pc.match_substring_regex(table["value"], ISO)))
        if len(wrong):
            raise SettingError(
                f"column {column} must hold ISO 8601 times where it is text",
                where="data.split.column",
                holds=f'"{column}" with "{wrong[0].as_py()}"',
                right="write times as 2013-01-31T05:00:00Z, or as numbers",
            )
    return table


def by_column(column: str) -> IsEval:
    """Hold back the rows whose column says ``eval``; the others must say ``train``."""

    def is_eval(batch: pa.RecordBatch) -> np.ndarray:
        values = batch.column(batch.schema.get_field_index(column)).cast(pa.string())
        known = np.asarray(pc.is_in(values, value_set=pa.array(SPLITS)))
        if not known.all():
            raise _unknown_split(column, values, int(np.argmin(known)))
        return np.asarray(pc.equal(values, "eval"))

    return is_eval


def _unknown_split(column: str, values: pa.Array, row: int) -> RowRefused:
    other = values[row].as_py()
    refused = RowRefused(
        f"column {column} names no split",
        where="data.split.column",
        holds="nothing" if other is None else f'"{other}"',
        right='write "train" or "eval" in every row, or set data.split.by to "hash" or "time"',
    )
    refused.row = row
    return refused
