"""Heads of files: types and rows as a run will read them, and no more than a bounded part."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components import column_types, heads, readers
from trainer.errors import DataFileError, SettingError

NULLS = column_types.DEFAULT_NULLS
BY_COLUMN = {"by": "column", "column": "part", "eval": 0.2}


def test_the_head_of_small_files_is_what_a_run_reads(tmp_path, flights_1000_rows, penguins_file):
    pq.write_table(pa.table({"x": [1, None], "l": [[1], []]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"x,t\n0.5,a\nNA,\n"))
    for files in ([flights_1000_rows], [penguins_file], sorted(tmp_path.glob("[ab].*"))):
        source = readers.inspect(files, NULLS)
        found = heads.read(files, NULLS)
        assert found.is_whole
        assert (found.layout, found.names) == (source.layout, source.names)
        rows = [row for part in source.parts for batch in source.read(part)
                for row in batch.to_pylist()]  # fmt: skip
        assert [row for head in found.files for row in head.rows.to_pylist()] == rows


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_of_a_long_file_a_bounded_part_is_read(tmp_path, name):
    path = tmp_path / name
    rows = 300_000
    if name.endswith("parquet"):
        pq.write_table(pa.table({"x": range(rows)}), path)
    else:
        text = ("x\n" + "".join(f"{n}\n" for n in range(rows))).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    (head,) = heads.read([path], NULLS).files
    assert not head.is_whole
    assert 1000 < head.rows.num_rows < rows * 0.6
    assert head.rows.column("x")[:3].to_pylist() == [0, 1, 2]


def test_of_many_files_less_is_read(tmp_path):
    text = "x\n" + "1234567\n" * 50_000
    for number in range(heads.MANY * 8):
        (tmp_path / f"{number}.csv").write_text(text)
    found = heads.read(sorted(tmp_path.iterdir()), NULLS)
    assert all(head.rows.num_rows < 20_000 for head in found.files)


def test_a_number_that_is_not_finite_is_refused_by_place(tmp_path):
    good, bad = tmp_path / "a.csv", tmp_path / "b.csv"
    good.write_text("x,y\n1,2\n")
    bad.write_text("x,y\n1,2\n1,inf\n")
    with pytest.raises(DataFileError, match="column y holds a number that is infinite") as caught:
        heads.read([good, bad], NULLS)
    assert caught.value.where == f"{bad}:3"


def write(folder: Path, *parts: str, rows: int = 1) -> Path:
    path = folder / "a.csv"
    path.write_text("x,part\n" + "".join(f"1,{part}\n" for part in parts for _ in range(rows)))
    return path


def test_a_row_that_names_no_split_is_refused_by_place(tmp_path):
    path = write(tmp_path, "train", "eval", "test", rows=2)
    with pytest.raises(DataFileError) as caught:
        heads.read([path], NULLS).held_back(BY_COLUMN)
    assert str(caught.value) == (
        f'{path}:6: column part names no split; it holds "test"; write "train" or "eval" in every '
        'row, or set data.split.by to "hash" or "time"'
    )


def test_rows_of_which_others_decide_are_not_split(tmp_path):
    path = write(tmp_path, "2020-01-01", rows=200_000)
    found = heads.read([path], NULLS)
    # A later row may have another time, or be eval.
    assert found.held_back({**BY_COLUMN, "by": "time"}) is None
    assert found.held_back({**BY_COLUMN, "by": "hash"}) is None
    with pytest.raises(SettingError, match="all rows have the same time"):
        heads.read([write(tmp_path, "2020-01-01")], NULLS).held_back({**BY_COLUMN, "by": "time"})
    found = heads.read([write(tmp_path, "May 5", rows=300_000)], NULLS)
    with pytest.raises(SettingError, match="must hold ISO 8601 times"):
        found.held_back({**BY_COLUMN, "by": "time"})


def test_rows_of_a_whole_file_are_split_as_a_run_splits_them(tmp_path):
    found = heads.read([write(tmp_path, "train", "eval", "train")], NULLS)
    (held_back,) = found.held_back(BY_COLUMN) or ()
    assert held_back.tolist() == [False, True, False]
