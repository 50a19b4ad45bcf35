"""The rule of types, value by value; the right kinds are those that the module's text states."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components import column_types
from components.column_types import Seen, nulls, see_numbers, see_texts, settle, typed

NULL = nulls(column_types.DEFAULT_NULLS)
CELLS = st.one_of(
    st.integers(-(2**66), 2**66).map(str),
    st.floats(allow_nan=False, width=32).map(repr),
    st.sampled_from(["", "NA", "nan", " 7 ", "007", "x", "-0", "1e400", "1."]),
)


def kind_of(cells: list[str]) -> str:
    return see_texts(pa.array(cells, pa.string()), NULL).kind


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-2", "0"], "int"),
        (["1", "", "NA", "nan"], "int"),
        (["9223372036854775807", "-9223372036854775808"], "int"),
        (["9223372036854775808", "1"], "string"),
        (["9223372036854775808", "0.5"], "float"),
        (["1", "1.0"], "float"),
        (["1e-3", ".5", "2."], "float"),
        (["01234", "1"], "string"),
        (["0x1F"], "string"),
        (["1_000"], "string"),
        (["1,5"], "string"),
        (["\u0661"], "string"),
        (["1", "None"], "string"),
        (["", "NA"], "string"),
        (["7" * 5000], "string"),
    ],
)
def test_texts_have_the_kind_of_their_values(cells, kind):
    assert kind_of(cells) == kind


@pytest.mark.parametrize(
    ("cells", "is_refused"),
    [
        (["inf"], True),
        (["1.5", "-Infinity"], True),
        (["1.5", "1e39"], True),
        (["1.5", "1e400"], True),
        (["1.5", "1" + "0" * 39], True),
        (["1.5", "1" + "0" * 400], True),
        (["1.5", "3.4028234e38"], False),
        # No number column: the texts stay what they are.
        (["inf", "x"], False),
        (["1" + "0" * 400, "1"], False),
    ],
)
def test_what_float32_cannot_hold_is_infinite_in_a_float_column_alone(cells, is_refused):
    layout = settle({"x": see_texts(pa.array(cells), NULL)})
    assert (layout.infinite == ("x",)) == is_refused


@given(st.lists(CELLS, max_size=12), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_what_parts_show_adds_up_to_what_the_whole_shows(cells, cut):
    parts = Seen()
    for part in (cells[:cut], cells[cut:]):
        parts.merge(see_texts(pa.array(part, pa.string()), NULL))
    whole = see_texts(pa.array(cells, pa.string()), NULL)
    assert parts.kind == whole.kind
    assert settle({"x": parts}).infinite == settle({"x": whole}).infinite


@given(st.lists(CELLS, max_size=12))
@settings(max_examples=300, deadline=None)
def test_every_cell_can_be_read_as_the_kind_that_was_seen(cells):
    array = pa.array(cells, pa.string())
    seen = see_texts(array, NULL)
    read = typed(array, seen.kind, NULL).to_pylist()
    is_missing = [cell.strip() in {"", "NA", "nan"} for cell in cells]
    if seen.kind == "string":
        assert read == [cell or None for cell in cells]
        return
    assert [value is None for value in read] == is_missing
    python = int if seen.kind == "int" else float
    there = [python(cell) for cell, gone in zip(cells, is_missing, strict=True) if not gone]
    assert [value for value in read if value is not None] == there


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([2**64 - 1, 5], pa.uint64()), "string"),
        (pa.array([1, None], pa.uint64()), "int"),
        (pa.array([1, None], pa.int8()), "int"),
        (pa.array([1.0, 2.0]), "float"),
        (pa.array([np.nan, None]), "string"),
        (pa.array([], pa.int64()), "string"),
    ],
)
def test_numbers_have_the_kind_of_their_values(values, kind):
    assert see_numbers(values).kind == kind


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**24 + 1, 2**64 - 1])
def test_a_whole_number_that_float32_changes_is_announced_when_fractions_join_it(number):
    seen = see_numbers(pa.array([number], pa.uint64() if number > 0 else pa.int64()))
    seen.merge(see_numbers(pa.array([0.5])))
    (said,) = settle({"x": seen}).warnings
    assert "column x" in said
    assert "float32" in said


def test_whole_numbers_past_2_to_53_are_read_beside_fractions():
    numbers = typed(pa.array([2**53 + 1, None, 2**64 - 1], pa.uint64()), "float", NULL)
    assert numbers.to_pylist() == [float(2**53), None, float(2**64)]


def test_the_default_null_words_are_values_in_texts_and_ones_own_are_not():
    assert typed(pa.array(["NA", "", "x"]), "string", NULL).to_pylist() == ["NA", None, "x"]
    own = nulls(["?", "NA"])
    assert typed(pa.array(["NA", "?", "x", ""]), "string", own).to_pylist() == [
        None, None, "x", None,
    ]  # fmt: skip
