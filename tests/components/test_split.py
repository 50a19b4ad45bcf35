"""Laws of the split: what a row holds decides, nothing else."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components import csv_records, readers, split
from trainer.errors import SettingError

NULLS = ("", "NA", "NaN", "null")
WORDS = st.sampled_from(["", "a", "b c", "é", "01"])
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(st.none(), st.floats(-1e9, 1e9, width=32))
ROWS = st.lists(st.tuples(NUMBERS, FLOATS, WORDS), min_size=1, max_size=30)
NAMES = ("n", "f", "t")


def csv_text(rows: Iterable[tuple[Any, ...]]) -> str:
    cells = (["" if cell is None else repr(cell) for cell in row[:2]] + [row[2]] for row in rows)
    return "n,f,t\n" + "".join(",".join(row) + "\n" for row in cells)


def assigned(paths: list[Path], by: split.IsEval) -> dict[tuple[Any, ...], bool]:
    """Return each distinct row and whether it is held back; a row in both splits is an error."""
    source = readers.inspect(paths, NULLS)
    result: dict[tuple[Any, ...], bool] = {}
    for part in source.parts:
        for batch in source.read(part):
            table = batch.to_pydict()
            cells = zip(*(table[name] for name in NAMES), strict=True)
            for row, held in zip(cells, by(batch), strict=True):
                assert result.setdefault(row, bool(held)) == held
    return result


@settings(max_examples=25, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(rows=ROWS, order=st.randoms(), cut=st.integers(0, 30), share=st.floats(0.1, 0.9))
def test_the_split_does_not_depend_on_order_files_or_format(tmp_path, rows, order, cut, share):
    # One row of each kind, so that every file shows the same types.
    rows = [(1, 0.5, "x"), *rows]
    whole = tmp_path / "whole.csv"
    whole.write_text(csv_text(rows))
    shuffled = order.sample(rows, len(rows))
    packed, parquet = tmp_path / "a.csv.gz", tmp_path / "b.parquet"
    packed.write_bytes(gzip.compress(csv_text([rows[0], *shuffled[:cut]]).encode()))
    columns = zip(*[rows[0], *shuffled[cut:]], strict=True)
    types = (pa.int64(), pa.float64(), pa.string())
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)]
    pq.write_table(pa.table(arrays, names=NAMES), parquet)
    by = split.by_hash(NAMES, share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "BLOCK_BYTES", 64)
        first = assigned([whole], by)
    assert first == assigned([packed, parquet], split.by_hash(reversed(NAMES), share))


def test_a_row_keeps_its_split_when_another_row_makes_the_column_float(tmp_path):
    rows = [(number, None, "x") for number in range(300)]
    (tmp_path / "a.csv").write_text(csv_text(rows))
    (tmp_path / "b.csv").write_text(csv_text([*rows, (0.5, None, "x")]))
    by = split.by_hash(NAMES, 0.5)
    whole = assigned([tmp_path / "a.csv"], by)
    mixed = assigned([tmp_path / "b.csv"], by)
    assert all(mixed[row] == held for row, held in whole.items())


def test_the_share_held_back_is_the_share_asked_for():
    rows = 100_000
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows))], ["n"])
    for share in (0.01, 0.2, 0.5):
        held = int(split.by_hash(["n"], share)(batch).sum())
        # Five standard deviations of a binomial count.
        assert abs(held - rows * share) < 5 * np.sqrt(rows * share * (1 - share))


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.0, 1.0), more=st.floats(0.0, 1.0))
def test_a_larger_share_keeps_what_was_held_back(share, more):
    batch = pa.RecordBatch.from_arrays([pa.array(range(500))], ["n"])
    small, large = sorted((share, more))
    kept = split.by_hash(["n"], small)(batch)
    assert not (kept & ~split.by_hash(["n"], large)(batch)).any()


def test_values_that_differ_by_column_or_by_being_missing_hash_apart():
    columns = {"a": [1, 2, None, 1, 0, None], "b": [2, 1, 1, None, None, None]}
    batch = pa.RecordBatch.from_pydict({
        name: pa.array(cells, pa.int64()) for name, cells in columns.items()
    })
    assert len(set(split.hash_rows(batch, ["a", "b"]).tolist())) == 6


def test_by_a_column_all_rows_of_one_value_share_a_split():
    ids = [f"user{number % 50}" for number in range(1000)]
    batch = pa.RecordBatch.from_pydict({"id": ids, "n": list(range(1000))})
    layout = readers.Layout(kinds={"id": "string", "n": "int"})
    told = {"by": "hash", "column": "id", "eval": 0.3}
    held = split.by_settings(told, layout, lambda: [batch])(batch)
    by_id: dict[str, set[bool]] = {}
    for one, is_held in zip(ids, held.tolist(), strict=True):
        by_id.setdefault(one, set()).add(is_held)
    assert all(len(found) == 1 for found in by_id.values())
    assert 0 < held.sum() < 1000


def test_by_time_the_newest_rows_are_held_back_and_one_time_is_not_divided():
    times = [f"2013-01-{day:02}T05:00:00Z" for day in (5, 1, 2, 3, 4, 4, 4, 1, 2, 3)]
    batch = pa.RecordBatch.from_pydict({"t": times})
    # Asked for 2 of 10: the newest is the 5th, the next the 4th, which three rows share.
    held = split.by_time("t", 0.2, [batch.slice(0, 4), batch.slice(4)])(batch)
    assert [one[8:10] for one, is_held in zip(times, held, strict=True) if is_held] == [
        "05", "04", "04", "04",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        ([1, None, 3], "column t has no time in 1 row"),
        (["2013-01-01", "May 5"], "must hold ISO 8601 times"),
    ],
)
def test_a_time_that_cannot_be_ordered_is_refused(cells, what):
    batch = pa.RecordBatch.from_pydict({"t": cells})
    with pytest.raises(SettingError, match=what):
        split.by_time("t", 0.5, [batch])


def test_a_column_that_names_the_split_is_obeyed():
    batch = pa.RecordBatch.from_pydict({"s": ["train", "eval", "train"]})
    assert split.by_column("s")(batch).tolist() == [False, True, False]


@pytest.mark.parametrize(("cell", "said"), [("test", '"test"'), (None, "nothing")])
def test_a_row_that_names_no_split_is_refused_by_row(cell, said):
    batch = pa.RecordBatch.from_pydict({"s": ["train", "eval", cell]})
    with pytest.raises(split.RowRefused) as caught:
        split.by_column("s")(batch)
    assert caught.value.row == 2
    assert said in caught.value.holds


def test_a_split_column_that_is_not_there_is_refused_by_name():
    layout = readers.Layout(kinds={"a": "int"})
    with pytest.raises(SettingError, match="no such column"):
        split.by_settings({"by": "column", "column": "b", "eval": 0.2}, layout, list)


@pytest.mark.parametrize(
    ("times", "share", "held"),
    [([1] * 9 + [2], 0.2, 1), ([1, 1, 2, 3], 0.99, 2), ([3, 1, 2], 0.6, 2)],
)
def test_by_time_the_oldest_time_is_for_training_whatever_the_share(times, share, held):
    batch = pa.RecordBatch.from_pydict({"t": times})
    assert split.by_time("t", share, [batch])(batch).sum() == held


def test_rows_of_one_time_alone_cannot_be_split_by_it():
    batch = pa.RecordBatch.from_pydict({"t": [5] * 10})
    with pytest.raises(SettingError, match="all rows have the same time"):
        split.by_time("t", 0.2, [batch])


@pytest.mark.parametrize("by", ["time", "column"])
def test_a_column_of_lists_is_no_time_and_names_no_split(by):
    layout = readers.Layout(kinds={"a": "int"}, lists=frozenset(["a"]))
    with pytest.raises(SettingError, match="holds lists"):
        split.by_settings({"by": by, "column": "a", "eval": 0.2}, layout, list)
