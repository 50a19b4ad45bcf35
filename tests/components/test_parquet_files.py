"""What Parquet files can hold: read by rule, or refused by column and row."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components import parquet_files, readers
from trainer.errors import DataFileError

NULLS = ("", "NA", "NaN", "null")


def write(path: Path, table: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(table), path, **options)
    return path


def read(*paths: Path) -> tuple[dict[str, list[Any]], readers.Source]:
    source = readers.inspect(paths, NULLS)
    found: dict[str, list[Any]] = {name: [] for name in source.layout.kinds}
    for part in source.parts:
        for batch in source.read(part):
            for name, values in batch.to_pydict().items():
                found[name].extend(values)
    return found, source


def test_numbers_past_64_bits_are_texts_and_those_beside_fractions_are_rounded(tmp_path):
    huge = write(tmp_path / "a.parquet", {"x": pa.array([2**64 - 1, None], pa.uint64())})
    assert read(huge)[0] == {"x": [str(2**64 - 1), None]}
    whole = write(tmp_path / "b.parquet", {"x": pa.array([2**53 + 1], pa.int64())})
    fractions = write(tmp_path / "c.parquet", {"x": [0.5, float("nan")]})
    values, source = read(whole, fractions)
    assert values == {"x": [float(2**53), 0.5, None]}
    assert "column x" in source.layout.warnings[0]
    assert read(huge, fractions)[0] == {"x": [float(2**64), None, 0.5, None]}


def test_an_empty_list_a_null_and_a_list_of_nulls_hold_no_value(tmp_path):
    lists = pa.array([[1, None], [], None, [None]], pa.list_(pa.int64()))
    values, _ = read(write(tmp_path / "a.parquet", {"x": lists}))
    assert [row or [] for row in values["x"]] == [[1], [], [], []]


def test_a_column_that_is_a_list_in_one_file_is_one_in_all(tmp_path):
    lists = write(tmp_path / "a.parquet", {"x": [[1, 2], None]})
    (tmp_path / "b.csv").write_text("x,y\n,1\n3,2\n")
    (tmp_path / "c.csv").write_text("y\n1\n")
    values, _ = read(lists, tmp_path / "b.csv", tmp_path / "c.csv")
    assert [row or [] for row in values["x"]] == [[1, 2], [], [], [3], []]


def test_text_that_is_not_utf8_is_refused_by_column_and_row(tmp_path):
    data = pa.array([b"ok", b"caf\xe9"])
    texts = pa.Array.from_buffers(pa.string(), 2, data.buffers())
    path = write(tmp_path / "a.parquet", {"n": [1, 2], "name": texts})
    with pytest.raises(DataFileError) as caught:
        read(path)
    assert caught.value.where == f"{path}:row 2"
    assert "column name" in caught.value.what
    assert "UTF-8" in caught.value.what


def test_a_column_of_null_words_has_no_values_as_in_csv(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": ["", "NA", None], "y": [1, 2, 3]})
    (tmp_path / "b.csv").write_text("x,y\n,1\nNA,2\n,3\n")
    (of_parquet, one), (of_csv, other) = read(path), read(tmp_path / "b.csv")
    assert of_parquet == of_csv == {"x": [None] * 3, "y": [1, 2, 3]}
    said = ("column x has no value in any row of any file",)
    assert one.layout.warnings == other.layout.warnings == said


def test_times_with_a_zone_are_told_in_utc(tmp_path):
    moment = pa.array([dt.datetime(2013, 1, 1, 5)], pa.timestamp("us", "America/New_York"))
    values, _ = read(write(tmp_path / "a.parquet", {"t": moment}))
    # The same moment, whatever zone the file names, so that texts sort as times do.
    utc = pa.array([dt.datetime(2013, 1, 1, 5)], pa.timestamp("us", "UTC"))
    assert values == read(write(tmp_path / "b.parquet", {"t": utc}))[0]
    assert values["t"][0].startswith("2013-01-01T05:00:00")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e39])
def test_a_number_that_is_not_finite_is_refused_by_row_inside_lists_too(tmp_path, value):
    table = {"ok": [1, 2, 3], "x": [[1.0], None, [2.0, value]]}
    path = write(tmp_path / "a.parquet", table, row_group_size=2)
    with pytest.raises(DataFileError, match="column x") as caught:
        read(path)
    assert caught.value.where == f"{path}:row 3"


def test_columns_without_a_name_of_their_own_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    for names, what in ((["x", "x"], "'x' occurs twice"), (["x", " "], "column 2 has no name")):
        pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names), path)
        with pytest.raises(DataFileError, match=what):
            read(path)


def test_a_damaged_file_is_read_whole_or_refused_by_name(tmp_path):
    rows = 300
    path = write(tmp_path / "a.parquet", {
        "i": list(range(rows)), "s": [f"value {row % 7}" for row in range(rows)],
        "f": [row / 3 for row in range(rows)], "l": [[row] for row in range(rows)],
    })  # fmt: skip
    whole, draw, places = path.read_bytes(), random.Random(2), []
    for turn in range(120):
        data = bytearray(whole)
        if turn % 4 == 0:
            del data[draw.randrange(len(data)) :]
        else:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            read(path)
        except DataFileError as error:
            places.append(error.where)
    assert len(places) >= 30
    assert all(where.startswith(str(path)) for where in places)


def test_a_column_name_that_is_no_text_is_one_refusal(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"departure": [1, 2]}), path)
    path.write_bytes(path.read_bytes().replace(b"departure", b"\xf8eparture"))
    with pytest.raises(DataFileError, match="no Parquet that can be read"):
        parquet_files.header(path)
