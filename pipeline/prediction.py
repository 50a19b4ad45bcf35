"""`predict`: an exported model over files, one line of answers a row, in the files' order.

Rows are read, answered and written batch by batch, so memory does not grow with the files.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from components import column_types, readers, served
from components.readers import Part, Source
from trainer.errors import DataFileError, InputError

BATCH_ROWS = 4096
ERROR = "error"
SUFFIXES = (".csv", ".parquet")


def predict(model: str, data: str, out: Path, *, keep_errors: bool) -> list[str]:
    """Answer every row of the files and write the answers, whole or not at all.

    Args:
        model: folder of a SavedModel, or of its versions, of which the newest is taken.
        data: a file, a folder or a glob.
        out: a ``.csv`` or ``.parquet`` file that is made.
        keep_errors: whether a row that cannot be read gets a line with ``error`` filled in,
            rather than ending the command.

    Returns: what a person is told, line by line.

    Raises:
        InputError: when the model or the files cannot be read, or `out` cannot be written.
    """
    if out.suffix not in SUFFIXES:
        right = "name a file that ends in .csv or .parquet"
        raise InputError("no kind of file that is written", where=str(out), right=right)
    folder = _model_folder(model)
    described = _described(folder)
    source = readers.inspect(readers.resolve(data, Path.cwd()).files, column_types.DEFAULT_NULLS)
    said = _check(described, source)
    answer = served.load(folder).answer
    written = _write(
        out,
        (
            _answers(answer, rows, errors)
            for rows, errors in _rows(source, described, keep_errors=keep_errors)
        ),
    )
    return [*said, f"{written:,} rows", str(out)]


def _model_folder(model: str) -> Path:
    """Return the folder that holds the SavedModel.

    Raises:
        InputError: when there is none.
    """
    if model.startswith("models:/"):
        raise InputError(
            "models of a registry are not available in this version",
            where=model,
            right=served.WHERE_MODELS_ARE,
        )
    found = served.newest(Path(model))
    if found is None:
        raise InputError("holds no model", where=model, right=served.WHERE_MODELS_ARE)
    return found


def _described(folder: Path) -> dict[str, Any]:
    """Return what the model says of its columns.

    Raises:
        InputError: when it says nothing, or is a language model.
    """
    found = served.describe(folder)
    if found["label"]["task"] == "causal-lm":
        what = "is a language model, which answers no rows"
        raise InputError(what, where=str(folder), right="serve it, or name another model")
    return found


def _check(described: Mapping[str, Any], source: Source) -> list[str]:
    """Return which columns of the model the files do not have; others are not looked at.

    Raises:
        InputError: when they have none of them, or one holds lists.
    """
    names = [one["column"] for one in described["columns"]]
    missing = [name for name in names if name not in source.layout.kinds]
    if len(missing) == len(names):
        raise InputError(
            "the files have no column that the model reads",
            where="DATA",
            holds=", ".join(list(source.layout.kinds)[:20]),
            right=f"the model reads {', '.join(names[:20])}",
        )
    if lists := [name for name in names if name in source.layout.lists]:
        what = f"column {lists[0]} holds several values in a row"
        raise InputError(what, where="DATA", right="give one value a row")
    return [f"warning    the files have no column {name}: missing in all rows" for name in missing]


def _rows(
    source: Source, described: Mapping[str, Any], *, keep_errors: bool
) -> Iterator[tuple[dict[str, np.ndarray], list[str]]]:
    """Yield batches as the model takes them, and what is wrong with each row (empty: nothing)."""
    for part in source.parts:
        first = part.first
        for batch in source.read(part):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                rows = batch.slice(start, BATCH_ROWS)
                errors = [""] * rows.num_rows
                columns = {one["key"]: _values(one, rows, errors) for one in described["columns"]}
                if not keep_errors:
                    _refuse(part, first + start, errors)
                yield columns, errors
            first += batch.num_rows


def _refuse(part: Part, first: int, errors: list[str]) -> None:
    """Refuse the first row that something is wrong with.

    Raises:
        DataFileError: naming its place.
    """
    at = next((at for at, one in enumerate(errors) if one), None)
    if at is not None:
        (place,) = readers.places(part.path, [first + at])
        right = "correct the row, or keep such rows with --keep-errors"
        raise DataFileError(errors[at], where=place, right=right)


def _values(column: Mapping[str, Any], rows: pa.RecordBatch, errors: list[str]) -> np.ndarray:
    at = rows.schema.get_field_index(column["column"])
    if at < 0:
        return served.missing(column, rows.num_rows)
    values = rows.column(at)
    if column["kind"] == "string" or not pa.types.is_string(values.type):
        return served.plain(column, values)
    return _numbers(column["column"], values.to_pylist(), errors)


def _numbers(name: str, texts: list[str | None], errors: list[str]) -> np.ndarray:
    """Read numbers of a column in which some rows hold texts; these rows get an error."""
    missing = column_types.DEFAULT_NULLS
    numbers = np.full(len(texts), np.nan)
    for at, text in enumerate(texts):
        if text is None or text.strip() in missing:
            continue
        try:
            numbers[at] = float(text)
        except ValueError:
            errors[at] = errors[at] or f"column {name} holds no number: {json.dumps(text)}"
    return numbers


def _answers(answer: Any, columns: dict[str, np.ndarray], errors: list[str]) -> pa.RecordBatch:
    """Return the answers of a batch; a row with an error has none."""
    found = answer(columns)
    wrong = pa.array([bool(one) for one in errors])

    def told(values: np.ndarray) -> pa.Array:
        shown = [one.decode() for one in values] if values.dtype == object else values
        array = pa.array(shown)
        return pc.if_else(wrong, pa.scalar(None, array.type), array)

    made = {"prediction": told(found["prediction"])}
    if "probabilities" in found:
        for at, name in enumerate(found["classes"][0]):
            made[f"probability:{name.decode()}"] = told(found["probabilities"][:, at])
    made[ERROR] = pa.array([one or None for one in errors], pa.string())
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def _write(out: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the batches beside `out` and rename; return how many rows they have.

    Raises:
        InputError: when it cannot be written.
    """
    incoming = out.with_name(f".{out.name}.{os.getpid()}.incoming")
    rows = 0
    try:
        first = next(batches)
        make: Any = pq.ParquetWriter if out.suffix == ".parquet" else pa_csv.CSVWriter
        with make(str(incoming), first.schema) as writer:
            for batch in itertools.chain([first], batches):
                writer.write_table(pa.Table.from_batches([batch]))
                rows += batch.num_rows
        os.replace(incoming, out)
    except OSError as error:
        right = "name another file with --out"
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(out), right=right
        ) from error
    finally:
        incoming.unlink(missing_ok=True)
    return rows
