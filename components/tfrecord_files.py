"""TFRecord files of tf.Examples: one range a file; types as in `column_types`, refused by record.

Light: `check` and `init` read them too, so tf.Example is declared here and TensorFlow not imported.
Checksums are verified, so that a damaged byte is never a wrong value. Wire formats:
tensorflow/core/example/feature.proto; tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from components import csv_records, image_files, parquet_files
from components.column_types import Layout, Nulls, Seen, is_not_finite
from trainer.errors import DataFileError

SUFFIXES = (".tfrecord", ".tfrecord.gz", ".tfrecords", ".tfrecords.gz")
BATCH_ROWS = 1 << 14
HEAD_ROWS = 1000
"""Records that the names of columns are first looked for in."""
MOST_BYTES = 1 << 30
"""A longer record is taken for a damaged length."""
WHOLE = (0, -1)
ARROW = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
Range = tuple[int, int]


def is_tfrecord(path: Path) -> bool:
    """Say whether a file is a TFRecord by its name."""
    return path.name.endswith(SUFFIXES)


def header(path: Path) -> list[str]:
    """Return the names of the features that the first records have.

    Raises:
        DataFileError: when they cannot be read.
    """
    names: set[str] = set()
    for example in itertools.islice(_examples(path), HEAD_ROWS):
        names.update(example.features.feature)
    return sorted(names)


def ranges(path: Path) -> list[Range]:
    """Return the whole file: where a record begins is known from the one before alone."""
    return [WHOLE]


def see(path: Path, part: Range, null: Nulls) -> tuple[int, dict[str, Seen]]:
    """Return the rows of a file and what their values show, by column.

    Raises:
        DataFileError: when a record is damaged or no tf.Example.
    """
    rows, seen = 0, {}
    for batch in _batches(path):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            seen.setdefault(name, Seen()).merge(parquet_files.see_column(column, null))
        rows += batch.num_rows
    return rows, seen


def head(path: Path, *, rows: int) -> tuple[pa.Table, bool]:
    """Return the first rows of a file with every column of `header`, and whether those are all.

    Raises:
        DataFileError: when a record is damaged or no tf.Example.
    """
    examples = _examples(path)
    batch = _batch(path, list(itertools.islice(examples, rows)), 0)
    missing = [name for name in header(path) if name not in batch.schema.names]
    columns = [*batch.columns, *(pa.nulls(batch.num_rows) for _ in missing)]
    found = pa.Table.from_arrays(columns, [*batch.schema.names, *missing])
    return found, next(examples, None) is None


def not_finite(path: Path, name: str, null: Nulls) -> DataFileError | None:
    """Return the error that names the first number of a feature that is not finite, if any."""
    for row, example in enumerate(_examples(path)):
        for value in example.features.feature[name].float_list.value:
            if is_not_finite(str(value), null):
                return DataFileError(
                    f"column {name} holds a number that is infinite",
                    where=f"{path}:row {row + 1}",
                    right="leave the value out to have it read as missing",
                )
    return None


def read(
    path: Path,
    part: Range,
    layout: Layout,
    null: Nulls,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a file, typed as in `column_types`; lists stay lists."""
    for batch in _batches(path):
        columns = [
            parquet_files.typed_column(column, name, layout, null)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    examples, first = _examples(path), 0
    while some := list(itertools.islice(examples, BATCH_ROWS)):
        yield _batch(path, some, first)
        first += len(some)


def _batch(path: Path, examples: list[Any], first: int) -> pa.RecordBatch:
    """Return tf.Examples as columns; a feature that a row has not, or empty, is missing there."""
    values: dict[str, list[Any]] = {}
    kinds: dict[str, set[str]] = {}
    for row, example in enumerate(examples):
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            held = getattr(feature, kind).value if kind else ()
            if len(held):
                if name not in values:
                    values[name], kinds[name] = [None] * len(examples), set()
                values[name][row] = list(held)
                kinds[name].add(kind)
    names = sorted(values)
    columns = [_column(path, name, values[name], kinds[name], first) for name in names]
    if not names:
        # A batch without a column has no length; a nameless one would be a wrong name.
        return pa.RecordBatch.from_arrays([pa.nulls(len(examples))], [""]).slice(0, 0)
    return pa.RecordBatch.from_arrays(columns, names)


def _column(path: Path, name: str, rows: list[Any], kinds: set[str], first: int) -> pa.Array:
    if len(kinds) > 1:
        as_text = "bytes_list" in kinds
        rows = [
            one and [str(value).encode() if as_text and not isinstance(value, bytes) else value
                     for value in one]
            for one in rows
        ]  # fmt: skip
        kinds = {"bytes_list"} if as_text else {"float_list"}
    kind = ARROW[next(iter(kinds))]
    if all(one is None or len(one) == 1 for one in rows):
        return _text(path, name, pa.array([one and one[0] for one in rows], kind), rows, first)
    lengths = np.array([len(one or ()) for one in rows], np.int64)
    flat = pa.array([value for one in rows for value in one or ()], kind)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
    return pa.LargeListArray.from_arrays(offsets, _text(path, name, flat, rows, first))


def _text(path: Path, name: str, values: pa.Array, rows: list[Any], first: int) -> pa.Array:
    """Return bytes as text, unless they are images.

    Raises:
        DataFileError: naming the first row whose bytes are not UTF-8.
    """
    if not pa.types.is_binary(values.type):
        return values
    if image_files.is_encoded(next((one for row in rows for one in row or ()), b"")):
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as error:
        row = next((at for at, one in enumerate(rows) if not _is_text(one or ())), 0)
        raise DataFileError(
            f"column {name} holds bytes that are not UTF-8 text",
            where=f"{path}:row {first + row + 1}",
            right="write texts in UTF-8, or leave the feature out of the examples",
        ) from error


def _is_text(values: Iterable[bytes]) -> bool:
    try:
        b"".join(values).decode()
    except UnicodeDecodeError:
        return False
    return True


def _examples(path: Path) -> Iterator[Any]:
    """Yield the file's tf.Examples.

    Raises:
        DataFileError: naming the record that is damaged or no tf.Example.
    """
    message = _example_class()
    for row, record in enumerate(_records(path)):
        try:
            yield message.FromString(record)
        except DecodeError as error:
            raise DataFileError(
                "the record is no tf.Example",
                where=f"{path}:row {row + 1}",
                right="write tf.train.Example messages, or name files of them alone",
            ) from error


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, their checksums verified.

    Raises:
        DataFileError: naming the record at which the file is damaged or ends too early.
    """
    with csv_records.open_bytes(path) as file:
        for row in itertools.count(1):
            head = file.read(12)
            if not head:
                return
            length = struct.unpack_from("<Q", head.ljust(12, b"\0"))[0]
            is_whole = len(head) == 12 and _sum(head[:8]) == struct.unpack_from("<I", head, 8)[0]
            is_whole = is_whole and length <= MOST_BYTES
            data = file.read(length + 4) if is_whole else b""
            is_whole = is_whole and len(data) == length + 4
            if not is_whole or _sum(data[:length]) != struct.unpack_from("<I", data, length)[0]:
                damaged = _damaged(path, row)
                raise damaged
            yield data[:length]


def _sum(data: bytes) -> int:
    """Return the masked CRC-32C that stands behind lengths and data."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: Path, row: int) -> DataFileError:
    return DataFileError(
        "the file is damaged or ends in the middle of a record",
        where=f"{path}:row {row}",
        right="copy it here again, or write it again",
    )


@functools.cache
def _example_class() -> Any:
    """Return tf.train.Example as a message class, declared as feature.proto has it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(
            name="value", number=1, type=kind, label=field.LABEL_REPEATED
        )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        feature.field.add(
            name=name, number=number, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
            type_name=f".t.{of}", oneof_index=0,
        )  # fmt: skip
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
        type_name=".t.Feature",
    )  # fmt: skip
    features.field.add(
        name="feature", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
        type_name=".t.Features.FeatureEntry",
    )  # fmt: skip
    file.message_type.add(name="Example").field.add(
        name="features", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
        type_name=".t.Features",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))
