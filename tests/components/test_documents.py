"""Text documents: which files they are, and what becomes of each."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from components import documents, heads, readers, split
from trainer.errors import DataFileError

NULLS = ["", "NA", "NaN", "null"]
BY_HASH = {"by": "hash", "column": "", "eval": 0.5}


def write(folder: Path, name: str, data: bytes | str = "text") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def names(found: readers.Found, folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in found.files]


def rows_of(paths: list[Path]) -> list[dict[str, str | None]]:
    source = readers.inspect(paths, NULLS)
    return [row for part in source.parts for one in source.read(part) for row in one.to_pylist()]


# Which files


def test_a_folder_gives_the_documents_of_all_folders_in_it(tmp_path: Path) -> None:
    for name in ("b.txt", "sub/__init__.py", "sub/deep/a.md", "sub/x.rst.gz"):
        write(tmp_path, name, gzip.compress(b"x") if name.endswith("gz") else "x")
    for name in (".hidden.txt", ".git/config.txt", "~$open.txt", "b.txt~", "photo.png"):
        write(tmp_path, name)
    write(tmp_path, "sub/empty.py", "")
    found = readers.resolve(str(tmp_path), Path("/"))
    assert names(found, tmp_path) == ["b.txt", "sub/__init__.py", "sub/deep/a.md", "sub/x.rst.gz"]
    said = "\n".join(found.skipped)
    for name in (".hidden.txt", ".git", "~$open.txt", "b.txt~", "photo.png", "sub/empty.py: empty"):
        assert name in said


def test_many_files_that_are_not_read_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    for number in range(9):
        write(tmp_path, f"{number}.png")
    (said,) = readers.resolve(str(tmp_path), Path("/")).skipped
    assert said == "0.png, 1.png, 2.png and 6 more: not a text document by its ending"


def test_a_glob_may_enter_all_folders(tmp_path: Path) -> None:
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", "sub/c.md"):
        write(tmp_path, name)
    found = readers.resolve("**/*.txt", tmp_path)
    assert names(found, tmp_path) == ["a.txt", "sub/b.txt", "sub/deep/c.txt"]


@pytest.mark.parametrize("spec", [["a.txt", "b.csv"], "*"])
def test_documents_and_tables_together_are_refused(tmp_path: Path, spec: str) -> None:
    write(tmp_path, "a.txt")
    write(tmp_path, "b.csv", "x\n1\n")
    with pytest.raises(DataFileError, match=r"data\.files: tables and text documents.*b\.csv"):
        readers.resolve(spec, tmp_path)


def test_a_text_beside_the_tables_of_a_folder_is_not_read_and_said(tmp_path: Path) -> None:
    write(tmp_path, "README.md")
    write(tmp_path, "b.csv", "x\n1\n")
    found = readers.resolve(".", tmp_path)
    assert names(found, tmp_path) == ["b.csv"]
    assert found.skipped == (f"{tmp_path}/README.md: a text document beside tables",)


def test_a_named_document_without_a_byte_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "")
    with pytest.raises(DataFileError, match="the document is empty; it holds 0 bytes; give it"):
        readers.resolve("a.txt", tmp_path)


# What becomes of them


def test_a_file_is_a_row_as_it_is(tmp_path: Path) -> None:
    texts = {"a.txt": "NA", "sub/b.md": "two\r\nlines\n\n", "sub/c.py": "\ufeff# größe 😀\0"}
    paths = [write(tmp_path, name, text) for name, text in texts.items()]
    paths.append(write(tmp_path, "d.txt.gz", gzip.compress(b"packed")))
    texts["d.txt.gz"] = "packed"
    assert rows_of(paths) == [{"text": text, "path": name} for name, text in texts.items()]
    source = readers.inspect(paths, NULLS)
    assert set(source.rows.values()) == {1}
    assert source.layout.kinds == {"text": "string", "path": "string"}
    assert readers.places(paths[1], [0]) == [str(paths[1])]


def test_a_packed_document_of_no_bytes_has_no_text(tmp_path: Path) -> None:
    assert rows_of([write(tmp_path, "a.txt.gz", gzip.compress(b""))]) == [
        {"text": None, "path": "a.txt.gz"}
    ]


def test_what_is_not_utf8_is_refused_by_file_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "größe\n".encode() + b"caf\xe9\n")
    good = write(tmp_path, "b.txt")
    with pytest.raises(DataFileError) as caught:
        readers.inspect([good, path], NULLS)
    assert str(caught.value) == (
        f"{path}:2: the document is not UTF-8 text; it holds the byte 0xE9 at byte 11; save it as "
        "UTF-8, or leave it out of data.files"
    )


def test_a_document_too_large_for_a_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MOST_BYTES", 5)
    write(tmp_path, "a.txt", "12345")
    documents.read(tmp_path / "a.txt", str(tmp_path))
    write(tmp_path, "a.txt", "123456")
    with pytest.raises(DataFileError, match="too large to be a row; it holds more than 5 bytes"):
        documents.read(tmp_path / "a.txt", str(tmp_path))


def test_a_head_is_cut_between_characters(tmp_path: Path) -> None:
    text = "aé漢😀" * 3
    path = write(tmp_path, "a.txt", text)
    for most in range(1, len(text.encode()) + 2):
        batch, is_whole = documents.read(path, str(tmp_path), most=most)
        found = batch.column(0)[0].as_py() or ""
        assert text.startswith(found)
        assert most - 4 < len(found.encode()) <= most
        assert is_whole is (found == text)


def test_a_document_that_stands_twice_is_in_one_split(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{place}/{number}.txt", f"text {number}")
             for place in ("a", "b") for number in range(30)]  # fmt: skip
    source = readers.inspect(paths, NULLS)
    is_eval = split.by_settings(BY_HASH, source.layout, list)
    found = [bool(is_eval(one)[0]) for part in source.parts for one in source.read(part)]
    assert found[:30] == found[30:]
    assert 5 < sum(found[:30]) < 25


def test_small_documents_are_written_together(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "GROUP_BYTES", 10)
    paths = [write(tmp_path, f"{number}.txt", "x" * size)
             for number, size in enumerate((4, 4, 4, 40, 1, 1))]  # fmt: skip
    assert readers.inspect(paths, NULLS).shards() == [[0, 1, 2], [3], [4, 5]]
    table = write(tmp_path / "tables", "t.csv", "x\n1\n2\n")
    assert readers.inspect([table], NULLS).shards() == [[0]]


def test_heads_of_documents_are_their_beginnings(tmp_path: Path) -> None:
    paths = [write(tmp_path, "a.txt", "short"), write(tmp_path, "b.txt", "long " * 300_000)]
    found = heads.read(paths, NULLS)
    assert [one.is_whole for one in found.files] == [True, False]
    assert found.layout.places == {"path"}
    assert found.held_back(BY_HASH) is None
    (whole,) = heads.read(paths[:1], NULLS).held_back(BY_HASH) or []
    assert whole.dtype == np.bool_
