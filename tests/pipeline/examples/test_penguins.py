from __future__ import annotations

import csv

import pytest

from pipeline import config
from pipeline.examples import folder, penguins
from trainer.errors import InputError


def test_every_penguin_is_written_and_missing_values_are_empty(tmp_path):
    penguins.write(tmp_path)
    with open(tmp_path / "penguins.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # Horst, Hill and Gorman 2020: 344 penguins (152, 68, 124), 11 of them with a missing value.
    assert len(rows) == 344
    counts = [
        sum(row["species"] == one for row in rows) for one in ("Adelie", "Chinstrap", "Gentoo")
    ]
    assert counts == [152, 68, 124]
    assert sum("" in row.values() for row in rows) == 11


def test_the_written_configuration_loads_and_its_batch_fits(tmp_path):
    penguins.write(tmp_path)
    loaded = config.load(tmp_path / "pipeline.toml")
    assert (loaded.data.label, loaded.data.task) == ("species", "multiclass")
    assert loaded.training.global_batch < 344 * (1 - loaded.data.split.eval)


def test_written_again_changes_nothing(tmp_path):
    penguins.write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    penguins.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_nothing_is_written_when_one_file_would_be_overwritten(tmp_path):
    (tmp_path / "pipeline.toml").write_text("mine")
    with pytest.raises(InputError, match="differs") as refused:
        penguins.write(tmp_path)
    assert refused.value.where == str(tmp_path / "pipeline.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.toml"]


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="cannot be written") as refused:
        penguins.write(tmp_path / "out")
    assert "--out" in refused.value.right


def test_a_package_that_is_missing_is_named():
    with pytest.raises(InputError, match="no_such_package is not installed"):
        folder.package_file("no_such_package", "x.csv")


def test_a_line_that_has_a_comment_keeps_it():
    assert folder.explained("seed = 1 # mine") == "seed = 1 # mine"
    assert folder.explained("[checkpoint]\nkeep = 1").endswith("# newest checkpoints kept")
