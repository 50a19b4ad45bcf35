"""Data files to typed Arrow record batches, whatever the format; refused by file and line.

`resolve` finds the files, `inspect` decides every column's type over all of them before a value is
written, `Source.read` yields rows. What is in one part of a file is read in bounded memory. The
rules for types and missing values stand in `column_types`, those of text documents in `documents`.
"""

from __future__ import annotations

import glob
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components import (
    column_types,
    csv_files,
    csv_records,
    documents,
    image_files,
    parquet_files,
    remote_files,
    text_choice,
    tfrecord_files,
)
from components.column_types import Layout, Nulls, Seen
from components.csv_lines import Lines
from components.csv_records import PLAIN, Dialect
from components.file_columns import short_name
from trainer.errors import DataFileError

CSV = (".csv", ".csv.gz", ".csv.zst")
TABLES = (*CSV, ".parquet", *tfrecord_files.SUFFIXES)
SUFFIXES = (*TABLES, *documents.SUFFIXES, *image_files.SUFFIXES)
ENDINGS = (*TABLES, *documents.SUFFIXES, ".png", ".jpg", ".jpeg")
"""As they are said."""
WORKERS = min(4, len(os.sched_getaffinity(0)))
MOST_SHARDS = 256
"""Files of a split that tables are written into; a part is the least."""
_EXPLAINING = threading.Lock()


@dataclass(frozen=True)
class Found:
    """The files that a setting stands for.

    Attributes:
        files: absolute, in order.
        skipped: what a folder or a pattern also held, each with the reason.
    """

    files: tuple[Path, ...]
    skipped: tuple[str, ...]


def resolve(spec: str | Sequence[str], base: Path, copies: Path | None = None) -> Found:
    """Find the files that a path, a glob, a folder, or a list of them stands for.

    Args:
        spec: what ``data.files`` holds.
        base: folder that relative paths are relative to.
        copies: gets copies of what stands in object storage; None: a folder for temporary files.

    Raises:
        DataFileError: when one stands for no file that can be read, or they stand for tables and
            text documents.
    """
    files: list[Path] = []
    skipped: list[str] = []
    if not spec:
        raise DataFileError(
            "it names no file",
            where="data.files",
            holds=repr(spec),
            right="name a path, a glob, or a list of them",
        )
    for one in [spec] if isinstance(spec, str) else spec:
        found = (
            _resolve_remote(one, copies or Path(tempfile.gettempdir()) / "headrace")
            if remote_files.is_remote(one)
            else _resolve_one(one, base)
        )
        files.extend(path for path in found.files if path not in files)
        skipped.extend(found.skipped)
    _refuse_mixed(files)
    return Found(tuple(files), tuple(skipped))


def _refuse_mixed(files: Sequence[Path]) -> None:
    """Refuse files of several kinds.

    Raises:
        DataFileError: naming one of each.
    """
    first: dict[str, Path] = {}
    for path in files:
        kind = (
            "text documents" if documents.is_document(path)
            else "images" if image_files.is_image(path) else "tables"
        )  # fmt: skip
        first.setdefault(kind, path)
    if len(first) > 1:
        kinds = [one for one in ("tables", "text documents", "images") if one in first]
        raise DataFileError(
            f"{' and '.join(kinds)} cannot be read together",
            where="data.files",
            holds=" and ".join(first[one].name for one in kinds),
            right='name files of one kind, such as "*.csv", "**/*.txt" or a folder of images',
        )


def resolve_files(spec: str | Sequence[str], base: Path) -> list[Path]:
    """Return the files of `resolve` alone."""
    return list(resolve(spec, base).files)


def _resolve_one(spec: str, base: Path) -> Found:
    path = Path(os.path.abspath(base / spec))
    if path.is_file():
        _check_named(path)
        return Found((path,), ())
    if path.is_dir():
        candidates = sorted(path.iterdir())
        if not any(map(_is_table, candidates)) and (found := _search(path)).files:
            return Found(found.files, found.skipped)
    elif any(mark in spec for mark in "*?["):
        candidates = sorted(Path(one) for one in glob.glob(str(path), recursive=True))
    else:
        raise DataFileError(
            "there is no such file", where="data.files", holds=f'"{spec}"', right=_near(path)
        )
    reasons = {one: _why_not(one) for one in candidates}
    files = tuple(one for one, why in reasons.items() if not why)
    if path.is_dir() and any(map(_is_table, files)):
        beside = {one: "a text document beside tables" for one in files if not _is_table(one)}
        reasons, files = reasons | beside, tuple(one for one in files if one not in beside)
    if not files:
        raise DataFileError(
            "it stands for no data file",
            where="data.files",
            holds=f'"{spec}"',
            right=f"name files that end in {', '.join(ENDINGS)}",
        )
    if not any(map(_is_table, files)):
        return Found(files, tuple(documents.summary(_by_reason(reasons, base))))
    skipped = tuple(f"{one}: {why}" for one, why in reasons.items() if why)
    return Found(files, skipped)


def _search(folder: Path) -> documents.Folder:
    """Find the documents of a folder and of all folders in it, or the images.

    Where there are both, images are meant if they are more and lie in folders of their own, as
    classes do; else a text with its pictures would be taken for pictures with a text.
    """
    texts = documents.search(folder)
    images = documents.search(folder, image_files.why_not)
    of_images = {one.parent for one in images.files}
    are_classes = len(of_images) > 1 and not of_images & {one.parent for one in texts.files}
    is_meant = not texts.files or (are_classes and len(images.files) > len(texts.files))
    return images if images.files and is_meant else texts


def _resolve_remote(spec: str, copies: Path) -> Found:
    def why_not(name: str, size: int) -> str:
        if name.startswith((".", "_")):
            return "hidden or a marker"
        if not name.endswith(SUFFIXES):
            return "not a data file by its ending"
        return "" if size else "empty"

    files, skipped = remote_files.copy_here(spec, copies, why_not)
    return Found(tuple(files), tuple(skipped))


def _is_table(path: Path) -> bool:
    return path.name.endswith(TABLES) and not path.name.startswith((".", "_"))


def _by_reason(reasons: Mapping[Path, str], base: Path) -> dict[str, list[str]]:
    """Return what is not read by why it is not; of folders nothing is said."""
    found: dict[str, list[str]] = {}
    for path, why in reasons.items():
        if why and not path.is_dir():
            found.setdefault(why, []).append(os.path.relpath(path, base))
    return found


def _near(path: Path) -> str:
    import difflib

    names = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"the nearest is {near[0]}" if near else f"name a file that is there, unlike {path}"


def _check_named(path: Path) -> None:
    """Refuse a named file that is no data file.

    Raises:
        DataFileError: for another ending, or no byte.
    """
    if not path.name.endswith(SUFFIXES):
        raise DataFileError(
            "not a kind of file that is read",
            where=str(path),
            holds=f"the ending {path.suffix}" if path.suffix else "no ending in its name",
            right=f"name files that end in {', '.join(ENDINGS)}",
        )
    if not path.stat().st_size and not image_files.is_image(path):
        is_text = documents.is_document(path)
        empty = documents.no_text(path) if is_text else csv_records.no_header(path)
        raise empty


def _why_not(path: Path) -> str:
    """Return why a folder's entry is no data file; empty when it is one."""
    if documents.is_document(path):
        return documents.why_not(path)
    if image_files.is_image(path):
        return image_files.why_not(path)
    if path.name.startswith((".", "_")):
        return "hidden or a marker"
    if not path.is_file():
        return "not a file"
    if not path.name.endswith(SUFFIXES):
        return "not a data file by its ending"
    return "" if path.stat().st_size else "empty"


@dataclass(frozen=True)
class Part:
    """A range of one file: bytes of a CSV, a row group of a Parquet file.

    Attributes:
        path: the file.
        place: the range, in the file's own terms.
        first: row of the file that it begins with, from 0.
        rows: how many it holds.
    """

    path: Path
    place: tuple[int, int]
    first: int
    rows: int


@dataclass(frozen=True)
class Source:
    """All files of a data set, inspected.

    Attributes:
        layout: columns and types.
        parts: of all files, in order.
        names: each file's own columns, in its order.
        null: what is missing.
        folder: the folder that all files are in.
        dialect: how CSV files are written.
    """

    layout: Layout
    parts: tuple[Part, ...]
    names: dict[Path, list[str]]
    null: Nulls
    folder: str = ""
    dialect: Dialect = PLAIN

    @property
    def rows(self) -> dict[Path, int]:
        """Rows of each file."""
        counted = dict.fromkeys(self.names, 0)
        for part in self.parts:
            counted[part.path] += part.rows
        return counted

    def shards(self) -> list[list[int]]:
        """Return the numbers of the parts that are written together: some, or many small files."""
        if any(documents.is_document(one) or image_files.is_image(one) for one in self.names):
            return documents.groups([part.path for part in self.parts])
        size = -(-len(self.parts) // MOST_SHARDS)
        numbers = list(range(len(self.parts)))
        return [numbers[at : at + size] for at in range(0, len(numbers), size)]

    def read(self, part: Part) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of a part with every column of the layout, in the layout's order.

        Columns are int64, float64 or string, missing values null; those of `layout.lists` are
        large lists. A column that this file lacks is missing in all of its rows.

        Raises:
            DataFileError: the file is not what it was when it was inspected.
        """
        with explained(part.path, self.names[part.path], self.dialect):
            for batch in self._batches(part):
                yield completed(batch, self.layout)

    def _batches(self, part: Part) -> Generator[pa.RecordBatch, None, None]:
        if is_csv(part.path):
            names = self.names[part.path]
            return csv_files.read(
                part.path, part.place, names, self.layout, self.null, self.dialect
            )
        if documents.is_document(part.path):
            return (one for one in [documents.read(part.path, self.folder)[0]])
        if image_files.is_image(part.path):
            return (one for one in [image_files.read(part.path, self.folder)[0]])
        return _format_of(part.path).read(part.path, part.place, self.layout, self.null)


def completed(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Return typed rows of one file with every column of the layout, in the layout's order."""
    columns = [_column(batch, name, layout) for name in layout.kinds]
    return pa.RecordBatch.from_arrays(columns, list(layout.kinds))


def _column(batch: pa.RecordBatch, name: str, layout: Layout) -> pa.Array:
    at = batch.schema.get_field_index(name)
    kind = column_types.ARROW[layout.kinds[name]]
    if name in layout.empty and name not in layout.lists:
        return pa.nulls(batch.num_rows, kind)
    if name in layout.lists:
        if at < 0:
            return pa.nulls(batch.num_rows, pa.large_list(kind))
        return _as_lists(batch.column(at))
    return pa.nulls(batch.num_rows, kind) if at < 0 else batch.column(at)


def _as_lists(column: pa.Array) -> pa.Array:
    if pa.types.is_large_list(column.type):
        return column
    offsets = np.concatenate([[0], np.cumsum(np.asarray(column.is_valid()))]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), column.drop_null())


def inspect(
    files: Iterable[str | Path],
    null_values: Iterable[str],
    dialect: Dialect = PLAIN,
    *,
    block: int = 0,
) -> Source:
    """Decide every column's type over all files.

    Args:
        files: as `resolve` found them.
        null_values: ``data.null_values``.
        dialect: how CSV files are written.
        block: bytes of a part of a plain CSV; 0: `csv_records.BLOCK_BYTES`.

    Raises:
        DataFileError: naming file and line of what cannot be read.
    """
    null = column_types.nulls(null_values)
    paths = [Path(one) for one in files]
    names = {path: header(path, dialect) for path in paths}
    work = [(path, place) for path in paths for place in _ranges(path, dialect, block)]
    found = _side_by_side(lambda one: _see(*one, names[one[0]], null, dialect), work)
    seen = {name: Seen() for path in paths for name in names[path]}
    parts, first = [], dict.fromkeys(paths, 0)
    for (path, place), (rows, of_part) in zip(work, found, strict=True):
        parts.append(Part(path, place, first[path], rows))
        first[path] += rows
        for name, one in of_part.items():
            # A TFRecord has no header: its later records may have other features.
            if name not in names[path]:
                names[path].append(name)
            seen.setdefault(name, Seen()).merge(one)
    for path, rows in first.items():
        if not rows:
            empty = csv_records.no_rows(path, names[path])
            raise empty
    layout = text_choice.with_places(column_types.settle(seen))
    check_finite(layout, names, null, dialect)
    folder = documents.common_folder(paths)
    return Source(layout, tuple(parts), names, null, folder, dialect)


def _side_by_side(see: Callable[[Any], Any], work: Sequence[Any]) -> list[Any]:
    """Return what was seen of each range, in order; the first error ends what has not begun."""
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting = [pool.submit(see, one) for one in work]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def check_finite(
    layout: Layout, names: Mapping[Path, list[str]], null: Nulls, dialect: Dialect = PLAIN
) -> None:
    """Refuse a number that is not finite.

    Raises:
        DataFileError: naming the first one's column and place.
    """
    for name in layout.infinite:
        for path in (path for path, own in names.items() if name in own):
            refused = (
                csv_files.not_finite(path, name, null, dialect)
                if is_csv(path)
                else _format_of(path).not_finite(path, name, null)
            )
            if refused:
                raise refused


def is_csv(path: Path) -> bool:
    """Say whether a file is a CSV by its name."""
    return path.name.endswith(CSV)


def _format_of(path: Path) -> Any:
    """Return the module that reads such a file, which is no CSV and no text document."""
    return tfrecord_files if path.name.endswith(tfrecord_files.SUFFIXES) else parquet_files


def header(path: Path, dialect: Dialect = PLAIN) -> list[str]:
    """Return a file's column names.

    Raises:
        DataFileError: when there are none, or some that cannot be.
    """
    if documents.is_document(path):
        return list(documents.COLUMNS)
    if image_files.is_image(path):
        return list(image_files.COLUMNS)
    return csv_records.header(path, dialect) if is_csv(path) else _format_of(path).header(path)


def _ranges(path: Path, dialect: Dialect, block: int) -> list[tuple[int, int]]:
    if documents.is_document(path) or image_files.is_image(path):
        return [(0, 0)]
    if is_csv(path):
        return csv_files.ranges(path, dialect, block)
    return _format_of(path).ranges(path)


def _see(
    path: Path, place: tuple[int, int], names: list[str], null: Nulls, dialect: Dialect
) -> tuple[int, dict[str, Seen]]:
    if documents.is_document(path):
        return documents.see(path)
    if image_files.is_image(path):
        return image_files.see()
    if not is_csv(path):
        return _format_of(path).see(path, place, null)
    with explained(path, names, dialect):
        return csv_files.see(path, place, names, null, dialect)


@contextmanager
def explained(
    path: Path, names: list[str], dialect: Dialect = PLAIN
) -> Generator[None, None, None]:
    """Turn a failed parse into the error that names the lines.

    Raises:
        DataFileError: in place of `csv_files.Unparsed`.
    """
    try:
        yield
    except csv_files.Unparsed as error:
        # One thread at a time: the first one to explain is the one whose error is raised.
        with _EXPLAINING:
            explained = csv_records.explain(path, names, str(error), dialect)
        raise explained from error


def places(path: Path, rows: Iterable[int], dialect: Dialect = PLAIN) -> list[str]:
    """Return where these rows of a file stand: ``file:line``, or ``file:row N`` for Parquet.

    A text document is its one row, and so is an image.

    Args:
        path: the file.
        rows: from 0, in the file's order.
        dialect: how CSV files are written.
    """
    wanted = sorted(set(rows))
    if documents.is_document(path) or image_files.is_image(path):
        return [str(path) for _ in wanted]
    if is_csv(path):
        return [
            f"{path}:{line}"
            for line in Lines(path, dialect).of(np.array(wanted, np.int64)).tolist()
        ]
    return [f"{path}:row {row + 1}" for row in wanted]


def short_places(
    path: Path, rows: Iterable[int], files: Sequence[str], dialect: Dialect = PLAIN
) -> list[str]:
    """Return `places`, the file named as seen from the folder that all `files` are in."""
    short = short_name(path, files)
    return [place.replace(str(path), short, 1) for place in places(path, rows, dialect)]
