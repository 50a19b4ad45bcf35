"""Penguins of the Palmer archipelago: which species is one?

The records are those of the package palmerpenguins (344 birds, 8 columns; Horst, Hill and Gorman
2020, CC0). Eleven birds have missing values, which stay missing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from pipeline.examples import folder


def rows() -> Iterator[list[str]]:
    """Yield the header and then each row, missing values as empty texts."""
    path = folder.package_file("palmerpenguins", "data/penguins.csv")
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            yield ["" if one == "NA" else one for one in row]


def write(out: Path) -> list[Path]:
    """Write the records and their configuration into a folder; return the files' paths."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows())
    return folder.write(
        out,
        {
            "penguins.csv": text.getvalue().encode(),
            "pipeline.toml": folder.configuration("penguins").encode(),
        },
    )
