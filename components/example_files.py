"""TFRecord files of serialized tf.Examples, as record batches of a model's columns."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.errors import DataFileError

SUFFIXES = (".tfrecord", ".tfrecord.gz")
BATCH_ROWS = 1024

Rows = tuple[int, pa.RecordBatch, list[str]]
"""Number of the first record, the columns, and what is wrong with each record (empty: nothing)."""


def is_one(path: Path) -> bool:
    """Say whether a file holds records by its name."""
    return path.name.endswith(SUFFIXES)


def read(path: Path, columns: Sequence[Mapping[str, Any]]) -> Iterator[Rows]:
    """Yield the records of a file, in order, in batches.

    Args:
        path: the file.
        columns: of the model: ``column`` and ``kind`` (``int``, ``float`` or ``string``).

    Raises:
        DataFileError: naming the record from which the file cannot be read.
    """
    import tensorflow as tf

    kinds = {"int": tf.int64, "float": tf.float32, "string": tf.string, "image": tf.string}
    asked = {one["column"]: tf.io.RaggedFeature(kinds[one["kind"]]) for one in columns}
    compression = "GZIP" if path.name.endswith(".gz") else ""
    first = 0
    records = iter(tf.data.TFRecordDataset(str(path), compression).batch(BATCH_ROWS))
    while True:
        try:
            batch = next(records, None)
        except tf.errors.OpError as error:
            raise DataFileError(
                f"is damaged, or no TFRecord file: {error.message.splitlines()[0][:120]}",
                where=f"{path}: after record {first:,}",
                right="write it again, or leave it out",
            ) from error
        if batch is None:
            return
        yield (first, *_parsed(batch, asked))
        first += int(batch.shape[0])


def seen(path: Path) -> set[str]:
    """Return the names of the features in the first records."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    compression = "GZIP" if path.name.endswith(".gz") else ""
    names: set[str] = set()
    # What is wrong with the file is told when it is read.
    with contextlib.suppress(tf.errors.OpError, DecodeError):
        for record in tf.data.TFRecordDataset(str(path), compression).take(100):
            names |= set(tf.train.Example.FromString(record.numpy()).features.feature)
    return names


def _parsed(records: Any, asked: Mapping[str, Any]) -> tuple[pa.RecordBatch, list[str]]:
    """Parse a batch at once, or, where one is at fault, record by record."""
    import tensorflow as tf

    count = int(records.shape[0])
    try:
        parsed = tf.io.parse_example(records, dict(asked))
        if all(_is_single(one) for one in parsed.values()):
            return _batch(parsed, count), [""] * count
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        # The latter where TensorFlow's own message quotes bytes that are no text.
        pass
    errors, kept = [], []
    for record in records:
        one, error = _parsed_alone(record, asked)
        errors.append(error)
        kept.append(one)
    return pa.Table.from_batches(kept).combine_chunks().to_batches()[0], errors


def _parsed_alone(record: Any, asked: Mapping[str, Any]) -> tuple[pa.RecordBatch, str]:
    import tensorflow as tf

    empty = tf.io.parse_example(tf.constant([b""]), dict(asked))
    try:
        parsed = tf.io.parse_example(record[None], dict(asked))
    except tf.errors.InvalidArgumentError as error:
        return _batch(empty, 1), f"no tf.Example as the model reads it: {_reason(error)}"
    except UnicodeDecodeError:
        return _batch(empty, 1), "no tf.Example"
    several = [name for name, one in parsed.items() if not _is_single(one)]
    if several:
        return _batch(empty, 1), f"column {several[0]} holds several values"
    return _batch(parsed, 1), ""


def _reason(error: Any) -> str:
    said = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", error.message, flags=re.DOTALL)
    return " ".join(said.split())[:160]


def _is_single(values: Any) -> bool:
    return bool((values.row_lengths().numpy() <= 1).all())


def _batch(parsed: Mapping[str, Any], rows: int) -> pa.RecordBatch:
    names = sorted(parsed)
    return pa.RecordBatch.from_arrays([_array(parsed[one], rows) for one in names], names)


def _array(ragged: Any, rows: int) -> pa.Array:
    values = ragged.flat_values.numpy()
    places = np.full(rows, -1, np.int64)
    there = ragged.row_lengths().numpy() == 1
    places[there] = np.arange(len(values))
    kind = pa.binary() if values.dtype == object else None
    return pa.array(values, kind).take(pa.array(places, mask=places < 0))
