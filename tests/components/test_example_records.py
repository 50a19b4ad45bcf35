"""Examples and TFRecords against tfx_bsl's and TensorFlow's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components import example_records

INTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300))
FLOATS = st.one_of(st.none(), st.floats(width=32, allow_nan=False, allow_infinity=False))
TEXTS = st.one_of(st.none(), st.text(max_size=5), st.text(min_size=130, max_size=300))
COLUMNS = {"n": pa.int64(), "größe (cm)": pa.float64(), "x" * 200: pa.string()}


def lists(column: pa.Array) -> pa.Array:
    """Return a column as tfx_bsl wants it."""
    if pa.types.is_large_list(column.type):
        return column
    offsets = np.concatenate([[0], np.cumsum(np.asarray(column.is_valid()))]).astype(np.int64)
    values = column.drop_null()
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float32())
    elif pa.types.is_string(values.type):
        values = values.cast(pa.large_binary())
    return pa.LargeListArray.from_arrays(pa.array(offsets), values)


def features(examples: list[bytes]) -> list[dict[str, list]]:
    """Parse with TensorFlow's own message; a feature without a value is left out."""
    from tensorflow.core.example import example_pb2

    result = []
    for data in examples:
        feature = example_pb2.Example.FromString(data).features.feature
        kinds = {name: one.WhichOneof("kind") for name, one in feature.items()}
        result.append({
            name: (kind, list(getattr(feature[name], kind).value))
            for name, kind in kinds.items()
            if kind and getattr(feature[name], kind).value
        })
    return result


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(INTS, FLOATS, TEXTS), min_size=1, max_size=20),
       skipped=st.integers(0, 3))  # fmt: skip
def test_examples_are_those_of_tfx_bsl(rows, skipped):
    from tfx_bsl.coders import example_coder

    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), kind) for column, kind in
              zip(columns, COLUMNS.values(), strict=True)]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(arrays, list(COLUMNS)).slice(min(skipped, len(rows) - 1))
    own = example_records.encode(batch).to_pylist()
    there = [name for name, column in zip(COLUMNS, batch.columns, strict=True)
             if column.null_count < len(column)]  # fmt: skip
    theirs = [b""] * batch.num_rows
    if there:
        listed = [lists(batch.column(batch.schema.get_field_index(name))) for name in there]
        encoder = example_coder.RecordBatchToExamplesEncoder()
        theirs = encoder.encode(pa.RecordBatch.from_arrays(listed, there))
    assert features(own) == features(theirs)


@pytest.mark.slow
def test_lists_keep_all_their_values():
    columns = {
        "n": pa.array([[1, -2], [], None, [2**40]], pa.large_list(pa.int64())),
        "f": pa.array([[0.5], [1.5, 2.5], [], None], pa.large_list(pa.float64())),
        "t": pa.array([["a", ""], None, ["é"], []], pa.large_list(pa.string())),
    }
    own = example_records.encode(pa.RecordBatch.from_pydict(columns)).to_pylist()
    assert features(own) == [
        {
            "n": ("int64_list", [1, -2]),
            "f": ("float_list", [0.5]),
            "t": ("bytes_list", [b"a", b""]),
        },
        {"f": ("float_list", [1.5, 2.5])},
        {"t": ("bytes_list", ["é".encode()])},
        {"n": ("int64_list", [2**40])},
    ]


@pytest.mark.slow
def test_records_are_read_by_tensorflow_which_checks_their_sums(tmp_path: Path):
    import tensorflow as tf

    data = [b"", b"a", b"abc" * 1000, bytes(range(256))]
    examples = pa.array(data, pa.large_binary())
    for records in (example_records.frame(examples), example_records.frame(examples.slice(1))):
        path = tmp_path / "records"
        path.write_bytes(example_records.joined_bytes(records))
        found = [one.numpy() for one in tf.data.TFRecordDataset(str(path))]
        assert found == data[len(data) - len(records) :]


def test_the_bytes_of_chosen_records_are_theirs_alone():
    records = pa.array([b"one", b"two", b"three", b"four"], pa.large_binary())
    chosen = records.filter(pa.array([True, False, True, False]))
    assert bytes(example_records.joined_bytes(chosen)) == b"onethree"
    assert bytes(example_records.joined_bytes(records.slice(1, 2))) == b"twothree"
    assert bytes(example_records.joined_bytes(records.slice(0, 0))) == b""


@pytest.mark.parametrize(
    ("number", "data"),
    # protobuf.dev/programming-guides/encoding: 150 is 96 01.
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (150, b"\x96\x01")],
)
def test_varints_are_protobufs(number, data):
    assert example_records.varint(number) == data
