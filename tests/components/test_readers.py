"""Files found, types decided, values kept, and faults named. Numbers stand in the files."""

from __future__ import annotations

import gzip
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components import column_types, csv_records, readers
from trainer.errors import DataFileError

NULLS = column_types.DEFAULT_NULLS


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def values(*paths: Path, null_values: tuple[str, ...] = NULLS) -> dict[str, list[Any]]:
    source = readers.inspect(paths, null_values)
    batches = [batch for part in source.parts for batch in source.read(part)]
    return pa.Table.from_batches(batches).to_pydict()


def kinds(*paths: Path) -> dict[str, str]:
    return readers.inspect(paths, NULLS).layout.kinds


def warnings(*paths: Path) -> tuple[str, ...]:
    return readers.inspect(paths, NULLS).layout.warnings


def refused(*paths: Path) -> DataFileError:
    with pytest.raises(DataFileError) as caught:
        readers.inspect(paths, NULLS)
    return caught.value


# Which files


def test_a_folder_gives_its_data_files_and_says_what_it_skipped(tmp_path):
    write(tmp_path, "data.csv", "x\n1\n")
    write(tmp_path, ".DS_Store", os.urandom(64))
    for name in ("data.csv~", "README.md", "_SUCCESS", "part-1.csv"):
        write(tmp_path, name, "" if name in {"_SUCCESS", "part-1.csv"} else "text")
    (tmp_path / "sub").mkdir()
    found = readers.resolve(str(tmp_path), Path("/"))
    assert [path.name for path in found.files] == ["data.csv"]
    said = "\n".join(found.skipped)
    for name in (".DS_Store", "data.csv~", "README.md", "_SUCCESS", "part-1.csv: empty", "sub"):
        assert name in said


def test_a_list_of_paths_and_globs_is_sorted_within_each_and_has_no_file_twice(tmp_path):
    for name in ("b.csv", "a.csv", "c.parquet", "d.csv.gz"):
        write(tmp_path, name, "x\n1\n")
    found = readers.resolve_files(["d.csv.gz", "*.csv", "a.csv"], tmp_path)
    assert [path.name for path in found] == ["d.csv.gz", "a.csv", "b.csv"]
    assert all(path.is_absolute() for path in found)


@pytest.mark.parametrize(
    ("spec", "what"),
    [("gone.csv", "no such file"), ("*.csv", "no data file"), ("x.bin", "not a kind of file")],
)
def test_what_stands_for_no_data_file_is_refused_by_name(tmp_path, spec, what):
    write(tmp_path, "x.bin", "x\n1\n")
    with pytest.raises(DataFileError, match=what) as caught:
        readers.resolve_files(spec, tmp_path)
    assert spec in str(caught.value)


def test_a_named_file_without_a_byte_is_refused(tmp_path):
    path = write(tmp_path, "empty.csv", "")
    said = (
        f"{path}: the file is empty; it holds 0 bytes, and no header; write a line with the "
        "columns' names, and the rows below it"
    )
    with pytest.raises(DataFileError) as caught:
        readers.resolve_files("empty.csv", tmp_path)
    assert str(caught.value) == said
    assert str(refused(path)) == said


def test_a_header_without_rows_is_refused_by_name(tmp_path):
    path = write(tmp_path, "header.csv", "a,b\n")
    assert str(refused(path)) == (
        f"{path}: the file has a header and no rows; it holds the columns a, b; give it at least "
        "one row, or take it out of data.files"
    )


def test_every_refusal_says_what_would_be_right(tmp_path):
    """The form of all messages: where: what; it holds X; what would be right."""
    pq.write_table(pa.table({"odd": [{"a": 1}]}), tmp_path / "odd.parquet")
    pq.write_table(pa.Table.from_arrays([[1], [2]], ["x", "x"]), tmp_path / "twice.parquet")
    pq.write_table(pa.table({"": [1]}), tmp_path / "unnamed.parquet")
    pq.write_table(pa.table({"x": [float("inf")]}), tmp_path / "infinite.parquet")
    files = [
        *sorted(tmp_path.iterdir()),
        write(tmp_path, "damaged.parquet", b"PAR1 nothing PAR1"),
        write(tmp_path, "packed.csv.gz", b"not packed"),
        write(tmp_path, "wide.csv", "x".encode("utf-16")),
        write(tmp_path, "latin.csv", b"x,y\ncaf\xe9,1\n"),
        write(tmp_path, "ragged.csv", "x,y\n1\n"),
        write(tmp_path, "quote.csv", 'x,y\n"1,2\n'),
        write(tmp_path, "numbers.csv", "1,2\n3,4\n"),
        write(tmp_path, "twice.csv", "x,x\n3,4\n"),
        write(tmp_path, "unnamed.csv", "x,\n3,4\n"),
        write(tmp_path, "infinite.csv", "x\n1\ninf\n"),
        write(tmp_path, "blank.csv", "\n\n"),
    ]
    for path in files:
        error = refused(path)
        assert error.where.startswith(str(path)), path
        assert len(error.what.split()) > 2, path
        assert len(error.right.split()) > 3, path


# Rows and cells: cases data-1, -2, -12, -17


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_quoted_cell_may_hold_a_line_break(tmp_path, ending):
    text = 'id,note,label\n1,"two\nlines",0\n2,plain,1\n3,"a ""q"" b",0\n'.replace("\n", ending)
    path = write(tmp_path, "rows.csv", text)
    assert values(path)["note"] == [f"two{ending}lines", "plain", 'a "q" b']
    assert readers.places(path, [1]) == [f"{path}:4"]


def test_a_comma_inside_quotes_is_text_and_one_outside_is_refused_by_line(tmp_path):
    good = 'review,rating\n"good, but dear",4\n" leading space, quoted",5\n'
    path = write(tmp_path, "rows.csv", good)
    assert values(path)["review"] == ["good, but dear", " leading space, quoted"]
    bad = write(tmp_path, "bad.csv", good + '3 "unquoted quote, extra",1\n')
    error = refused(bad)
    assert error.where == f"{bad}:4"
    assert "expected 2 columns, found 3" in error.what


@pytest.mark.parametrize("packed", [False, True])
def test_ragged_rows_are_all_named(tmp_path, packed):
    data = b"a,b,label\n1,2,0\n3,4\n5,6,1,9\n\n,,\n7,8,1"
    path = write(
        tmp_path,
        "rows.csv.gz" if packed else "rows.csv",
        gzip.compress(data) if packed else data,
    )
    error = refused(path)
    assert error.where == f"{path}:3"
    assert error.what == "expected 3 columns, found 2"
    assert error.holds == "2 such rows in all (line 4 has 4)"


def test_of_many_ragged_rows_ten_are_named_and_all_counted(tmp_path):
    path = write(tmp_path, "rows.csv", "a,b\n" + "1,2\n1\n" * 5000)
    holds = refused(path).holds
    assert holds.startswith("5,000 such rows in all (line 5 has 1, line 7 has 1, ")
    assert holds.endswith(", line 21 has 1, 4,990 more lines are as wrong)")


def test_a_blank_line_is_no_row_and_an_empty_row_is_one(tmp_path):
    path = write(tmp_path, "rows.csv", "a,b,label\n1,2,0\n\n,,\n7,8,1")
    assert values(path) == {"a": [1, None, 7], "b": [2, None, 8], "label": [0, None, 1]}
    assert readers.places(path, [1]) == [f"{path}:4"]


def test_what_is_not_utf8_is_refused_by_line_column_and_byte(tmp_path):
    error = refused(write(tmp_path, "a.csv", b"name,label\ncaf\xe9,0\nth\xe9,1\n"))
    assert error.where.endswith("a.csv:2")
    assert (error.what, error.holds) == ("column name is not UTF-8", "the byte 0xE9")
    error = refused(write(tmp_path, "b.csv", b"gr\xf6\xdfe,label\n1,0\n"))
    assert error.where.endswith("b.csv:1")
    assert (error.what, error.holds) == ("column 1 of the header is not UTF-8", "the byte 0xF6")


def test_a_character_across_a_block_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 1 << 16)
    text = "a,b\n" + "x" * (65_536 - 4 - 2) + "\U0001f600,1\ny,2\n"
    path = write(tmp_path, "rows.csv", text)
    assert values(path)["a"][0].endswith("x\U0001f600")


def test_a_packed_file_that_ends_early_is_refused_by_name(tmp_path):
    packed = gzip.compress(b"a,b\n" + os.urandom(9999).hex().encode() + b",2\n")
    path = write(tmp_path, "rows.csv.gz", packed[:5000])
    error = refused(path)
    assert error.where == str(path)
    assert "unpacked" in error.what


# Headers: cases data-6 and -11


@pytest.mark.parametrize("first", ["label", '"label"'])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, first):
    marked = write(tmp_path, "a.csv", b"\xef\xbb\xbf" + f"{first},x\n0,1.5\n".encode())
    plain = write(tmp_path, "b.csv", "label,x\n1,2.5\n")
    assert values(marked, plain) == {"label": [0, 1], "x": [1.5, 2.5]}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_refused_as_not_utf8(tmp_path, encoding):
    error = refused(write(tmp_path, "a.csv", "label,x\n0,1.5\n".encode(encoding)))
    assert "not UTF-8" in error.what


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("x,x,label", "column name 'x' occurs twice (columns 1 and 2)"),
        ("x,label,label", "column name 'label' occurs twice (columns 2 and 3)"),
        ("5.1,3.5,0", "the header looks numeric"),
        ("x,,label", "column 2 has no name"),
    ],
)
def test_a_header_that_cannot_name_columns_is_refused(tmp_path, header, what):
    assert what in refused(write(tmp_path, "a.csv", f"{header}\n1,100,0\n2,200,1\n")).what


def test_names_that_differ_by_a_space_stay_two_columns(tmp_path):
    path = write(tmp_path, "a.csv", "x, x,label\n1,100,0\n")
    assert values(path) == {"x": [1], " x": [100], "label": [0]}


# Types: cases data-3, -5, -9, -13, -15


def test_a_blank_cell_in_an_integer_column_is_missing(tmp_path):
    path = write(tmp_path, "a.csv", "f1,f2\n0,0\n,1\n1,1\n")
    assert values(path) == {"f1": [0, None, 1], "f2": [0, 1, 1]}
    assert kinds(path) == {"f1": "int", "f2": "int"}


def test_types_are_decided_over_all_files(tmp_path):
    empty = write(tmp_path, "a.csv", "a,b,label\n1,,0\n2,,1\n")
    assert warnings(empty) == ("column b has no value in any row of any file",)
    later = write(tmp_path, "b.csv", "a,b,label\n3,7,1\n")
    assert kinds(empty, later)["b"] == "int"
    text = write(tmp_path, "c.csv", "a,b,label\n1.5,x,1\n")
    assert kinds(empty, later, text) == {"a": "float", "b": "string", "label": "int"}
    assert values(empty, later, text)["b"] == [None, None, "7", "x"]


def test_a_column_that_a_file_lacks_is_missing_there(tmp_path):
    both = write(tmp_path, "a.csv", "x,y\n1,2\n")
    one = write(tmp_path, "b.csv", "y\n3\n")
    assert values(both, one) == {"x": [1, None], "y": [2, 3]}
    assert readers.inspect([both, one], NULLS).names == {both: ["x", "y"], one: ["y"]}


def test_neighbouring_integers_past_2_to_53_stay_apart(tmp_path):
    rows = "id,x\n9007199254740993,1\n9007199254740992,2\n-9223372036854775808,4\n"
    path = write(tmp_path, "a.csv", rows)
    assert values(path)["id"] == [9007199254740993, 9007199254740992, -(2**63)]


def test_an_integer_past_64_bits_makes_a_text_column_wherever_it_stands(tmp_path):
    early = write(tmp_path, "a.csv", "id\n9223372036854775808\n" + "5\n" * 200_000)
    late = write(tmp_path, "b.csv", "id\n" + "5\n" * 200_000 + "9223372036854775808\n")
    assert kinds(early) == kinds(late) == {"id": "string"}
    assert values(late)["id"][-1] == "9223372036854775808"
    assert any("id" in said and "64 bits" in said for said in warnings(late))


@pytest.mark.parametrize("number", ["16777217", "9007199254740993"])
def test_whole_numbers_that_float32_changes_are_announced(tmp_path, number):
    path = write(tmp_path, "a.csv", f"x,y\n{number},{number}\n0.5,1\n")
    (said,) = warnings(path)
    assert said.startswith("column x ")


def test_an_even_number_past_2_to_24_is_not_announced(tmp_path):
    assert not warnings(write(tmp_path, "a.csv", "x\n16777218\n0.5\n"))


def test_null_words_are_missing_in_numbers_and_values_in_texts(tmp_path):
    rows = "country,x,label\nNA,1.5,yes\nUS,NA,no\nDE,nan,None\nnull,2,yes\n"
    path = write(tmp_path, "a.csv", rows)
    table = {
        "country": ["NA", "US", "DE", "null"],
        "x": [1.5, None, None, 2.0],
        "label": ["yes", "no", "None", "yes"],
    }
    assert values(path) == table
    columns = {
        **table,
        "x": pa.array([1.5, None, float("nan"), 2.0]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet") == table


def test_a_list_of_ones_own_holds_for_texts_too(tmp_path):
    path = write(tmp_path, "a.csv", "work,x\n?,1\nclerk,?\n,3\n")
    assert values(path, null_values=("?",)) == {"work": [None, "clerk", None], "x": [1, None, 3]}


def test_a_column_of_null_words_alone_has_no_values(tmp_path):
    path = write(tmp_path, "a.csv", "a,b\nNA,1\n,2\n")
    assert values(path)["a"] == [None, None]
    assert warnings(path) == ("column a has no value in any row of any file",)


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e39"])
def test_a_number_that_is_not_finite_is_refused_by_place(tmp_path, cell):
    path = write(tmp_path, "a.csv", f"t,x\ninf,1.5\nb,2.5\nc,{cell}\n")
    error = refused(path)
    assert error.where == f"{path}:4"
    assert "column x" in error.what
    assert error.holds == cell
    assert values(path, null_values=(*NULLS, cell))["x"] == [1.5, 2.5, None]


def test_leading_zeros_make_texts(tmp_path):
    path = write(tmp_path, "a.csv", "zip,label\n01234,1\n1,2\n1.0,1\n,2\n")
    assert values(path) == {"zip": ["01234", "1", "1.0", None], "label": [1, 2, 1, 2]}
    assert kinds(write(tmp_path, "b.csv", "x,y\n0,0.5\n-0,-0.5\n10,00.5\n")) == {
        "x": "int",
        "y": "string",
    }


def test_a_number_with_spaces_or_a_point_is_the_same_number(tmp_path):
    path = write(tmp_path, "a.csv", "n,label\na,1\nb,1.0\nc,1 \nd, 2\n")
    assert values(path)["label"] == [1.0, 1.0, 1.0, 2.0]


def test_only_decimal_numbers_are_numbers(tmp_path):
    path = write(tmp_path, "a.csv", "a,b,c,d\n0x10,1_000,+5,true\n")
    assert set(kinds(path).values()) == {"string"}


# Parquet: case data-4


def test_parquet_types_become_the_three_kinds(tmp_path):
    table = pa.table({
        "flag": pa.array([True, False, None]),
        "n": pa.array([1, None, 3], pa.int32()),
        "cat": pa.array(["a", None, "b"]).dictionary_encode(),
        "ts": pa.array([0, 1500, None], pa.timestamp("ms")),
        "day": pa.array([0, 1, None], pa.int32()).cast(pa.date32()),
        "amount": pa.array([Decimal("1.25"), Decimal("2.00"), None], pa.decimal128(10, 2)),
        "f": pa.array([float("nan"), 1.5, None]),
        "nothing": pa.nulls(3),
        "lst": pa.array([[], None, [1, 2]], pa.list_(pa.int64())),
    })
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    assert values(path) == {
        "flag": [1, 0, None],
        "n": [1, None, 3],
        "cat": ["a", None, "b"],
        "ts": ["1970-01-01T00:00:00.000", "1970-01-01T00:00:01.500", None],
        "day": ["1970-01-01", "1970-01-02", None],
        "amount": [1.25, 2.0, None],
        "f": [None, 1.5, None],
        "nothing": [None, None, None],
        "lst": [[], [], [1, 2]],
    }
    assert readers.inspect([path], NULLS).layout.lists == {"lst"}


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([b"xy"], pa.binary(2)), "fixed_size_binary"),
        (pa.array([{"a": 1}]), "struct"),
        (pa.array([1], pa.duration("s")), "duration"),
    ],
)
def test_a_parquet_type_without_a_rule_is_refused_by_column_and_type(tmp_path, column, kind):
    pq.write_table(pa.table({"odd": column}), tmp_path / "a.parquet")
    error = refused(tmp_path / "a.parquet")
    assert "column odd" in error.what
    assert kind in error.holds


def test_parquet_rows_are_named_by_number(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0, float("inf"), 4.0]}), path, row_group_size=2)
    assert refused(path).where == f"{path}:row 3"
    assert readers.places(path, [3]) == [f"{path}:row 4"]


def test_an_unreadable_parquet_file_is_refused_by_name(tmp_path):
    path = write(tmp_path, "a.parquet", b"PAR1 nothing PAR1")
    assert refused(path).where == str(path)


def test_csv_packed_csv_and_parquet_of_one_table_give_the_same_values(tmp_path):
    text = "i,f,t\n1,0.5,a\n,,\n-3,1e3,é\n"
    plain = write(tmp_path, "a.csv", text)
    packed = write(tmp_path, "a.csv.gz", gzip.compress(text.encode()))
    table = {"i": [1, None, -3], "f": [0.5, None, 1000.0], "t": ["a", None, "é"]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert values(plain) == values(packed) == values(tmp_path / "a.parquet") == table


# The real records


def test_flights_have_the_types_of_their_columns(flights_1000_rows):
    source = readers.inspect([flights_1000_rows], NULLS)
    assert source.rows == {flights_1000_rows: 1000}
    found = source.layout.kinds
    assert found["carrier"] == found["time_hour"] == "string"
    assert found["distance"] == found["late"] == "int"


def test_penguins_keep_their_missing_values(penguins_file):
    table = values(penguins_file)
    # palmerpenguins: 344 rows, 11 without sex, 2 without measurements.
    assert len(table["species"]) == 344
    assert table["sex"].count(None) == 11
    assert table["body_mass_g"].count(None) == 2


def test_a_file_that_changes_between_the_passes_is_not_half_read(tmp_path):
    path = write(tmp_path, "a.csv", "x\n1\n2\n")
    source = readers.inspect([path], NULLS)
    path.write_text("x\n1\nt,u\n")
    with pytest.raises(DataFileError, match="expected 1 columns"):
        list(source.read(source.parts[0]))
