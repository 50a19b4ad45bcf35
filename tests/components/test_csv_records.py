"""Where records of a CSV file end, against Python's own csv module."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components import csv_files, csv_records, readers
from components.csv_lines import Lines
from trainer.errors import DataFileError

NULLS = ("", "NA", "NaN", "null")
CELLS = st.text(alphabet='ab1,"\n\r é', max_size=6)


def texts(path: Path) -> list[list[str]]:
    """Return all rows as texts, missing ones empty, through ranges parsed apart."""
    source = readers.inspect([path], NULLS)
    batches = [batch for part in source.parts for batch in source.read(part)]
    return [
        ["" if cell is None else str(cell) for cell in row]
        for batch in batches
        for row in zip(*batch.to_pydict().values(), strict=True)
    ]


def quoted(cell: str) -> str:
    """Quote a cell that needs it, and no other."""
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n\r') else cell


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12),
    block=st.integers(8, 60),
    packed=st.booleans(),
)
def test_ranges_of_any_size_hold_the_rows_that_were_written(tmp_path, ending, cells, block, packed):
    # The letter keeps both columns texts.
    rows = [(f"x{first}", f"y{second}") for first, second in cells]
    lines = [",".join(map(quoted, row)) for row in [("a", "b"), *rows]]
    data = "".join(line + ending for line in lines).encode()
    path = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "BLOCK_BYTES", block)
        assert texts(path) == [list(row) for row in rows]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(st.sampled_from(['5" pipe', 'a""b', '"q, ""r"""', '"two\nlines"', "plain"])),
    block=st.integers(8, 40),
)
def test_quotes_inside_bare_cells_are_text(tmp_path, cells, block):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "".join(f"{cell},x\n" for cell in [*cells, "plain"]))
    expected = list(csv.reader(io.StringIO(path.read_text(), newline="")))[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "BLOCK_BYTES", block)
        assert texts(path) == expected


def test_ranges_cover_the_rows_without_a_gap(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + 'x,"y\nz"\n' * 1000)
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 512)
    ranges = csv_files.ranges(path)
    assert len(ranges) > 10
    assert ranges[0][0] == len("a,b\n")
    assert ranges[-1][1] == path.stat().st_size
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('a,b\n1,2\n3,"x\n4,5\n', 3, "never closed"),
        ('a,b\n1,"x"y\n', 2, "text follows a closing quote"),
        ('a,"b\n1,2\n', 1, "never closed"),
    ],
)
def test_a_quote_that_cannot_be_is_refused_by_line(tmp_path, text, line, what):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataFileError, match=what) as caught:
        readers.inspect([path], NULLS)
    assert caught.value.where == f"{path}:{line}"


def test_a_record_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(csv_records, "MAX_RECORD_BYTES", 1 << 14)
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,"' + "x" * (1 << 16))
    with pytest.raises(DataFileError, match="a record is longer than"):
        readers.inspect([path], NULLS)


def test_lines_count_the_header_blank_lines_and_quoted_breaks(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('\na,b\n1,"x\ny\nz"\n\n2,w\n3,v')
    assert readers.places(path, [2, 0, 1]) == [f"{path}:3", f"{path}:7", f"{path}:8"]


def test_a_header_of_any_length_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "HEADER_BYTES", 16)
    names = [f"column {number}" for number in range(100)]
    path = tmp_path / "a.csv"
    path.write_text('\n"' + '","'.join(names) + '"\n' + ",".join(["1"] * 100) + "\n")
    assert csv_records.header(path) == names
    ((_, data),) = csv_records.blocks(path)
    assert data == b",".join([b"1"] * 100) + b"\n"


cells = st.sampled_from(["", "a", "b\nc", "d\re", "f\r\ng", 'h"i', ",", " "])


@settings(max_examples=80)
@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=30),
    ending=st.sampled_from(["\n", "\r\n", "\r"]),
    blank=st.lists(st.integers(0, 30)),
    wanted=st.sets(st.integers(0, 29)),
)
def test_lines_of_rows_are_those_that_python_counts(
    tmp_path_factory, small_blocks, rows, ending, blank, wanted
):
    lines = [["x", "y"], *rows]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=ending)
    for number, row in enumerate(lines):
        out.write(ending * (number in blank and number > 0))
        writer.writerow(row)
    path = tmp_path_factory.mktemp("lines") / "rows.csv"
    path.write_bytes(out.getvalue().encode())
    _, *told = [line for line, _, _ in csv_records.records(path)]
    asked = [row for row in sorted(wanted) if row < len(rows)]
    assert Lines(path).of(np.array(asked, np.int64)).tolist() == [told[row] for row in asked]


@pytest.fixture(scope="module")
def small_blocks():
    """Blocks of a few bytes, so that a file has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "BLOCK_BYTES", 24)
        yield patch
