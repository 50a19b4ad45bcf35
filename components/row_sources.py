"""The rows of the data once more, for the gate to name those that show an anomaly.

They come from the source files, with their places; where those are not at hand, from the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components import evidence, readers, split
from components.cleaning import Cleaning, Rules, cleaned_batches
from components.csv_records import Dialect
from components.evidence import Row, Rows
from components.readers import Source
from components.statistics import read_examples
from trainer.errors import InputError


def rows_of(
    settings: Mapping[str, Any], columns: Sequence[str], *, examples: str, splits: Sequence[str]
) -> Iterable[Rows]:
    """Return the rows of all splits, as batches.

    Args:
        settings: files, null_values, csv and split.
        columns: which columns.
        examples: place of the Examples artifact.
        splits: names of the splits.
    """
    source = _open(settings["files"], settings["null_values"], dialect_of(settings))
    if source is None:
        return example_rows(examples, splits, columns)
    return file_rows(source, settings, columns)


def dialect_of(settings: Mapping[str, Any]) -> Dialect:
    """Return how the CSV files of these settings are written."""
    return Dialect(**settings.get("csv", {}))


def _open(files: Sequence[str], null_values: Sequence[str], dialect: Dialect) -> Source | None:
    """Return the source files, None where one of them cannot be read."""
    if not files or not all(Path(path).is_file() for path in files):
        return None
    try:
        return readers.inspect(files, null_values, dialect)
    except (InputError, OSError):
        return None


def file_rows(
    source: Source, settings: Mapping[str, Any], columns: Sequence[str]
) -> Iterator[Rows]:
    """Yield the rows of the source files, cleaned and split as ExampleGen does it.

    A row that cleaning drops is in no split.

    Args:
        source: the files.
        settings: split, clean and label.
        columns: which columns.
    """
    cleaning = Cleaning(Rules.of(settings.get("clean")), source.layout, settings["label"])
    cleaning.find_duplicates(batch for part in source.parts for batch in source.read(part))
    is_eval = split.by_settings(
        settings["split"], source.layout, lambda: cleaned_batches(source, cleaning)
    )
    before = 0
    for part in source.parts:
        first = part.first
        for raw in source.read(part):
            batch, _ = cleaning.values(raw)
            kept, _ = cleaning.kept(batch, before)
            before += raw.num_rows

            def is_in(
                name: str, rows: np.ndarray, batch: Any = batch, kept: np.ndarray = kept
            ) -> np.ndarray:
                there = kept[rows]
                held_back = np.zeros(len(rows), np.bool_)
                held_back[there] = is_eval(batch.take(pa.array(rows[there])))
                return there & (held_back if name == "eval" else ~held_back)

            found = {
                name: column
                for name in columns
                if (column := _column(batch, name, lambda one: one)) is not None
                and not pa.types.is_large_list(column.type)
            }
            yield Rows(batch.num_rows, found, is_in, file=part.path, first=first)
            first += batch.num_rows


def example_rows(examples: str, splits: Sequence[str], columns: Sequence[str]) -> Iterator[Rows]:
    """Yield the rows of an Examples artifact; their places are not known."""
    for split_name in splits:
        for batch in read_examples(examples, split_name):

            def is_in(name: str, rows: np.ndarray, here: str = split_name) -> np.ndarray:
                return np.full(len(rows), name == here)

            found = {
                name: column
                for name in columns
                if (column := _column(batch, name, evidence.plain)) is not None
            }
            yield Rows(batch.num_rows, found, is_in)


def _column(
    batch: pa.RecordBatch, name: str, values: Callable[[pa.Array], pa.Array]
) -> pa.Array | None:
    """Return a column, or how many values another one has; None where it is not there."""
    at = batch.schema.get_field_index(name.removeprefix(evidence.LENGTH))
    if at < 0:
        return None
    column = batch.column(at)
    return evidence.lengths(column) if name.startswith(evidence.LENGTH) else values(column)


def place_names(rows: Iterable[Row], files: Sequence[str], dialect: Dialect) -> dict[Row, str]:
    """Return what each row is called: ``file:line``, or ``file:row N`` for Parquet.

    A file is named as seen from the folder that all files are in.
    """
    by_file: dict[Path, set[int]] = {}
    for path, row in rows:
        by_file.setdefault(path, set()).add(row)
    named: dict[Row, str] = {}
    for path, wanted in by_file.items():
        places = readers.short_places(path, wanted, files, dialect)
        named |= {(path, row): one for row, one in zip(sorted(wanted), places, strict=True)}
    return named
