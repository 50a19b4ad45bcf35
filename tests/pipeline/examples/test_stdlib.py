"""Examples made of Python's standard library."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

from pipeline import config
from pipeline.examples import stdlib_lm, stdlib_packages


def test_the_sources_are_written_as_they_are_and_without_tests(tmp_path: Path) -> None:
    paths = stdlib_lm.write(tmp_path)
    assert paths == [tmp_path / "stdlib", tmp_path / "pipeline.toml"]
    files = sorted((tmp_path / "stdlib").rglob("*.*"))
    assert {path.suffix for path in files} == {".py"}
    assert not [path for path in files if "test" in path.relative_to(tmp_path).parts]
    assert (tmp_path / "stdlib/json/decoder.py").read_bytes() == Path(
        __import__("json.decoder").decoder.__file__
    ).read_bytes()
    size = sum(path.stat().st_size for path in files)
    assert 1.5e6 < size < 5e6
    before = {path: path.stat().st_mtime_ns for path in files}
    stdlib_lm.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_the_language_model_s_configuration_loads(tmp_path: Path) -> None:
    stdlib_lm.write(tmp_path)
    loaded = config.load(tmp_path / "pipeline.toml")
    assert (loaded.model.kind, loaded.data.label) == ("causal-lm", "")


def test_each_function_has_one_package(tmp_path: Path) -> None:
    stdlib_packages.write(tmp_path)
    with open(tmp_path / "functions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 3000
    assert len({row["source"] for row in rows}) == len(rows)
    assert {row["package"] for row in rows} == set(stdlib_packages.PACKAGES)
    one = next(row["source"] for row in rows if row["package"] == "http")
    ast.parse("class X:\n" + one if one.startswith(" ") else one)
    loaded = config.load(tmp_path / "pipeline.toml")
    assert (loaded.model.kind, loaded.data.text) == ("text", "source")
