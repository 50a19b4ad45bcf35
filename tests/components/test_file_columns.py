from __future__ import annotations

from components.file_columns import File, differing

LABEL = ["label"]


def found(*files: File) -> list[tuple[str, str, int, tuple[str, ...]]]:
    told = differing(files, but=LABEL)
    return [(one.kind, one.message, one.rows, one.where) for one in told]


def test_files_of_the_same_columns_in_any_order_are_no_anomaly() -> None:
    assert found(File("a.csv", ["x", "label"]), File("b.csv", ["label", "x"])) == []


def test_the_file_that_lacks_a_column_is_named_with_it_and_its_rows() -> None:
    whole, part = File("a.csv", ["x", "y", "z", "label"], 5), File("b.csv", ["x", "label"], 3)
    assert found(whole, part) == [
        ("FILES_DIFFER", "columns y, z are not in file b.csv, and so missing there", 3, ("b.csv",))
    ]


def test_many_files_of_one_kind_are_one_anomaly() -> None:
    days = [File(f"{day}.csv", ["x", "label"], 2) for day in range(9)]
    ((kind, message, rows, where),) = found(File("a.csv", ["x", "y", "label"], 1), *days)
    assert (kind, rows) == ("FILES_DIFFER", 18)
    assert message == (
        "column y is not in files 0.csv, 1.csv, 2.csv, 3.csv, 4.csv and 4 more, and so missing "
        "there"
    )
    assert len(where) == 5


def test_files_that_share_the_label_alone_are_unrelated() -> None:
    wine = File("wine.csv", ["alcohol", "ash", "label"], 178)
    other = File("diabetes.parquet", ["label", "age"], 442)
    other_files = "shares no column but the label with the other files; only here are"
    assert [(kind, message) for kind, message, *_ in found(wine, other)] == [
        ("FILES_UNRELATED", f"file wine.csv {other_files} alcohol, ash"),
        ("FILES_UNRELATED", f"file diabetes.parquet {other_files} age"),
    ]


def test_two_tables_of_several_files_each_are_unrelated() -> None:
    """Each file shares its columns with its own table's files."""
    files = [File(f"{name}{n}.csv", [name, "label"]) for name in "ab" for n in range(2)]
    assert [kind for kind, *_ in found(*files)] == ["FILES_UNRELATED"] * 2


def test_a_file_without_the_label_differs_and_is_related() -> None:
    ((kind, message, *_),) = found(File("a.csv", ["x", "label"]), File("b.csv", ["x"]))
    assert (kind, message) == (
        "FILES_DIFFER", "column label is not in file b.csv, and so missing there",
    )  # fmt: skip
