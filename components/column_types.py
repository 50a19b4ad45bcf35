"""The type of a column, decided from every value of every file.

The rules, the same for every format:

- A column is ``int`` when every value that is there is a whole number that 64 bits hold, written
  without leading zeros; ``float`` when every value is a number; ``string`` otherwise. ``01234`` is
  text, and keeps its zero. Whole numbers past 64 bits make a text column, so that no digit is lost.
- In a number column, the texts of ``data.null_values``, an empty cell and ``nan`` are missing. An
  infinite number is refused, by place.
- In a text column, an empty cell is missing. Of ``data.null_values`` the other texts count there
  too, unless the list is the default one: ``NA`` may be Namibia, and ``null`` a name.
- Nothing is trimmed: ``"1 "`` beside ``"a"`` is not ``"1"``. In a number column it is 1.
- Booleans are 0 and 1. Decimals are float. Dates, times and timestamps are ISO 8601 text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["int", "float", "string"]
DEFAULT_NULLS = ("", "NA", "NaN", "null")
ARROW: dict[Kind, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}

_INT = r"^\s*-?(0|[1-9][0-9]*)\s*$"
_SHORT_INT = r"^\s*-?[0-9]{1,18}\s*$"
_FLOAT = r"^\s*-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_NOT_FINITE = r"^\s*-?(?i:inf|infinity)\s*$"
_NAN = r"^\s*-?(?i:nan)\s*$"
_LARGEST_EXACT = 2**24
"""Whole numbers up to here are the same in float32, which the examples hold."""


@dataclass(frozen=True)
class Nulls:
    """The texts that stand for a missing value.

    Attributes:
        number: in a number column.
        text: in a text column.
    """

    number: tuple[str, ...]
    text: tuple[str, ...]


def nulls(null_values: Iterable[str]) -> Nulls:
    """Return which texts are missing where, by the rule above."""
    given = tuple(null_values)
    text = tuple(one for one in given if not one) if set(given) == set(DEFAULT_NULLS) else given
    return Nulls(number=(*dict.fromkeys((*given, "")),), text=text)


@dataclass
class Seen:
    """What the values of one column have been so far.

    Attributes:
        has_values: some value is there.
        is_text: some value is no number.
        has_fraction: some value is a number but not whole.
        is_huge: some whole number is past 64 bits.
        is_inexact: some whole number would change as float32.
        is_infinite: some value is an infinite number.
        is_list: the column is a list in the file.
    """

    has_values: bool = False
    is_text: bool = False
    has_fraction: bool = False
    is_huge: bool = False
    is_inexact: bool = False
    is_infinite: bool = False
    is_list: bool = False

    def merge(self, other: Seen) -> None:
        """Take in what another part of the rows showed."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) or getattr(other, name))

    @property
    def kind(self) -> Kind:
        """The column's type; text when nothing is known of it."""
        if self.is_text or not self.has_values:
            return "string"
        if self.has_fraction or self.is_infinite:
            return "float"
        return "string" if self.is_huge else "int"


def see_texts(values: pa.Array, null: Nulls) -> Seen:
    """Return what the cells of a CSV column show.

    Args:
        values: texts, none null; repeated values cost nothing when the array is a dictionary's.
        null: what is missing.
    """
    there = values.filter(pc.invert(pc.is_in(values, value_set=pa.array(null.number))))
    there = there.filter(pc.invert(pc.match_substring_regex(there, _NAN)))
    if not len(there):
        # Texts that are missing in a number column only: they make no text column by themselves.
        return Seen()
    whole = pc.match_substring_regex(there, _INT)
    infinite = pc.match_substring_regex(there, _NOT_FINITE)
    rest = there.filter(pc.invert(pc.or_(whole, infinite)))
    number = pc.match_substring_regex(rest, _FLOAT)
    integers = pc.utf8_trim_whitespace(there.filter(whole))
    short = pc.match_substring_regex(integers, _SHORT_INT)
    return Seen(
        has_values=True,
        is_text=not _all(number),
        has_fraction=_any(number),
        is_huge=not all(-(2**63) <= int(one) < 2**63
                        for one in integers.filter(pc.invert(short)).to_pylist()),
        is_inexact=_changes_in_float32(integers),
        is_infinite=_any(infinite),
    )  # fmt: skip


def see_numbers(values: pa.Array) -> Seen:
    """Return what the values of a column that is already numeric show."""
    there = values.drop_null()
    if not len(there):
        return Seen()
    if not pa.types.is_floating(there.type):
        limit = pa.types.is_uint64(there.type) and _any(pc.greater(there, 2**63 - 1))
        return Seen(has_values=True, is_huge=bool(limit), is_inexact=_changes_in_float32(there))
    floats = there.to_numpy(zero_copy_only=False).astype(np.float64)
    floats = floats[~np.isnan(floats)]
    return Seen(
        has_values=bool(len(floats)),
        has_fraction=True,
        is_infinite=bool(np.isinf(floats).any()),
        is_inexact=_changes_in_float32(pa.array(floats[np.isfinite(floats)])),
    )


def _changes_in_float32(numbers: pa.Array) -> bool:
    floats = np.asarray(numbers.cast(pa.float64(), safe=False))
    whole = floats[(np.abs(floats) > _LARGEST_EXACT) & (floats == np.floor(floats))]
    with np.errstate(over="ignore"):
        return bool((whole.astype(np.float32).astype(np.float64) != whole).any())


def _all(mask: pa.Array) -> bool:
    return bool(pc.all(mask).as_py()) if len(mask) else True


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py()) if len(mask) else False


@dataclass
class Layout:
    """What all files together say of the columns.

    Attributes:
        kinds: column to type, in order of first appearance.
        lists: columns that hold lists.
        warnings: what a person should know, one line each.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def settle(seen: Mapping[str, Seen]) -> Layout:
    """Return the layout that the columns have by all that was seen of them."""
    said = []
    for name, one in seen.items():
        if not one.has_values:
            said.append(f"column {name} has no values")
        elif one.is_huge and not one.is_text:
            said.append(f"column {name} holds whole numbers past 64 bits; it is kept as text")
        elif one.kind == "float" and one.is_inexact:
            said.append(
                f"column {name} holds whole numbers past 2^24 beside fractions; examples keep "
                "fractions as float32, which changes their last digits"
            )
    return Layout(
        kinds={name: one.kind for name, one in seen.items()},
        lists=frozenset(name for name, one in seen.items() if one.is_list),
        warnings=tuple(said),
    )


def typed(values: pa.Array, kind: Kind, null: Nulls) -> pa.Array:
    """Return values of any type as the column's, missing ones null."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), ARROW[kind])
    if kind == "string":
        texts = values if _is_text(values.type) else values.cast(pa.string())
        texts = texts.cast(pa.string())
        return _without(texts, null.text) if null.text else texts
    if _is_text(values.type):
        values = _without(values.cast(pa.string()), null.number)
        values = pc.utf8_trim_whitespace(values)
    numbers = values.cast(ARROW[kind], safe=not pa.types.is_decimal(values.type))
    if kind == "float":
        return pc.if_else(pc.is_nan(numbers), pa.scalar(None, numbers.type), numbers)
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _without(texts: pa.Array, null: Iterable[str]) -> pa.Array:
    missing = pc.is_in(texts, value_set=pa.array(list(null), texts.type))
    return pc.if_else(missing, pa.scalar(None, texts.type), texts)
