"""Cleaning of rows, on request only, in ExampleGen: each rule counted, none applied silently.

Values first, in this order: texts are trimmed, blank ones made missing, values mapped, numbers
clipped. Then rows are dropped: those without a label, those with an image that is missing or cannot
be decoded, and all but the first of equal ones. Types
are decided before, by what the files hold; a row's split follows from what it holds afterwards.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import image_files, split
from components.column_types import ARROW, Layout
from components.readers import Source
from trainer.errors import SettingError

EVERY = "*"
BUCKETS = 64
"""Files that hashes of rows are shared out to, so that one of them fits into memory."""
KEY = "data.clean"
Counts = Counter[str]
"""Rule, or ``rule:column``, to how many values or rows it changed or dropped."""


@dataclass(frozen=True)
class Rules:
    """What is asked for; empty: nothing.

    Attributes:
        trim: text columns whose values lose the blanks around them; ``*``: all of them.
        blank_to_missing: text columns in which blanks alone are missing; ``*``: all of them.
        map: column to value to its replacement, as texts; an empty one is missing.
        clip: number column to its least and greatest value.
        drop_unlabelled: whether rows without a label go.
        drop_duplicates: whether rows go that equal an earlier one in every column.
        drop_broken_images: whether rows go whose image is missing or cannot be decoded.
    """

    trim: tuple[str, ...] = ()
    blank_to_missing: tuple[str, ...] = ()
    map: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    clip: Mapping[str, Sequence[float]] = field(default_factory=dict)
    drop_unlabelled: bool = False
    drop_duplicates: bool = False
    drop_broken_images: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any] | None) -> Rules:
        """Read the rules out of a node's settings."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value
                      for name, value in (told or {}).items()})  # fmt: skip

    @property
    def changes_values(self) -> bool:
        """Whether any value may change."""
        return bool(self.trim or self.blank_to_missing or self.map or self.clip)

    @property
    def drops_rows(self) -> bool:
        """Whether any row may go."""
        return self.drop_unlabelled or self.drop_duplicates or self.drop_broken_images


class Cleaning:
    """Rules made ready for the columns of one data set.

    Args:
        rules: what is asked for.
        layout: the columns.
        label: name of the label's column; empty: there is none.

    Raises:
        SettingError: a rule names a column that is not there, or one of another type.
    """

    def __init__(self, rules: Rules, layout: Layout, label: str) -> None:
        self.rules, self._layout, self._label = rules, layout, label
        self._duplicate = np.zeros(0, np.bool_)
        texts = [name for name, kind in layout.kinds.items()
                 if kind == "string" and name not in layout.lists]  # fmt: skip
        self._trim = self._named("trim", rules.trim, texts)
        self._blank = self._named("blank_to_missing", rules.blank_to_missing, texts)
        numbers = [name for name, kind in layout.kinds.items()
                   if kind != "string" and name not in layout.lists]  # fmt: skip
        self._named("clip", rules.clip, numbers)
        self._named("map", rules.map, [*texts, *numbers])
        self._maps = {name: self._pairs(name, of) for name, of in rules.map.items()}

    def _named(self, rule: str, names: Iterable[str], allowed: Sequence[str]) -> frozenset[str]:
        """Return the columns that a rule is for.

        Raises:
            SettingError: one is not there, or of another type.
        """
        for name in names:
            if name != EVERY and name not in allowed:
                kind = self._layout.kinds.get(name)
                raise SettingError(
                    f"the column is {kind}, which this rule is not for"
                    if kind
                    else "the data has no such column",
                    where=f"{KEY}.{rule}",
                    holds=f'"{name}"',
                    right=f"name one of {', '.join(list(allowed)[:20]) or 'no column here'}",
                )
        return frozenset(allowed if EVERY in names else names)

    def _pairs(self, name: str, values: Mapping[str, str]) -> tuple[pa.Array, pa.Array]:
        """Return the values of a map and their replacements, in the column's type.

        Raises:
            SettingError: one is no value of that type.
        """
        kind = ARROW[self._layout.kinds[name]]
        try:
            old = pa.array(list(values), pa.string()).cast(kind)
            new = pa.array([one or None for one in values.values()], pa.string()).cast(kind)
        except pa.ArrowInvalid as error:
            raise SettingError(
                f"a value is no {self._layout.kinds[name]}, as the column is",
                where=f"{KEY}.map.{name}",
                holds=str(dict(values)),
                right="map numbers to numbers",
            ) from error
        return old, new

    def values(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Counts]:
        """Return the rows with their values cleaned, and how many changed by each rule."""
        counts: Counts = Counter()
        if not self.rules.changes_values:
            return batch, counts
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for rule, change in self._changes(name):
                changed = change(column)
                if number := _differing(column, changed):
                    counts[f"{rule}:{name}"] += number
                    column = changed
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, batch.schema.names), counts

    def _changes(self, name: str) -> list[tuple[str, Callable[[pa.Array], pa.Array]]]:
        found: list[tuple[str, Callable[[pa.Array], pa.Array]]] = []
        if name in self._trim:
            found.append(("trim", pc.utf8_trim_whitespace))
        if name in self._blank:
            found.append(("blank_to_missing", _without_blanks))
        if name in self._maps:
            found.append(("map", functools.partial(_mapped, self._maps[name])))
        if name in self.rules.clip:
            found.append(("clip", functools.partial(_clipped, self.rules.clip[name])))
        return found

    def kept(self, batch: pa.RecordBatch, first: int) -> tuple[np.ndarray, Counts]:
        """Return which of the cleaned rows are kept, bool [N], and how many each rule drops.

        Args:
            batch: rows whose values are cleaned.
            first: row of all files together that they begin with.
        """
        kept, counts = np.ones(batch.num_rows, np.bool_), Counter[str]()
        if self.rules.drop_unlabelled and self._label:
            labels = batch.column(batch.schema.get_field_index(self._label))
            there = np.asarray(pc.is_valid(labels))
            counts["drop_unlabelled"] += int((~there).sum())
            kept &= there
        if self.rules.drop_broken_images:
            broken = np.zeros(batch.num_rows, np.bool_)
            broken[[row for row, _ in broken_images(batch, kept)]] = True
            counts["drop_broken_images"] += int(broken.sum())
            kept &= ~broken
        if self.rules.drop_duplicates:
            again = self._duplicate[first : first + batch.num_rows] & kept
            counts["drop_duplicates"] += int(again.sum())
            kept &= ~again
        return kept, +counts

    def find_duplicates(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Find the rows that equal an earlier one; called once, where they are to be dropped.

        Memory holds one hash in `BUCKETS` of all rows, and a byte for each row.

        Args:
            batches: all rows as the files hold them, in order.
        """
        if not self.rules.drop_duplicates:
            return
        with tempfile.TemporaryDirectory(prefix="headrace-rows-") as folder:
            rows = _write_hashes((self.values(batch)[0] for batch in batches), Path(folder))
            self._duplicate = np.zeros(rows, np.bool_)
            for path in Path(folder).iterdir():
                self._duplicate[_repeated(np.fromfile(path, np.uint64).reshape(-1, 3))] = True


def broken_images(batch: pa.RecordBatch, kept: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yield each row with an image that is missing or cannot be decoded, and what is wrong with it.

    Args:
        batch: rows; columns of bytes are images.
        kept: the rows that are looked at, bool [N].
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_large_binary(column.type):
            for row in np.flatnonzero(kept).tolist():
                if what := image_files.problem(column[row].as_py()):
                    yield row, f"column {name} {what}"


def cleaned_batches(source: Source, cleaning: Cleaning) -> Iterator[pa.RecordBatch]:
    """Yield all rows that are kept, cleaned."""
    first = 0
    for part in source.parts:
        for batch in source.read(part):
            cleaned, _ = cleaning.values(batch)
            kept, _ = cleaning.kept(cleaned, first)
            first += batch.num_rows
            yield cleaned if kept.all() else cleaned.filter(pa.array(kept))


def _write_hashes(batches: Iterable[pa.RecordBatch], folder: Path) -> int:
    """Write two hashes of each row, and its number, to the file of its bucket; return the rows."""
    rows = 0
    for batch in batches:
        names = sorted(batch.schema.names)
        one, other = (split.hash_rows(batch, names, salt=salt) for salt in (0, 1))
        numbers = np.arange(rows, rows + batch.num_rows, dtype=np.uint64)
        table = np.stack([one, other, numbers], axis=1)
        buckets = one % np.uint64(BUCKETS)
        for bucket in np.unique(buckets).tolist():
            with open(folder / str(bucket), "ab") as file:
                table[buckets == bucket].tofile(file)
        rows += batch.num_rows
    return rows


def _repeated(table: np.ndarray) -> np.ndarray:
    """Return the numbers of rows whose two hashes an earlier row has, int64."""
    order = np.lexsort((table[:, 2], table[:, 1], table[:, 0]))
    ordered = table[order]
    again = (ordered[1:, :2] == ordered[:-1, :2]).all(axis=1)
    return ordered[1:, 2][again].astype(np.int64)


def _without_blanks(texts: pa.Array) -> pa.Array:
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    return pc.if_else(pc.fill_null(blank, False), pa.scalar(None, texts.type), texts)


def _mapped(pairs: tuple[pa.Array, pa.Array], values: pa.Array) -> pa.Array:
    old, new = pairs
    at = pc.index_in(values, value_set=old)
    replaced = new.take(pc.fill_null(at, 0))
    is_mapped = pc.and_(pc.is_valid(at), pc.is_valid(values))
    return pc.if_else(is_mapped, replaced, values)


def _clipped(bounds: Sequence[float], numbers: pa.Array) -> pa.Array:
    low, high = bounds
    if pa.types.is_integer(numbers.type):
        low, high = math.ceil(low), math.floor(high)
    low, high = pa.scalar(low, numbers.type), pa.scalar(high, numbers.type)
    return pc.if_else(
        pc.is_valid(numbers),
        pc.max_element_wise(pc.min_element_wise(numbers, high), low),
        pa.scalar(None, numbers.type),
    )


def _differing(before: pa.Array, after: pa.Array) -> int:
    """Return how many values differ; missing ones are equal."""
    changed = pc.fill_null(pc.not_equal(before, after), False)
    gone = pc.xor(pc.is_valid(before), pc.is_valid(after))
    return int(pc.sum(pc.or_(changed, gone)).as_py() or 0)
