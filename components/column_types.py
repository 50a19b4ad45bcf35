"""The type of a column, decided from every value of every file.

The rules, the same for every format:

- A column is ``int`` when every value that is there is a whole number that 64 bits hold, written
  without leading zeros; ``float`` when every value is a number; ``string`` otherwise. ``01234`` is
  text, and keeps its zero. Whole numbers past 64 bits make a text column, so that no digit is lost.
- In a number column, the texts of ``data.null_values``, an empty cell and ``nan`` are missing. A
  number that is infinite, or that float32 would make so, is refused by place.
- In a text column, an empty cell is missing. Of ``data.null_values`` the other texts count there
  too, unless the list is the default one: ``NA`` may be Namibia, and ``null`` a name.
- A column without a value in any file is missing everywhere, and a warning names it.
- Texts are not trimmed: ``"1 "`` beside ``"a"`` is not ``"1"``. In a number column it is 1.
- ``1`` and ``1.0`` are the same number, but a column that holds ``1.0`` is ``float``.
- Bytes are encoded images, and so is a text column all of whose values begin as a PNG or JPEG does
  in base64, as which a CSV can hold them.
- Booleans are 0 and 1. Decimals are float. Dates, times and timestamps are ISO 8601 text,
  those with a zone in UTC. Lists keep their values; an empty list is missing. Other Arrow types are
  refused by name.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["int", "float", "string", "image"]
DEFAULT_NULLS = ("", "NA", "NaN", "null")
ARROW: dict[Kind, pa.DataType] = {
    "int": pa.int64(), "float": pa.float64(), "string": pa.string(), "image": pa.large_binary()
}  # fmt: skip

_INT = r"^-?(0|[1-9][0-9]*)$"
_SHORT_INT = r"^-?[0-9]{1,18}$"
_FLOAT = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_IMAGE = r"^(iVBORw0KGgo|/9j/)"
_NOT_FINITE = r"^-?(?i:inf|infinity)$"
_NAN = tuple(sign + one for sign in ("", "-") for one in
             ("nan", "Nan", "nAn", "naN", "NAn", "NaN", "nAN", "NAN"))  # fmt: skip
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


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
    text = () if set(given) == set(DEFAULT_NULLS) else given
    return Nulls(number=tuple(dict.fromkeys((*given, ""))), text=tuple(dict.fromkeys((*text, ""))))


@dataclass
class Seen:
    """What the values of one column have been so far.

    Attributes:
        has_values: some value is there.
        is_text: some value is no number.
        has_fraction: some value is a number but not whole.
        is_huge: some whole number is past 64 bits.
        is_inexact: some whole number would change as float32.
        is_infinite: some number is infinite, or would be as float32.
        is_list: the column is a list in the file.
        is_image: the values are bytes, or base64 of images.
    """

    has_values: bool = False
    is_text: bool = False
    has_fraction: bool = False
    is_huge: bool = False
    is_inexact: bool = False
    is_infinite: bool = False
    is_list: bool = False
    is_image: bool = False

    def merge(self, other: Seen) -> None:
        """Take in what another part of the rows showed."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) or getattr(other, name))

    @property
    def kind(self) -> Kind:
        """The column's type; text when nothing is known of it."""
        if self.is_text or not self.has_values:
            return "string"
        if self.is_image:
            return "image"
        if self.has_fraction or (self.is_infinite and not self.is_huge):
            return "float"
        return "string" if self.is_huge else "int"


def see_texts(values: pa.Array, null: Nulls) -> Seen:
    """Return what the cells of a CSV column show.

    Args:
        values: texts, none null; repeated values cost nothing when the array is a dictionary's.
        null: what is missing.
    """
    there = pc.utf8_trim_whitespace(values)
    there = there.filter(pc.invert(pc.is_in(there, value_set=_missing(null))))
    if not len(there):
        # Texts that are missing in a number column make no text column by themselves.
        return Seen()
    if _all(pc.match_substring_regex(there, _IMAGE)):
        return Seen(has_values=True, is_image=True)
    whole = pc.match_substring_regex(there, _INT)
    infinite = pc.match_substring_regex(there, _NOT_FINITE)
    rest = there.filter(pc.invert(pc.or_(whole, infinite)))
    if not _all(pc.match_substring_regex(rest, _FLOAT)):
        return Seen(has_values=True, is_text=True)
    integers = there.filter(whole)
    short = pc.match_substring_regex(integers, _SHORT_INT)
    # Decimal has no limit on digits, where int() refuses more than 4,300 of them.
    long = [Decimal(one) for one in integers.filter(pc.invert(short)).to_pylist()]
    return Seen(
        has_values=True,
        has_fraction=bool(len(rest)),
        is_huge=not all(-(2**63) <= one < 2**63 for one in long),
        is_inexact=_changes_in_float32(integers, exact_to=2**53),
        is_infinite=_any(infinite)
        or any(abs(one) > _LARGEST_FLOAT32 for one in long)
        or _is_past_float32(rest.cast(pa.float64())),
    )


def is_not_finite(text: str, null: Nulls) -> bool:
    """Return whether a cell of a number column is infinite, or would be as float32."""
    cell = text.strip()
    if cell in null.number:
        return False
    try:
        return abs(float(cell)) > _LARGEST_FLOAT32
    except ValueError:
        return False


def _missing(null: Nulls) -> pa.Array:
    """Return what is missing in a number column, once trimmed."""
    return pa.array(list(dict.fromkeys((*(one.strip() for one in null.number), *_NAN))))


def _is_past_float32(floats: pa.Array) -> bool:
    return bool((np.abs(np.asarray(floats)) > _LARGEST_FLOAT32).any())


def see_numbers(values: pa.Array) -> Seen:
    """Return what the values of a column that is already numeric show."""
    there = values.drop_null()
    if not len(there):
        return Seen()
    if not pa.types.is_floating(there.type):
        numbers = there.to_numpy(zero_copy_only=False)
        return Seen(
            has_values=True,
            is_huge=bool((numbers > np.iinfo(np.int64).max).any()),
            is_inexact=bool((numbers > 2**53).any() or (numbers < -(2**53)).any())
            or _changes_in_float32(there),
        )
    floats = there.to_numpy(zero_copy_only=False).astype(np.float64)
    floats = floats[~np.isnan(floats)]
    return Seen(
        has_values=bool(len(floats)),
        has_fraction=True,
        is_infinite=bool((np.abs(floats) > _LARGEST_FLOAT32).any()),
        is_inexact=_changes_in_float32(pa.array(floats[np.isfinite(floats)])),
    )


def _changes_in_float32(numbers: pa.Array, exact_to: float = math.inf) -> bool:
    """Return whether a whole number changes as float32, or is so large that float64 may have it."""
    floats = np.asarray(numbers.cast(pa.float64(), safe=False))
    whole = np.abs(floats[floats == np.floor(floats)])
    with np.errstate(over="ignore"):
        return bool(((whole.astype(np.float32) != whole) | (whole >= exact_to)).any())


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
        empty: columns without a value.
        infinite: number columns that hold what is not finite.
        places: columns that say where a row stands, and nothing of what it holds.
        warnings: what a person should know, one line each.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    infinite: tuple[str, ...] = ()
    places: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def settle(seen: Mapping[str, Seen]) -> Layout:
    """Return the layout that the columns have by all that was seen of them."""
    said = []
    for name, one in seen.items():
        if not one.has_values:
            said.append(f"column {name} has no value in any row of any file")
        elif one.is_huge and not (one.is_text or one.has_fraction):
            said.append(f"column {name} holds whole numbers past 64 bits; it is kept as text")
        elif one.kind == "float" and one.is_inexact:
            said.append(
                f"column {name} holds whole numbers past 2^24 beside fractions; examples keep "
                "fractions as float32, which changes their last digits"
            )
    return Layout(
        kinds={name: one.kind for name, one in seen.items()},
        lists=frozenset(name for name, one in seen.items() if one.is_list),
        empty=frozenset(name for name, one in seen.items() if not one.has_values),
        infinite=tuple(
            name for name, one in seen.items() if one.is_infinite and one.kind == "float"
        ),
        warnings=tuple(said),
    )


def typed(values: pa.Array, kind: Kind, null: Nulls) -> pa.Array:
    """Return values of any type as the column's, missing ones null."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), ARROW[kind])
    if kind == "image":
        return _images(values)
    if kind == "string":
        texts = values.cast(pa.string())
        return _without(texts, pa.array(null.text))
    if _is_text(values.type):
        values = pc.utf8_trim_whitespace(values.cast(pa.string()))
        values = _without(values, _missing(null))
    # A whole number past 2^53 beside fractions is rounded; `settle` has warned of it.
    numbers = values.cast(ARROW[kind], safe=kind == "int")
    if kind == "float":
        return pc.if_else(pc.is_nan(numbers), pa.scalar(None, numbers.type), numbers)
    return numbers


def _images(values: pa.Array) -> pa.Array:
    """Return bytes; texts are base64, and one that is none becomes no bytes: a broken image."""
    if not _is_text(values.type):
        return values.cast(pa.large_binary())

    def decoded(text: str | None) -> bytes | None:
        try:
            return base64.b64decode(text, validate=True) if text else None
        except (binascii.Error, ValueError):
            return b""

    return pa.array([decoded(one) for one in values.to_pylist()], pa.large_binary())


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _without(texts: pa.Array, null: pa.Array) -> pa.Array:
    if not _any(found := pc.is_in(texts, value_set=null)):
        return texts
    return pc.if_else(found, pa.scalar(None, texts.type), texts)
