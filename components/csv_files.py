"""CSV files: cut into ranges of whole records, parsed by Arrow, refused by line.

A file is read twice: once to see every value's type, once to convert it. Where something is wrong,
a third, slow pass with Python's own `csv` finds the lines.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from components.column_types import Layout, Nulls, Seen, see_texts, typed
from trainer.errors import DataFileError

RANGE_BYTES = 4 << 20
BOM = b"\xef\xbb\xbf"
NAMED_LINES = 10
MAX_CELL = 1 << 30
Range = tuple[int, int]


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, unpacked where its name ends in ``.gz``."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def header(path: Path) -> list[str]:
    """Return the column names.

    Raises:
        DataFileError: when the file is empty, no UTF-8, or its header is no header.
    """
    with open_bytes(path) as file:
        try:
            start = file.read(4)
        except (OSError, EOFError) as error:
            raise DataFileError(f"cannot be unpacked: {error}", where=str(path)) from error
    if start[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        raise DataFileError(
            "not UTF-8: it begins with the mark of UTF-16",
            where=str(path),
            right="save the file as UTF-8",
        )
    names = next(_records(path), (0, 0, []))[2]
    if not names:
        raise DataFileError("the file is empty", where=str(path), right="a header and rows")
    for at, name in enumerate(names):
        if _byte_of(name) is not None:
            not_text = _not_utf8(path, 1, names, at, names)
            raise not_text
    _check_names(path, names)
    return names


def _check_names(path: Path, names: list[str]) -> None:
    where = f"{path}:1"
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataFileError(
                f"column {number} has no name", where=where, right="name every column"
            )
        if names.index(name) != number - 1:
            first = names.index(name) + 1
            raise DataFileError(
                f"column name '{name}' occurs twice (columns {first} and {number})",
                where=where,
                right="give each column a name of its own",
            )
    numeric = [name for name in names if _is_number(name)]
    if len(numeric) == len(names):
        raise DataFileError(
            f"the header looks numeric: {numeric[0]}",
            where=where,
            right="put a line with the columns' names first",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def ranges(path: Path) -> list[Range]:
    """Return byte ranges that hold whole records each, the header left out.

    A cut is made after a line break that an even number of quotes stands before. A packed file is
    one range.
    """
    if path.suffix == ".gz":
        return [(0, -1)]
    found, quotes, begin = [], 0, _header_bytes(path)
    with open(path, "rb") as file:
        file.seek(begin)
        position, pending = begin, begin
        while block := file.read(RANGE_BYTES):
            cut = _last_break(block, quotes)
            quotes += block.count(b'"')
            if cut is not None:
                found.append((pending, position + cut))
                pending = position + cut
            position += len(block)
        if position > pending:
            found.append((pending, position))
    # A quote that nothing closes, or one inside a bare cell: no cut can be trusted.
    return found if quotes % 2 == 0 else [(begin, position)]


def _header_bytes(path: Path) -> int:
    """Return the length of the header's record, its line break included."""
    with open(path, "rb") as file:
        data = file.read(1 << 20)
    quotes = np.cumsum(np.frombuffer(data, np.uint8) == ord('"'))
    start = len(BOM) if data.startswith(BOM) else 0
    for place in range(start, len(data)):
        if data[place] in b"\r\n" and quotes[place] % 2 == 0:
            pair = data[place : place + 2] == b"\r\n"
            # Blank lines before the header are not it.
            if data[start:place].strip():
                return place + 1 + pair
    return len(data)


def _last_break(block: bytes, quotes: int) -> int | None:
    """Return the place after the last line break outside quotes, or None."""
    end = len(block)
    while (place := block.rfind(b"\n", 0, end)) >= 0:
        if (quotes + block.count(b'"', 0, place)) % 2 == 0:
            return place + 1
        end = place
    return None


def see(path: Path, part: Range, names: list[str], null: Nulls) -> tuple[int, dict[str, Seen]]:
    """Return the rows of a range and what its values show, by column.

    Raises:
        DataFileError: naming the lines that are no records.
    """
    rows, seen = 0, {name: Seen() for name in names}
    for batch in _texts(path, part, names):
        rows += batch.num_rows
        for name, column in zip(names, batch.columns, strict=True):
            one = see_texts(column.dictionary_encode().dictionary, null)
            if one.is_infinite:
                refused = _infinite(path, name)
                raise refused
            seen[name].merge(one)
    return rows, seen


def read(
    path: Path, part: Range, names: list[str], layout: Layout, null: Nulls
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a range, typed: int64, float64 or string, missing ones null."""
    for batch in _texts(path, part, names):
        columns = [
            typed(column, layout.kinds[name], null)
            for name, column in zip(names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names)


def _texts(path: Path, part: Range, names: list[str]) -> Generator[pa.RecordBatch, None, None]:
    """Yield the cells as texts.

    Raises:
        DataFileError: naming the lines that are no records.
    """
    refused: list[Any] = []

    def refuse(row: Any) -> str:
        refused.append(row)
        return "skip"

    packed = part[1] < 0
    try:
        reader = pa_csv.open_csv(
            _source(path, part),
            read_options=pa_csv.ReadOptions(
                column_names=None if packed else names,
                block_size=RANGE_BYTES if packed else max(part[1] - part[0], 1 << 12) + 1,
                use_threads=False,
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
        for batch in reader:
            if refused:
                break
            yield batch
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return
        explained = explain(path, names, str(error))
        raise explained from error
    except (OSError, EOFError) as error:
        raise DataFileError(f"cannot be read: {error}", where=str(path)) from error
    if refused:
        ragged = explain(path, names, "a row has another number of columns than the header")
        raise ragged


def _source(path: Path, part: Range) -> Any:
    if part[1] < 0:
        return pa.CompressedInputStream(pa.OSFile(str(path)), "gzip")
    with open(path, "rb") as file:
        file.seek(part[0])
        return pa.BufferReader(file.read(part[1] - part[0]))


def _records(path: Path) -> Generator[tuple[int, int, list[str]], None, None]:
    """Yield line, first byte's line end and cells of each record, the header first.

    Raises:
        DataFileError: naming line, column and byte of what is not UTF-8.
    """
    csv.field_size_limit(MAX_CELL)
    with open_bytes(path) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(lines)
        before = 0
        try:
            for cells in reader:
                line, before = before + 1, reader.line_num
                if cells:
                    yield line, reader.line_num, cells
        except csv.Error as error:
            raise DataFileError(
                f"not a CSV record: {error}", where=f"{path}:{before + 1}"
            ) from error


def explain(path: Path, names: list[str], otherwise: str) -> DataFileError:
    """Return the error that names the lines behind a failed parse."""
    ragged: list[tuple[int, int]] = []
    open_quote = 0
    for line, last, cells in _records(path):
        if bad := next((at for at, cell in enumerate(cells) if _byte_of(cell) is not None), None):
            return _not_utf8(path, line, names, bad, cells)
        if len(cells) != len(names):
            ragged.append((line, len(cells)))
        open_quote = line if last > line else open_quote
    if not ragged:
        return DataFileError(otherwise, where=str(path), right="a UTF-8 CSV file with a header")
    line, cells = ragged[0]
    others = ", ".join(f"line {at}: {count}" for at, count in ragged[1:NAMED_LINES])
    more = len(ragged) - NAMED_LINES
    tail = f"; as well {others}" if others else ""
    tail += f" and {more} more" if more > 0 else ""
    return DataFileError(
        f"expected {len(names)} columns, found {cells}{tail}; {len(ragged)} rows refused in all",
        where=f"{path}:{line}",
        right="quote cells that hold commas, and give every row as many cells as the header has",
    )


def _byte_of(cell: str) -> int | None:
    return next((ord(one) - 0xDC00 for one in cell if 0xDC80 <= ord(one) <= 0xDCFF), None)


def _not_utf8(path: Path, line: int, names: list[str], at: int, cells: list[str]) -> DataFileError:
    column = f"column {names[at]}" if at < len(names) and line > 1 else f"column {at + 1}"
    byte = _byte_of(cells[at]) or 0
    return DataFileError(
        f"not UTF-8 (byte 0x{byte:02X} in {column})",
        where=f"{path}:{line}",
        right="save the file as UTF-8",
    )


def _infinite(path: Path, name: str) -> DataFileError:
    names = header(path)
    at = names.index(name)
    line = next(
        line
        for line, _, cells in _records(path)
        if cells[at].strip().lower().lstrip("-") in {"inf", "infinity"}
    )
    return DataFileError(
        f"column {name} holds an infinite number",
        where=f"{path}:{line}",
        right="put its text into data.null_values to read it as missing",
    )


def lines_of(path: Path, rows: Iterable[int]) -> list[int]:
    """Return the line at which each of these rows begins; rows count from 0, lines from 1."""
    wanted = sorted(set(rows))
    found: dict[int, int] = {}
    last = wanted[-1] if wanted else -1
    for row, (line, _, _) in enumerate(_records(path), start=-1):
        if row > last:
            break
        found[row] = line
    return [found[row] for row in wanted]
