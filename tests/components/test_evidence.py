from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from components import evidence
from components.evidence import Check, Rows

TEXT = pa.array(["12", "1.5", "-3", None, "n/a", "1e3", " 7 "])


def shown(shows, **columns) -> list[int]:
    return np.flatnonzero(shows(columns)).tolist()


@pytest.mark.parametrize(("whole", "rows"), [(True, [1, 4, 5]), (False, [4])])
def test_text_that_is_no_number_is_found(whole, rows) -> None:
    assert shown(evidence.is_no_number("x", whole=whole), x=TEXT) == rows
    large = TEXT.cast(pa.large_string())
    assert shown(evidence.is_no_number("x", whole=whole), x=large) == rows


def test_a_float_that_is_no_whole_number_is_found() -> None:
    values = pa.array([1.0, 1.5, None])
    assert shown(evidence.is_no_number("x", whole=True), x=values) == [1]
    assert shown(evidence.is_no_number("x", whole=False), x=values) == []


def test_missing_values_are_found_nan_among_them() -> None:
    assert shown(evidence.is_missing("x"), x=pa.array([1.0, None, float("nan")])) == [1, 2]
    assert shown(evidence.is_missing("x"), x=pa.array(["", None])) == [1]
    assert shown(evidence.is_missing("x"), x=pa.nulls(2)) == [0, 1]


def test_values_outside_a_domain_are_found_and_missing_ones_are_not() -> None:
    colors = pa.array(["red", "green", None, "blue"])
    assert shown(evidence.is_not_in("x", ["red", "blue"]), x=colors) == [1]
    assert shown(evidence.is_in("x", ["green"]), x=colors) == [1]


def test_a_number_of_the_file_matches_its_float32_in_the_examples() -> None:
    allowed = [float(np.float32(0.1))]
    assert shown(evidence.is_not_in("x", allowed), x=pa.array([0.1, 0.2])) == [1]


def test_bounds_are_inclusive() -> None:
    values = pa.array([-1, 0, 1, 2, None])
    assert shown(evidence.is_outside("x", 0, 1), x=values) == [0, 3]
    assert shown(evidence.is_outside("x", None, 1), x=values) == [3]


def test_columns_are_equal_only_where_they_miss_the_same_values() -> None:
    left, right = pa.array([1, None, 3, None]), pa.array([1.0, None, 4.0, 5.0])
    assert shown(evidence.differs("x", "y"), x=left, y=right) == [2, 3]


def test_rows_are_counted_by_split_with_the_first_of_them_and_their_values() -> None:
    def is_in(split, rows):
        return (rows % 4 == 1) == (split == "eval")

    batches = [
        Rows(40, {"x": pa.array(["a", "b"] * 20)}, is_in, Path("f.csv"), first) for first in (0, 40)
    ]
    checks = [Check(("x",), split, evidence.is_not_in("x", ["a"])) for split in ("train", "eval")]
    train, eval_ = evidence.gather(checks, batches)
    assert (train.rows, eval_.rows) == (20, 20)
    assert train.first == [(Path("f.csv"), row) for row in range(3, 43, 4)]
    assert train.values() == (('"b"', 20),)


def test_a_column_that_is_not_there_shows_nothing() -> None:
    batch = Rows(1, {"y": pa.array([1])}, lambda split, rows: rows >= 0)
    check = Check(("x",), "train", evidence.is_missing("x"))
    assert evidence.gather([check], [batch])[0].rows == 0


def test_texts_that_stand_for_a_missing_number_are_no_wrong_numbers() -> None:
    shows = evidence.is_no_number("x", whole=True, null=["NA"])
    assert shown(shows, x=pa.array(["NA", "far", "3", "007"])) == [1, 3]


def test_lists_become_their_first_values() -> None:
    numbers = pa.array([[1], None, [], [2, 3]], pa.large_list(pa.int64()))
    assert evidence.plain(numbers).to_pylist() == [1, None, None, 2]
    texts = pa.array([[b"\xc3\xa9"], None], pa.large_list(pa.large_binary()))
    assert evidence.plain(texts).to_pylist() == ["é", None]
    assert evidence.plain(pa.nulls(2)).to_pylist() == [None, None]
