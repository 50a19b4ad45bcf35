"""Rows to TFRecords of tf.Examples, made by Arrow and NumPy whole columns at a time.

A serialized tf.Example is the joined entries of a protobuf map. An entry is a prefix, which the
column's name and the value's length decide, and the value's bytes; so a batch is encoded by looking
up prefixes and one join of columns. tfx_bsl's encoder makes the same examples, in four times as
long and holding Python's lock.

Wire formats: protobuf.dev/programming-guides/encoding; tensorflow/core/example/feature.proto;
tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BYTES_LIST, FLOAT_LIST, INT64_LIST = 0x0A, 0x12, 0x1A
"""Tags of the fields of tf.train.Feature."""
_KEY, _VALUE, _ENTRY, _FEATURES = 0x0A, 0x12, 0x0A, 0x0A
_CRC_MASK = 0xA282EAD8
_EMPTY = pa.scalar(b"", pa.large_binary())


def encode(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Return each row as a serialized tf.Example.

    int64 columns become int64_list, float64 ones float_list (float32), texts and images bytes_list,
    lists all their values; a missing value or an empty list is a feature that is not there.
    """
    pieces = [
        piece
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        for piece in _entries(name, column)
    ]
    # A column that is there in no row: the join needs one without nulls to give no null.
    nothing = pa.array([b""], pa.large_binary()).take(pa.array(np.zeros(batch.num_rows, np.int64)))
    body = _join(nothing, *pieces)
    lengths = np.asarray(pc.binary_length(body))
    return _join(_by_length(lengths, lambda length: bytes([_FEATURES]) + varint(length)), body)


def as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as TFDV wants them, with the values that their examples hold.

    Each column is a large_list of int64, float32 or large_binary, null where the value is missing,
    or of Arrow's null type where it is in all rows.
    """
    columns = [_as_list(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _as_list(column: pa.Array) -> pa.Array:
    if pa.types.is_large_list(column.type):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
        values = column.flatten()
    else:
        lengths = np.asarray(column.is_valid()).astype(np.int64)
        values = column.drop_null()
    if not len(values):
        return pa.nulls(len(column))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # A null among the offsets makes the list that begins there null.
    missing = np.append(lengths == 0, False)
    if pa.types.is_string(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_binary())
    elif pa.types.is_floating(values.type):
        values = values.cast(pa.float32())
    return pa.LargeListArray.from_arrays(pa.array(offsets, mask=missing), values)


def frame(examples: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return each example as a TFRecord: length, its checksum, the data, their checksum."""
    offsets = np.frombuffer(examples.buffers()[1], np.int64)
    offsets = offsets[examples.offset : examples.offset + len(examples) + 1]
    data = memoryview(examples.buffers()[2] or b"")
    sums = np.fromiter(
        (google_crc32c.value(bytes(data[start:end])) for start, end in pairwise(offsets.tolist())),
        np.uint32,
        len(examples),
    )
    tails = _fixed(_masked(sums).astype("<u4"))
    return _join(_by_length(np.diff(offsets), _head), examples, tails)


def joined_bytes(records: pa.LargeBinaryArray) -> memoryview:
    """Return the bytes of all records, one after the other, without a copy."""
    if not len(records):
        return memoryview(b"")
    offsets = np.frombuffer(records.buffers()[1], np.int64)
    start, end = offsets[records.offset], offsets[records.offset + len(records)]
    return memoryview(records.buffers()[2] or b"")[start:end]


def varint(number: int) -> bytes:
    """Return a number from 0 as protobuf writes it: 7 bits a byte, lowest first."""
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _entries(name: str, column: pa.Array) -> tuple[pa.Array, ...]:
    """Return prefix and value of a column's map entries, null where the value is missing."""
    if column.null_count == len(column):
        return ()
    if pa.types.is_large_list(column.type):
        tag, values = _list_values(column)
    elif pa.types.is_string(column.type) or pa.types.is_large_binary(column.type):
        tag, values = BYTES_LIST, column.cast(pa.large_binary())
    elif pa.types.is_floating(column.type):
        floats = np.asarray(pc.fill_null(column, 0.0)).astype("<f4")
        tag, values = FLOAT_LIST, _fixed(floats, column)
    else:
        tag, values = INT64_LIST, _varints(np.asarray(pc.fill_null(column, 0)), column)
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0))
    missing = np.asarray(values.is_null()) if values.null_count else None
    wrap = _list_entry if pa.types.is_large_list(column.type) else _entry
    key = name.encode()
    return _by_length(lengths, lambda length: wrap(key, tag, length), missing), values


def _entry(name: bytes, tag: int, length: int) -> bytes:
    """Return what stands before the bytes of a single value in the map of features."""
    return _list_entry(name, tag, length, before=bytes([0x0A]) + varint(length))


def _list_entry(name: bytes, tag: int, length: int, before: bytes = b"") -> bytes:
    """Return what stands before `before` and `length` bytes of a whole list."""
    inner = len(before) + length
    feature = bytes([tag]) + varint(inner)
    key = bytes([_KEY]) + varint(len(name)) + name
    size = len(feature) + inner
    value = bytes([_VALUE]) + varint(size)
    entry = len(key) + len(value) + size
    return bytes([_ENTRY]) + varint(entry) + key + value + feature + before


def _list_values(column: pa.Array) -> tuple[int, pa.Array]:
    """Return the tag and each row's whole list as bytes; lists are rare, so a row at a time."""
    kind = column.type.value_type
    if pa.types.is_string(kind):
        tag, one = BYTES_LIST, _texts
    elif pa.types.is_floating(kind):
        tag, one = FLOAT_LIST, lambda values: _packed(np.array(values, "<f4").tobytes())
    else:
        tag, one = INT64_LIST, lambda values: _packed(
            b"".join(varint(value % 2**64) for value in values)
        )  # fmt: skip
    rows = [[value for value in row or () if value is not None] for row in column.to_pylist()]
    return tag, pa.array([one(row) if row else None for row in rows], pa.large_binary())


def _texts(values: list[str]) -> bytes:
    return b"".join(_packed(value.encode()) for value in values)


def _packed(data: bytes) -> bytes:
    return bytes([0x0A]) + varint(len(data)) + data


def _varints(numbers: np.ndarray, like: pa.Array) -> pa.Array:
    """Return int64 [rows] as varints, null where `like` is."""
    left = numbers.astype(np.int64).view(np.uint64)
    lengths = np.ones(len(left), np.int64)
    for bits in range(7, int(left.max(initial=0)).bit_length(), 7):
        lengths += left >= np.uint64(1 << bits)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    data = np.zeros(offsets[-1], np.uint8)
    at = offsets[:-1]
    while len(left):
        more = left > np.uint64(0x7F)
        data[at] = (left & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        left, at = left[more] >> np.uint64(7), at[more] + 1
    return _binary(offsets, data, like)


def _fixed(numbers: np.ndarray, like: pa.Array | None = None) -> pa.Array:
    """Return the bytes of each number, null where `like` is."""
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * numbers.itemsize
    return _binary(offsets, numbers.view(np.uint8), like)


def _binary(offsets: np.ndarray, data: np.ndarray, like: pa.Array | None) -> pa.Array:
    valid = None
    if like is not None and like.null_count:
        bits = np.packbits(np.asarray(like.is_valid()), bitorder="little")
        valid = pa.py_buffer(bits)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [valid, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)],
    )


def _by_length(
    lengths: np.ndarray, make: Callable[[int], bytes], missing: np.ndarray | None = None
) -> pa.Array:
    """Return for each row the text that `make` gives for its length, null where it is missing."""
    distinct = np.unique(lengths) if lengths.max(initial=0) > len(lengths) else _small(lengths)
    places = np.searchsorted(distinct, lengths)
    table = pa.array([make(length) for length in distinct.tolist()], pa.large_binary())
    return table.take(pa.array(places, mask=missing))


def _small(lengths: np.ndarray) -> np.ndarray:
    """Return distinct lengths, in order; faster than sorting where none is large."""
    return np.flatnonzero(np.bincount(lengths))


def _join(*pieces: pa.Array) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="skip")


def _head(length: int) -> bytes:
    size = struct.pack("<Q", length)
    crc = int(_masked(np.array([google_crc32c.value(size)], np.uint32))[0])
    return size + struct.pack("<I", crc)


def _masked(crc: np.ndarray) -> np.ndarray:
    """Return CRC-32C sums, uint32, as TFRecord stores them."""
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(_CRC_MASK)
