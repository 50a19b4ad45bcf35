"""The bytes of a CSV file: its header, where records end, what is wrong with one.

A record ends at a line break (LF, CRLF or CR) outside quotes; a quote opens a cell only at the
cell's beginning, as Arrow's parser has it. Blank lines are no records, but count as lines. The slow
functions, which name lines to a person, read with Python's own `csv`. Delimiter, quote and encoding
are a file's `Dialect`; beyond `open_bytes` all text is UTF-8.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from trainer.errors import DataFileError

BLOCK_BYTES = 2 << 20
HEADER_BYTES = 1 << 20
"""Read at a time until the header has ended."""
MAX_RECORD_BYTES = 64 << 20
"""A longer record is refused: it is a quote that nothing closes, and memory is bounded."""
PACKED_SUFFIXES = (".gz", ".zst")
BOM = b"\xef\xbb\xbf"
NAMED_LINES = 10
LF, CR = 10, 13


@dataclass(frozen=True)
class Dialect:
    """How CSV files are written.

    Attributes:
        delimiter: one ASCII character between cells.
        quote: one ASCII character around cells that hold delimiters or line breaks.
        encoding: as Python names it; bytes that are none stop the reading.
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"

    @property
    def is_utf8(self) -> bool:
        """Whether the bytes need no decoding."""
        return codecs.lookup(self.encoding).name in {"utf-8", "ascii", "utf-8-sig"}


PLAIN = Dialect()


@contextmanager
def open_bytes(path: Path, dialect: Dialect = PLAIN) -> Generator[BinaryIO, None, None]:
    """Open a file for reading as UTF-8, unpacked where its name ends in ``.gz`` or ``.zst``.

    Yields:
        the file, at its beginning.

    Raises:
        DataFileError: when its bytes cannot be read or unpacked, or are not in its encoding.
    """
    is_packed = path.suffix in PACKED_SUFFIXES
    try:
        with _open(path) as file:
            yield file if dialect.is_utf8 else _Decoded(file, path, dialect.encoding)  # type: ignore[misc]
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        what = "cannot be unpacked" if is_packed else "cannot be read"
        raise DataFileError(
            f"the file {what} ({str(error).splitlines()[0]})",
            where=str(path),
            right="copy it here again, whole and readable by this user",
        ) from error


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        # Arrow's own stream refuses a frame that is cut short, which zstandard's takes for its end.
        return _Whole(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return open(path, "rb")


class _Whole(io.RawIOBase):
    """A stream of Arrow's that reads as many bytes as it is asked for, or to the end."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there are bytes."""
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, or all that are left."""
        parts, left = [], size
        while left and (data := self._stream.read(left if size > 0 else BLOCK_BYTES)):
            parts.append(data)
            left -= len(data) if size > 0 else 0
        return b"".join(parts)


class _Decoded(io.RawIOBase):
    """A file in another encoding, read as UTF-8."""

    def __init__(self, file: BinaryIO, path: Path, encoding: str) -> None:
        super().__init__()
        self._file, self._path, self._encoding = file, path, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("strict")
        self._left, self._line = b"", 1

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there are bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes of UTF-8, or all that are left.

        Raises:
            DataFileError: naming the line that holds bytes of no character.
        """
        parts = [self._left]
        length = len(self._left)
        while size < 0 or length < size:
            data = self._file.read(BLOCK_BYTES)
            parts.append(self._decode(data))
            length += len(parts[-1])
            if not data:
                break
        whole = b"".join(parts)
        cut = len(whole) if size < 0 else size
        self._left = whole[cut:]
        return whole[:cut]

    def _decode(self, data: bytes) -> bytes:
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(self._encoding, "ignore")
            line = self._line + before.count("\n")
            raise DataFileError(
                f"the file is not in the encoding {self._encoding}",
                where=f"{self._path}:{line}",
                holds=f"the byte 0x{error.object[error.start]:02X}",
                right="set data.encoding to what it is written in",
            ) from error
        self._line += text.count("\n")
        return text.encode()


def header(path: Path, dialect: Dialect = PLAIN) -> list[str]:
    """Return the column names.

    Raises:
        DataFileError: when the file is empty, no UTF-8, or its header is no header.
    """
    with open_bytes(path, dialect) as file:
        start = file.read(4096)
    if start[:2] in {b"\xff\xfe", b"\xfe\xff"} or b"\0" in start:
        raise DataFileError(
            "the file is not UTF-8 text: it begins as UTF-16 or as no text at all",
            where=str(path),
            holds="the bytes " + start[:4].hex(" ").upper(),
            right="save it as CSV in UTF-8, or set data.encoding to what it is written in",
        )
    line, _, names = next(records(path, dialect), (1, 1, []))
    if not names:
        empty = no_header(path)
        raise empty
    for at, name in enumerate(names):
        if _byte_of(name) is not None:
            not_text = _not_utf8(f"{path}:{line}", f"column {at + 1} of the header", name)
            raise not_text
    _check_names(f"{path}:{line}", names)
    return names


def no_header(path: Path) -> DataFileError:
    """Return the error of a file without a byte that says anything."""
    return DataFileError(
        "the file is empty",
        where=str(path),
        holds=f"{path.stat().st_size} bytes, and no header",
        right="write a line with the columns' names, and the rows below it",
    )


def no_rows(path: Path, names: list[str]) -> DataFileError:
    """Return the error of a file that has columns and no row."""
    return DataFileError(
        "the file has a header and no rows",
        where=str(path),
        holds=f"the columns {', '.join(names[:20])}",
        right="give it at least one row, or take it out of data.files",
    )


def _check_names(where: str, names: list[str]) -> None:
    if all(_is_number(name) for name in names):
        raise DataFileError(
            "the header looks numeric",
            where=where,
            holds=", ".join(names[:5]) + (", ..." if len(names) > 5 else ""),
            right="put a line with the columns' names above the rows",
        )
    numbers: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataFileError(
                f"column {number} has no name",
                where=where,
                right="give every column of the header a name",
            )
        if (first := numbers.setdefault(name, number)) != number:
            raise DataFileError(
                f"column name '{name}' occurs twice (columns {first} and {number})",
                where=where,
                right="give each column a name of its own",
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def blocks(
    path: Path, size: int = 0, dialect: Dialect = PLAIN
) -> Generator[tuple[int, bytes], None, None]:
    """Yield the records after the header in runs, each with its first byte.

    Args:
        path: the file.
        size: about how many bytes a run has; 0: `BLOCK_BYTES`.
        dialect: how it is written.

    Raises:
        DataFileError: naming the line of a quote that nothing closes, or that text follows.
    """
    with open_bytes(path, dialect) as file:
        size = size or BLOCK_BYTES
        start, left, is_last = _header_bytes(path, file, dialect, min(size, HEADER_BYTES))
        while left or not is_last:
            # Less where the header was read with more behind it.
            wanted = max(size - len(left), 1)
            more = b"" if is_last else file.read(wanted)
            is_last = is_last or len(more) < wanted
            data = left + more
            found = record_ends(data, is_last=is_last, dialect=dialect)
            if wrong := _wrong(found, data, is_last=is_last):
                refused = _misquoted(path, start + wrong[0], wrong[1], dialect)
                raise refused
            cut = len(data) if is_last else int(found.ends[-1]) if len(found.ends) else 0
            if cut:
                yield start, data[:cut]
            start, left = start + cut, data[cut:]
            if not cut:
                size += BLOCK_BYTES


def _header_bytes(
    path: Path, file: BinaryIO, dialect: Dialect, size: int
) -> tuple[int, bytes, bool]:
    """Return the length of what comes before the first row, what was read behind it, and if all.

    Raises:
        DataFileError: when the header does not end.
    """
    data, is_last = b"", False
    while not is_last:
        more = file.read(size)
        data, is_last = data + more, len(more) < size
        begin = len(BOM) if data.startswith(BOM) else 0
        found = record_ends(data[begin:], is_last=is_last, dialect=dialect)
        at = begin
        for end in (found.ends + begin).tolist():
            # Blank lines before the header are not it.
            if data[at:end].strip(b"\r\n"):
                return end, data[end:], is_last
            at = end
        if wrong := _wrong(found, data[begin:], is_last=is_last):
            refused = _misquoted(path, begin + wrong[0], wrong[1], dialect)
            raise refused
    return len(data), b"", True


class Ends(NamedTuple):
    """Where records end.

    Attributes:
        ends: offsets just after each line break outside quotes, int64.
        opened: offset of a quote that is still open at the end, or -1.
        followed: offset of the first closing quote with text behind it, or -1.
    """

    ends: np.ndarray
    opened: int = -1
    followed: int = -1


def record_ends(data: bytes, *, is_last: bool, dialect: Dialect = PLAIN) -> Ends:
    """Return where records end.

    Args:
        data: whole records, and the beginning of one more.
        is_last: whether nothing comes after `data`.
        dialect: how it is written.
    """
    quote, delimiter = ord(dialect.quote), ord(dialect.delimiter)
    array = np.frombuffer(data, np.uint8)
    breaks = line_breaks(data, array, is_last=is_last)
    quotes = np.flatnonzero(array == quote) if bytes([quote]) in data else breaks[:0]
    if not len(quotes):
        return Ends(breaks + 1)
    opens, closes = _cells(data, array, quotes, dialect)
    opened = int(opens[-1]) if len(opens) > len(closes) else -1
    is_inside = np.searchsorted(opens, breaks) > np.searchsorted(closes, breaks)
    inner = closes[closes + 1 < len(data)]
    followed = inner[~np.isin(array[inner + 1], (delimiter, LF, CR, quote))]
    return Ends(breaks[~is_inside] + 1, opened, int(followed[0]) if len(followed) else -1)


def _wrong(found: Ends, data: bytes, *, is_last: bool) -> tuple[int, str] | None:
    """Return offset and description of a quote that cannot be, None where all are right."""
    if found.followed >= 0:
        return found.followed, "text follows a closing quote"
    if is_last and found.opened >= 0:
        return found.opened, "a quote opens here and is never closed"
    if len(data) > MAX_RECORD_BYTES and not len(found.ends):
        return max(found.opened, 0), f"a record is longer than {MAX_RECORD_BYTES >> 20} MiB"
    return None


def line_breaks(data: bytes, array: np.ndarray, *, is_last: bool) -> np.ndarray:
    """Return the offset of the last byte of each line break."""
    breaks = np.flatnonzero(array == LF)
    if b"\r" not in data or data.count(b"\r\n") == data.count(b"\r"):
        return breaks
    returns = np.flatnonzero(array == CR)
    # At the end of the data, a line feed may still follow.
    after = np.append(array[1:], 0 if is_last else LF)
    return np.union1d(breaks, returns[after[returns] != LF])


def _cells(
    data: bytes, array: np.ndarray, quotes: np.ndarray, dialect: Dialect
) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of the quotes that open a cell, and of those that close it.

    A doubled quote may be given as a close and an open. Where every second quote stands at a cell's
    beginning or after another quote, they open and close in turn; otherwise some stand inside bare
    cells, and they are looked at one by one.
    """
    opens, closes = quotes[0::2], quotes[1::2]
    before = array[opens - 1]
    regular = np.isin(before, [ord(dialect.delimiter), LF, CR, ord(dialect.quote)]) | (opens == 0)
    if regular.all():
        return opens, closes
    return _irregular_cells(data, quotes.tolist(), dialect)


def _irregular_cells(
    data: bytes, quotes: list[int], dialect: Dialect
) -> tuple[np.ndarray, np.ndarray]:
    before, quote = f"{dialect.delimiter}\r\n".encode(), dialect.quote.encode()
    opens: list[int] = []
    closes: list[int] = []
    is_open, skipped = False, -1
    for place in quotes:
        if place == skipped:
            continue
        if not is_open:
            if place == 0 or data[place - 1] in before:
                opens.append(place)
                is_open = True
        elif data[place + 1 : place + 2] == quote:
            skipped = place + 1
        else:
            closes.append(place)
            is_open = False
    return np.array(opens, np.int64), np.array(closes, np.int64)


def _misquoted(path: Path, offset: int, what: str, dialect: Dialect) -> DataFileError:
    line = 1
    with open_bytes(path, dialect) as file:
        while offset > 0 and (data := file.read(min(offset, BLOCK_BYTES))):
            line += data.count(b"\n") or data.count(b"\r")
            offset -= len(data)
    return DataFileError(
        what,
        where=f"{path}:{line}",
        right="close each quote at the end of its cell, and double it where it belongs to the text",
    )


def records(
    path: Path, dialect: Dialect = PLAIN
) -> Generator[tuple[int, int, list[str]], None, None]:
    """Yield first line, last line and cells of each record, the header first.

    Bytes that are not UTF-8 come as lone surrogates.

    Raises:
        DataFileError: when a record is none.
    """
    csv.field_size_limit(MAX_RECORD_BYTES)
    with open_bytes(path, dialect) as file:
        buffered = file if hasattr(file, "read1") else io.BufferedReader(file)  # type: ignore[arg-type]
        lines = io.TextIOWrapper(buffered, "utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(lines, delimiter=dialect.delimiter, quotechar=dialect.quote)
        before = 0
        try:
            for cells in reader:
                line, before = before + 1, reader.line_num
                if cells:
                    yield line, before, cells
        except csv.Error as error:
            where = f"{path}:{before + 1}"
            raise DataFileError(
                f"this is no CSV record ({error})",
                where=where,
                right="quote cells that hold commas, quotes or line breaks",
            ) from error


def explain(
    path: Path, names: list[str], otherwise: str, dialect: Dialect = PLAIN
) -> DataFileError:
    """Return the error that names the lines behind a failed parse."""
    named: list[tuple[int, int]] = []
    count = 0
    for line, _, cells in records(path, dialect):
        for at, cell in enumerate(cells):
            if _byte_of(cell) is not None:
                column = f"column {names[at]}" if at < len(names) else f"column {at + 1}"
                return _not_utf8(f"{path}:{line}", column, cell)
        if len(cells) != len(names):
            count += 1
            named.extend([(line, len(cells))] if count <= NAMED_LINES else [])
    if not named:
        return DataFileError(
            f"the file cannot be read as CSV ({otherwise})",
            where=str(path),
            right="save it as CSV in UTF-8, with a header",
        )
    (line, found), *others = named
    also = [f"line {at} has {cells}" for at, cells in others]
    also += [f"{count - NAMED_LINES:,} more lines are as wrong"] if count > NAMED_LINES else []
    return DataFileError(
        f"expected {len(names)} columns, found {found}",
        where=f"{path}:{line}",
        holds=f"{count:,} such {'row' if count == 1 else 'rows'} in all"
        + (f" ({', '.join(also)})" if also else ""),
        right="quote cells that hold commas, and give every row as many cells as the header has",
    )


def _byte_of(cell: str) -> int | None:
    """Return the first byte of a cell that is not UTF-8."""
    if cell.isascii():
        return None
    return next((ord(one) - 0xDC00 for one in cell if 0xDC80 <= ord(one) <= 0xDCFF), None)


def _not_utf8(where: str, column: str, cell: str) -> DataFileError:
    return DataFileError(
        f"{column} is not UTF-8",
        where=where,
        holds=f"the byte 0x{_byte_of(cell) or 0:02X}",
        right="save the file in UTF-8",
    )
