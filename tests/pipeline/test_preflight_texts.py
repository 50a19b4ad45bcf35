"""What `check` says of text and language models before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import config, preflight

LANGUAGE = '[data]\nfiles = "docs"\n[model]\nkind = "causal-lm"\nsequence = 8\n[training]\n'
TEXT = '[data]\nfiles = "a.csv"\nlabel = "y"\n[model]\nkind = "text"\n[training]\n'


def found(folder: Path, text: str) -> list[str]:
    (folder / "pipeline.toml").write_text(text)
    loaded = config.load(folder / "pipeline.toml")
    result = preflight.result(loaded)
    return [f"{one['severity']} {one['where'].rpartition(': ')[2]}: {one['message']}"
            for one in result["findings"]]  # fmt: skip


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for number in range(40):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"document {number}")
    return tmp_path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = "".join(f'"text {n}","note {n}",{n},{n % 2}\n' for n in range(200))
    (tmp_path / "a.csv").write_text("body,note,n,y\n" + rows)
    return tmp_path


def test_documents_for_a_language_model_are_fine(documents: Path) -> None:
    assert found(documents, LANGUAGE + "global_batch = 4\nepochs = 9") == []


def test_fewer_windows_than_a_batch_are_foreseen(documents: Path) -> None:
    said = "\n".join(found(documents, LANGUAGE + "global_batch = 1024"))
    assert "windows for training make 2 weight updates" in said
    assert "fewer than training.global_batch (1,024)" in said
    assert "windows of model.sequence (8)" in said


def test_documents_are_no_table(documents: Path) -> None:
    text = '[data]\nfiles = "docs"\nlabel = "y"\n'
    said = "\n".join(found(documents, text))
    assert "error model.kind: a tabular model reads tables" in said


def test_a_text_that_is_not_clear_is_an_error(table: Path) -> None:
    assert found(table, TEXT + "global_batch = 8")[0] == (
        "error data.text: several columns hold texts; it holds body, note; name the one that a "
        "text model reads as data.text"
    )


def test_columns_that_are_not_read_are_said(table: Path) -> None:
    text = TEXT.replace("label", 'text = "body"\nlabel') + "global_batch = 8"
    (said,) = (one for one in found(table, text) if "model.kind" in one)
    assert said == (
        "warning model.kind: a text model reads column body alone; it does not read note, n"
    )


def test_a_model_of_one_s_own_must_be_there(table: Path) -> None:
    text = TEXT.replace('"text"', '"mine:build"') + "global_batch = 8"
    said = [one for one in found(table, text) if one.startswith("error")]
    assert said[0].startswith("error model.kind: there is no module mine in ")
    (table / "mine.py").write_text("def build(features, label):\n    pass\n")
    assert not [one for one in found(table, text) if one.startswith("error")]


def test_keys_of_tokens_are_refused_where_one_s_own_model_reads_no_text(table: Path) -> None:
    (table / "mine.py").write_text("def build(features, label):\n    pass\n")
    text = TEXT.replace('"text"', '"mine:build"\nsequence = 8') + "global_batch = 8"
    assert "error model.sequence: is not read: the model reads no text column" in "\n".join(
        found(table, text)
    )
    with_text = text.replace("label", 'text = "body"\nlabel')
    assert not [one for one in found(table, with_text) if one.startswith("error")]
