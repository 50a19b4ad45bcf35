"""Laws of reading CSV: what Python's own csv reads, or one refusal that names the place."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components import csv_records, readers
from trainer.errors import DataFileError, InputError

ANY = settings(
    max_examples=150, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
BLOCKS = st.integers(1, 40)


def read(path: Path, null_values: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    source = readers.inspect([path], null_values)
    found: dict[str, list[Any]] = {name: [] for name in source.layout.kinds}
    for part in source.parts:
        for batch in source.read(part):
            for name, values in batch.to_pydict().items():
                found[name].extend(values)
    return found


def records(data: bytes) -> list[list[str]]:
    """Return header and rows as Python's csv reads them; a blank line is none."""
    text = io.StringIO(data.decode("utf-8-sig"), newline="")
    return [cells for cells in csv.reader(text) if cells]


@given(raw=st.text(alphabet='ab,"\n\r1é', max_size=60), block=BLOCKS, packed=st.booleans())
@ANY
def test_any_text_reads_as_pythons_csv_reads_it_or_is_refused(
    tmp_path, monkeypatch, raw, block, packed
):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", block)
    # The last row keeps both columns texts, so that cells can be compared as they stand.
    data = f"p,q\n{raw}\nz,z\n".encode()
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    _, *rows = records(data)
    if any(len(cells) != 2 for cells in rows):
        with pytest.raises(DataFileError):
            read(path)
        return
    try:
        found = read(path)
    except DataFileError as error:
        assert "quote" in error.what  # ruff: ignore[pytest-assert-in-except]
        assert '"' in raw
        return
    told = [list(cells) for cells in zip(*found.values(), strict=True)]
    assert told == [[cell or None for cell in cells] for cells in rows]


@given(
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3),
    block=BLOCKS,
)
@ANY
def test_damaged_bytes_change_what_is_read_or_are_refused(tmp_path, monkeypatch, damage, block):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", block)
    rows = (b'%d,"q ""%d"", x\ny",%d.5\n' % ((number,) * 3) for number in range(15))
    data = bytearray(b"n,s,f\n" + b"".join(rows))
    for at, byte in damage:
        data[at % len(data)] = byte
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    try:
        found = read(path, ("", "NA"))
    except InputError:
        return
    header, *read_by_python = records(bytes(data))
    assert list(found) == header
    assert {len(values) for values in found.values()} == {len(read_by_python)}


def test_a_damaged_packed_file_is_read_whole_or_refused_by_name(tmp_path):
    draw, path = random.Random(1), tmp_path / "a.csv.gz"
    rows = b"".join(b"%d,%d\n" % (row, draw.randrange(10**9)) for row in range(3000))
    whole, places, counts = gzip.compress(b"a,b\n" + rows), [], []
    for turn in range(60):
        data = bytearray(whole)
        if turn % 3 == 0:
            del data[draw.randrange(len(data)) :]
        else:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            counts.append(len(read(path)["a"]))
        except DataFileError as error:
            places.append(error.where)
    assert len(places) > 20
    assert all(where.startswith(str(path)) for where in places)
    assert set(counts) <= {3000}


def test_quotes_inside_bare_cells_do_not_move_the_cuts(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 64)
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f'{n},5" pipe {n}\n{n},"in\n{n}"\n' for n in range(50)))
    assert len(readers.inspect([path], ()).parts) > 5
    assert read(path)["b"] == [cell for n in range(50) for cell in (f'5" pipe {n}', f"in\n{n}")]


@pytest.mark.parametrize("packed", [False, True])
def test_a_cell_longer_than_a_block_is_read_whole(tmp_path, packed):
    cell = "x" * (csv_records.BLOCK_BYTES + (1 << 20))
    data = f"a,b\n1,{cell}\n2,y\n".encode()
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert read(path)["b"] == [cell, "y"]


def test_packed_files_laid_end_to_end_are_one(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n"))
    assert read(path) == {"a": [1, 3], "b": [2, 4]}


def test_a_ragged_row_is_refused_whatever_it_says(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\nEmpty CSV file,3,4\n")
    with pytest.raises(DataFileError, match="expected 2 columns, found 3") as caught:
        read(path)
    assert caught.value.where == f"{path}:3"


@pytest.mark.parametrize("blank", ["\n", "\r\n", "\r", "\n\n\n"])
def test_blank_lines_alone_are_no_rows(tmp_path, blank):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + blank, newline="")
    with pytest.raises(DataFileError, match="a header and no rows"):
        read(path)
