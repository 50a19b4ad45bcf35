"""What every test may use: a clean environment and small real files."""

from __future__ import annotations

import csv
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.examples import flights, penguins

PREFIXES = ("TF_CONFIG", "MLFLOW_", "AWS_", "HEADRACE_")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would reach a cluster, a server or another run."""
    for name in list(os.environ):
        if name.startswith(PREFIXES):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def flights_1000_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 1,000 of the first 20,000 flights, in the file's order, `late` included."""
    rows = flights.rows()
    header = next(rows)
    first = list(itertools.islice(rows, 20_000))
    chosen = sorted(random.Random(7).sample(range(len(first)), 1000))
    return _write(
        tmp_path_factory.mktemp("flights") / "flights.csv",
        itertools.chain([header], (first[index] for index in chosen)),
    )


@pytest.fixture(scope="session")
def penguins_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CSV of all 344 penguins; eleven rows have missing values."""
    return _write(tmp_path_factory.mktemp("penguins") / "penguins.csv", penguins.rows())


def _write(path: Path, rows: Iterator[list[str]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path
