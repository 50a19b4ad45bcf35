"""TFRecord files of tf.Examples: values, gaps, order, and what cannot be read, by record."""

import gzip

import pytest
import tensorflow as tf

from components import example_files
from trainer.errors import DataFileError

COLUMNS = [
    {"column": "distance", "kind": "int"},
    {"column": "speed", "kind": "float"},
    {"column": "carrier", "kind": "string"},
]


def feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def record(**values) -> bytes:
    made = {name: feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in records:
            writer.write(one)
    return path


def test_values_and_gaps_come_back_in_order(tmp_path):
    count = 2 * example_files.BATCH_ROWS + 7
    path = write(tmp_path / "a.tfrecord", (
        record(distance=at, carrier=b"UA", more=1) if at % 2 else record(speed=0.5)
        for at in range(count)))  # fmt: skip
    batches = list(example_files.read(path, COLUMNS))
    assert [first for first, *_ in batches] == [
        0,
        example_files.BATCH_ROWS,
        2 * example_files.BATCH_ROWS,
    ]
    rows = [one for _, batch, _ in batches for one in batch.to_pylist()]
    assert rows == [
        {"distance": at, "speed": None, "carrier": b"UA"} if at % 2
        else {"distance": None, "speed": 0.5, "carrier": None}
        for at in range(count)
    ]  # fmt: skip
    assert not any(any(errors) for *_, errors in batches)
    assert example_files.seen(path) == {"distance", "carrier", "more", "speed"}


def test_a_record_that_is_no_example_of_these_columns_is_an_error_of_that_row(tmp_path):
    several = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2]))
    two = tf.train.Example(features=tf.train.Features(feature={"distance": several}))
    path = write(tmp_path / "a.tfrecord", [
        record(distance=1), record(distance=b"far"), b"\xff\xff", two.SerializeToString(),
        record(distance=5)])  # fmt: skip
    ((_, batch, errors),) = example_files.read(path, COLUMNS)
    assert [one["distance"] for one in batch.to_pylist()] == [1, None, None, None, 5]
    assert [bool(one) for one in errors] == [False, True, True, True, False]
    assert "distance" in errors[1]
    assert errors[3] == "column distance holds several values"


def test_a_damaged_file_is_named(tmp_path):
    path = write(tmp_path / "a.tfrecord", [record(distance=1)])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataFileError, match="after record 0"):
        list(example_files.read(path, COLUMNS))
    packed = tmp_path / "b.tfrecord.gz"
    packed.write_bytes(gzip.compress(write(tmp_path / "c", [record(distance=1)]).read_bytes()))
    ((_, batch, _),) = example_files.read(packed, COLUMNS)
    assert [one["distance"] for one in batch.to_pylist()] == [1]
