"""Text documents: a file is a row with the columns ``text`` and ``path``.

The text is the file's content as it is, which must be UTF-8. The path is relative to the folder
that all files are in; it says where a row stands and is not part of its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from components import csv_records
from components.column_types import Seen
from trainer.errors import DataFileError

ENDINGS = (".txt", ".md", ".rst", ".py")
SUFFIXES = (*ENDINGS, *(f"{one}.gz" for one in ENDINGS))
TEXT, PATH = "text", "path"
COLUMNS = (TEXT, PATH)
TEMPORARY = (".", "~", "#")
"""Names that begin so are hidden, or left by a program that is writing."""
SHOWN = 3
GROUP_BYTES = 4 << 20
"""Of documents that are written into one file of examples."""
MOST_BYTES = 2**31 - 1
"""What a text column holds in one batch."""


def is_document(path: Path) -> bool:
    """Say whether a file is a text document by its name."""
    return path.name.endswith(SUFFIXES)


def is_temporary(path: Path) -> bool:
    """Say whether a file or folder is hidden or temporary by its name."""
    return path.name.startswith(TEMPORARY)


@dataclass(frozen=True)
class Folder:
    """What a folder holds.

    Attributes:
        files: its documents, those of the folders in it too, by their paths.
        skipped: what else it holds, a line for each reason.
    """

    files: tuple[Path, ...]
    skipped: tuple[str, ...]


def search(folder: Path, why_not: Callable[[Path], str] | None = None) -> Folder:
    """Find the documents of a folder and of all folders in it; links to folders are not followed.

    Hidden and temporary folders are not entered.

    Args:
        folder: where.
        why_not: of a file, why it is not meant, empty when it is; None: of documents.
    """
    refuse = why_not or _why_no_document
    files: list[Path] = []
    others: dict[str, list[str]] = {}
    for path, is_folder in _walk(folder):
        reason = "hidden or temporary" if is_folder else refuse(path)
        if reason:
            others.setdefault(reason, []).append(os.path.relpath(path, folder))
        else:
            files.append(path)
    return Folder(tuple(sorted(files)), tuple(summary(others)))


def why_not(path: Path) -> str:
    """Return why a file is no document; empty when it is one."""
    if is_temporary(path):
        return "hidden or temporary"
    if not path.is_file():
        return "not a file"
    if not is_document(path):
        return "not a text document by its ending"
    return "" if path.stat().st_size else "empty"


_why_no_document = why_not


def summary(reasons: dict[str, list[str]]) -> Iterator[str]:
    """Yield a line for each reason: the first names, how many more, and why."""
    for reason, names in sorted(reasons.items()):
        more = len(names) - SHOWN
        also = f" and {more:,} more" if more > 0 else ""
        yield f"{', '.join(sorted(names)[:SHOWN])}{also}: {reason}"


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield every file, and every folder that is not entered with True."""
    for parent, folders, names in os.walk(folder):
        hidden = [one for one in folders if is_temporary(Path(one))]
        folders[:] = sorted(set(folders) - set(hidden))
        yield from ((Path(parent, one), True) for one in sorted(hidden))
        yield from ((Path(parent, one), False) for one in sorted(names))


def common_folder(files: Iterable[str | Path]) -> str:
    """Return the folder that all files are in, which their ``path`` is relative to."""
    folders = [str(Path(one).parent) for one in files]
    return os.path.commonpath(folders) if folders else ""


def shown_path(path: Path, folder: str) -> str:
    """Return a file's path relative to a folder, as a text whatever its bytes are."""
    return os.fsencode(os.path.relpath(path, folder)).decode(errors="replace")


def groups(paths: Sequence[Path]) -> list[list[int]]:
    """Return the numbers of files that are written into one, about `GROUP_BYTES` each."""
    found: list[list[int]] = [[]]
    size = 0
    for number, path in enumerate(paths):
        if found[-1] and size >= GROUP_BYTES:
            found.append([])
            size = 0
        found[-1].append(number)
        size += path.stat().st_size
    return found


def see(path: Path) -> tuple[int, dict[str, Seen]]:
    """Return the one row of a document, and what its values show.

    Raises:
        DataFileError: as `read`.
    """
    batch, _ = read(path, str(path.parent))
    has_text = not batch.column(0).null_count
    of_text = Seen(has_values=has_text, is_text=has_text)
    return 1, {TEXT: of_text, PATH: Seen(has_values=True, is_text=True)}


def no_text(path: Path) -> DataFileError:
    """Return the error of a document without a byte that was named by itself."""
    return DataFileError(
        "the document is empty",
        where=str(path),
        holds="0 bytes",
        right="give it a text, or take it out of data.files",
    )


def read(path: Path, folder: str, *, most: int = 0) -> tuple[pa.RecordBatch, bool]:
    """Return a document as one row, and whether that is all of it.

    A document without a byte, which only a packed one can be, has no text.

    Args:
        path: the file.
        folder: what its path is relative to.
        most: bytes that are read, about; 0: all.

    Raises:
        DataFileError: when it cannot be read, is too large for a row, or is not UTF-8.
    """
    with csv_records.open_bytes(path) as file:
        # More than one byte past the limit, so that no character is cut that is whole in the file.
        data = file.read(most + 4 if most else MOST_BYTES + 1)
    is_whole = not most or len(data) <= most
    if len(data) > MOST_BYTES:
        raise DataFileError(
            "the document is too large to be a row",
            where=str(path),
            holds=f"more than {MOST_BYTES:,} bytes",
            right="cut it into several files",
        )
    text = _checked(path, data if is_whole else _whole_characters(data[:most]))
    texts = pa.array([text or None], pa.string())
    places = pa.array([shown_path(path, folder)])
    return pa.RecordBatch.from_arrays([texts, places], list(COLUMNS)), is_whole


def _whole_characters(data: bytes) -> bytes:
    """Return bytes without the beginning of a character at their end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if size <= back else data[:-back]
    return data


def _checked(path: Path, data: bytes) -> str:
    """Return the bytes of a document as text.

    Raises:
        DataFileError: naming the first byte that is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at, line = error.start, data.count(b"\n", 0, error.start) + 1
        shown = f"the byte 0x{data[at]:02X} at byte {at:,}"
        raise DataFileError(
            "the document is not UTF-8 text",
            where=f"{path}:{line}",
            holds=shown,
            right="save it as UTF-8, or leave it out of data.files",
        ) from error
