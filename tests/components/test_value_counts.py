from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from components.value_counts import ValueCounts

BATCHES = st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=2)), max_size=30), max_size=6)


@settings(max_examples=30, deadline=None)
@given(BATCHES, st.integers(0, 6))
def test_counts_of_merged_parts_are_those_of_the_whole(batches, cut) -> None:
    first, second = ValueCounts(), ValueCounts()
    for index, batch in enumerate(batches):
        (first if index < cut else second).add(pa.array(batch, pa.large_binary()))
    first.merge(second)
    counted = Counter(value for batch in batches for value in batch if value is not None)
    right = sorted(counted.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
    table = first.table().to_pydict()
    assert list(zip(table["value"], table["count"], strict=True)) == right


def test_counts_stay_exact_beyond_the_sketch_of_tfdv() -> None:
    counts = ValueCounts()
    values = [b"%d" % (number % 5000) for number in range(20_000)]
    for start in range(0, 20_000, 1000):
        counts.add(pa.array(values[start : start + 1000], pa.large_binary()))
    table = counts.table()
    assert table.num_rows == 5000
    assert set(table["count"].to_pylist()) == {4}


def test_nan_and_infinite_numbers_are_not_counted() -> None:
    counts = ValueCounts()
    counts.add(pa.array([1.5, float("nan"), float("inf"), None, 1.5], pa.float32()))
    assert counts.table().to_pydict() == {"value": [1.5], "count": [2]}


def test_a_column_with_more_values_than_the_limit_is_given_up() -> None:
    counts = ValueCounts(limit=3)
    counts.add(pa.array([1, 2, 2, 3], pa.int64()))
    assert counts.table().num_rows == 3
    counts.add(pa.array([4], pa.int64()))
    assert counts.table().num_rows == 0
    assert counts.given_up
    counts.add(pa.array([1], pa.int64()))
    assert counts.table().num_rows == 0


def test_too_many_values_are_estimated_and_forgotten() -> None:
    """Ids: all differ, in two shards of which one is small."""
    ids = [f"id{n}" for n in range(500)]
    whole, small = ValueCounts(limit=100), ValueCounts(limit=100)
    for start in range(0, 450, 50):
        whole.add(pa.array(ids[start : start + 50]))
    small.add(pa.array([*ids[450:], None]))
    whole.table()
    small.merge(whole)
    assert (small.given_up, small.estimate(), small.table().num_rows) == (True, 500, 0)
    long = ValueCounts(limit=100)
    long.give_up()
    long.add(pa.array(ids))
    assert long.estimate() == 0
