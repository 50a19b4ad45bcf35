"""On which line of a CSV file its rows begin, told block by block, so that memory stays small."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import numpy as np

from components import csv_records
from components.csv_records import PLAIN, Dialect


class Lines:
    """The lines of one file's rows, asked for in the order of the rows.

    A row that was passed by cannot be asked for any more; a new `Lines` begins at the first.
    """

    def __init__(self, path: Path, dialect: Dialect = PLAIN) -> None:
        self._blocks = _lines(path, dialect)
        self._first, self._lines = 0, np.zeros(0, np.int64)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the line, from 1, that each of these rows begins on.

        Args:
            rows: from 0, int64 [N], ascending, none before an earlier call's last one.
        """
        found = np.zeros(len(rows), np.int64)
        at = 0
        while at < len(rows):
            until = int(np.searchsorted(rows, self._first + len(self._lines)))
            found[at:until] = self._lines[rows[at:until] - self._first]
            at = until
            if at < len(rows):
                self._first += len(self._lines)
                self._lines = next(self._blocks)
        return found


def _lines(path: Path, dialect: Dialect) -> Generator[np.ndarray, None, None]:
    """Yield for each block of a file the line that each of its rows begins on."""
    before = -1
    for start, data in csv_records.blocks(path, dialect=dialect):
        if before < 0:
            before = _breaks_of_header(path, start, dialect)
        array = np.frombuffer(data, np.uint8)
        ends = csv_records.record_ends(data, is_last=True, dialect=dialect).ends
        if not len(ends) or ends[-1] < len(data):
            ends = np.append(ends, len(data))
        begins = np.concatenate([[0], ends[:-1]])
        # A blank line is no row, and counts as a line.
        is_row = (array[begins] != csv_records.LF) & (array[begins] != csv_records.CR)
        breaks = csv_records.line_breaks(data, array, is_last=True)
        yield 1 + before + np.searchsorted(breaks, begins[is_row])
        before += len(breaks)


def _breaks_of_header(path: Path, start: int, dialect: Dialect) -> int:
    """Return the number of line breaks before the first row, in as many bytes."""
    with csv_records.open_bytes(path, dialect) as file:
        data = file.read(start)
        array = np.frombuffer(data, np.uint8)
        return len(csv_records.line_breaks(data, array, is_last=True)) if data else 0
