"""Which rows show an anomaly: one pass over the rows, vectorised, with places where there are any.

A `Check` says of a batch which rows show it; `gather` counts them by split and keeps the first
places and the offending values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.value_counts import ValueCounts
from components.verdict import PLACES

Columns = Mapping[str, pa.Array]
"""Columns of a batch by name: int64, float or text [N], null where the value is missing."""
Shows = Callable[[Columns], np.ndarray]
"""Of a batch, bool [N]: which rows show it."""

Row = tuple[Path, int]
"""A file and a row of it, from 0."""
Told = Callable[[int, "Rows", np.ndarray], None]
"""Is told the number of a check, a batch, and the rows of it that show it, int64 [N]."""
LENGTH = "\0"
"""What the name of a column begins with that holds the number of another one's values."""

# A cell is a number by the rules of `column_types`: no leading zeros, whole ones within 64 bits.
INTEGER = r"^\s*-?(0|[1-9][0-9]{0,18})\s*$"
NUMBER = r"^\s*-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
DIGITS = r"^\s*-?[0-9]+\s*$"
SHOWN_LENGTH = 40


@dataclass(frozen=True)
class Rows:
    """Some rows of the data.

    Attributes:
        count: how many.
        columns: their values; a column that is not there is not looked at.
        is_in: name of a split and indices of rows, int64 [N], to bool [N].
        file: where they stand; None where that is not known.
        first: row of the file that they begin with, from 0.
    """

    count: int
    columns: Columns
    is_in: Callable[[str, np.ndarray], np.ndarray]
    file: Path | None = None
    first: int = 0


@dataclass(frozen=True)
class Check:
    """What to look for in the rows of one split.

    Attributes:
        columns: which columns are looked at; the values of the first one are told.
        split: name of the split.
        shows: finds the rows.
    """

    columns: tuple[str, ...]
    split: str
    shows: Shows


@dataclass
class Evidence:
    """The rows that show it: their number, the first of them, and the values they hold."""

    rows: int = 0
    first: list[Row] = field(default_factory=list)
    counts: ValueCounts = field(default_factory=ValueCounts)

    def values(self) -> tuple[tuple[str, int], ...]:
        """Return the most frequent values as short texts, each with its number of rows."""
        head = self.counts.table().slice(0, PLACES).to_pydict()
        return tuple(
            (_show(value), count) for value, count in zip(head["value"], head["count"], strict=True)
        )


def gather(
    checks: Sequence[Check], batches: Iterable[Rows], tell: Told = lambda *_: None
) -> list[Evidence]:
    """Return the evidence of each check, in their order.

    Args:
        checks: what to look for.
        batches: all rows.
        tell: is told of every row that shows one.
    """
    found = [Evidence() for _ in checks]
    for batch in batches:
        for number, (check, evidence) in enumerate(zip(checks, found, strict=True)):
            shown = _look(check, batch, evidence)
            if len(shown):
                tell(number, batch, shown)
    return found


def _look(check: Check, batch: Rows, evidence: Evidence) -> np.ndarray:
    """Add what a batch shows to the evidence, and return the rows that show it."""
    if any(name not in batch.columns for name in check.columns):
        return np.zeros(0, np.int64)
    shown = np.flatnonzero(check.shows(batch.columns))
    shown = shown[batch.is_in(check.split, shown)] if len(shown) else shown
    if not len(shown):
        return shown
    evidence.rows += len(shown)
    evidence.counts.add(batch.columns[check.columns[0]].take(pa.array(shown)))
    if batch.file is not None:
        free = PLACES - len(evidence.first)
        evidence.first.extend((batch.file, batch.first + int(row)) for row in shown[:free])
    return shown


def is_missing(feature: str) -> Shows:
    """Rows without a value; NaN is none."""
    return lambda columns: _bools(_missing(columns[feature]))


def is_not_in(feature: str, allowed: Sequence[Any]) -> Shows:
    """Rows whose value is none of these."""
    return lambda columns: ~_is_in(columns[feature], allowed) & _there(columns[feature])


def is_in(feature: str, values: Sequence[Any]) -> Shows:
    """Rows whose value is one of these."""
    return lambda columns: _is_in(columns[feature], values)


def is_no_number(feature: str, *, whole: bool, null: Sequence[str] = ()) -> Shows:
    """Rows whose value is no number, or no whole number.

    Args:
        feature: the column.
        whole: whether a fraction is wrong too.
        null: texts that would be missing if the column held numbers.
    """

    def shows(columns: Columns) -> np.ndarray:
        values = columns[feature]
        if _is_text(values):
            matches = pc.match_substring_regex(values, INTEGER if whole else NUMBER)
            return _bools(pc.invert(matches)) & ~_is_in(values, null)
        if whole and pa.types.is_floating(values.type):
            return _bools(pc.not_equal(values, pc.floor(values)))
        return np.zeros(len(values), np.bool_)

    return shows


def is_no_digits(feature: str) -> Shows:
    """Rows whose text is no whole number; leading zeros are none the worse."""

    def shows(columns: Columns) -> np.ndarray:
        values = columns[feature]
        if not _is_text(values):
            return _there(values)
        return _bools(pc.invert(pc.match_substring_regex(values, DIGITS)))

    return shows


def is_outside(feature: str, low: float | None, high: float | None) -> Shows:
    """Rows whose value is below `low` or above `high`; None: no bound."""

    def shows(columns: Columns) -> np.ndarray:
        values = columns[feature]
        outside = np.zeros(len(values), np.bool_)
        if low is not None:
            outside |= _bools(pc.less(values, pa.scalar(low)))
        if high is not None:
            outside |= _bools(pc.greater(values, pa.scalar(high)))
        return outside

    return shows


def is_longer(feature: str, most: int) -> Shows:
    """Rows with more values than `most`."""
    return lambda columns: _bools(pc.greater(columns[LENGTH + feature], pa.scalar(most)))


def lengths(column: pa.Array) -> pa.Array:
    """Return how many values each row of a column has, int64 [N]."""
    if pa.types.is_large_list(column.type):
        return pc.fill_null(pc.list_value_length(column), 0)
    return column.is_valid().cast(pa.int64())


def is_not_finite(feature: str) -> Shows:
    """Rows whose value is NaN or infinite."""
    return lambda columns: _bools(pc.invert(pc.is_finite(columns[feature])))


def differs(feature: str, other: str) -> Shows:
    """Rows in which the two columns do not hold the same."""

    def shows(columns: Columns) -> np.ndarray:
        left, right = columns[feature], columns[other]
        if _is_text(left) != _is_text(right):
            return np.ones(len(left), np.bool_)
        return _bools(pc.not_equal(left, right)) | (_there(left) != _there(right))

    return shows


def is_there(feature: str) -> Shows:
    """Rows that have a value."""
    return lambda columns: _there(columns[feature])


def _is_in(values: pa.Array, wanted: Sequence[Any]) -> np.ndarray:
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.bool_)
    if pa.types.is_floating(kind):
        # The examples hold float32: the same cut for both sides.
        values, kind = values.cast(pa.float32()), pa.float32()
    try:
        wanted_array = pa.array(list(wanted), kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return np.zeros(len(values), np.bool_)
    return _bools(pc.is_in(values, value_set=wanted_array)) & _there(values)


def _missing(values: pa.Array) -> pa.Array:
    return pc.is_null(values, nan_is_null=pa.types.is_floating(values.type))


def _there(values: pa.Array) -> np.ndarray:
    return ~_bools(_missing(values))


def _bools(values: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(values, False), dtype=np.bool_)


def _is_text(values: pa.Array) -> bool:
    kind = values.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _show(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    short = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 1] + "…"
    return f'"{short}"' if isinstance(value, bytes | str) else short


def plain(column: pa.Array) -> pa.Array:
    """Return a column of lists as its first values: int64, float32 or large_string [N].

    Text that is not UTF-8 stays bytes.
    """
    if pa.types.is_null(column.type):
        return column
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    values = column.flatten()
    starts = np.cumsum(lengths) - lengths
    first = values.take(pa.array(starts, pa.int64(), mask=lengths == 0))
    if not pa.types.is_large_binary(first.type):
        return first
    try:
        return first.cast(pa.large_string())
    except pa.ArrowInvalid:
        return first
