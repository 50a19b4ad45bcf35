"""Examples artifacts made from tables, for the tests of what reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

Table = Mapping[str, list[Any]]
KINDS = {int: "int", float: "float", str: "string"}
ARROW = {"int": pa.int64(), "float": pa.float32(), "string": pa.large_binary()}


@pytest.fixture(scope="session")
def write_examples() -> Callable[..., str]:
    """Write tables, split by split, as an Examples artifact; return its place."""
    return _write_examples


def _write_examples(
    folder: Path, splits: Mapping[str, Table], *, shards: int = 1, told: bool = True
) -> str:
    """Write the examples.

    Args:
        folder: gets ``Split-<name>/``.
        splits: split to column to values, None where missing.
        shards: files a split.
        told: whether ``rows.json`` names the columns, as our ExampleGen's does.
    """
    import tensorflow as tf
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

    kinds = {name: _kind([one.get(name, []) for one in splits.values()])
             for one in splits.values() for name in one}  # fmt: skip
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    for split, table in splits.items():
        place = folder / f"Split-{split}"
        place.mkdir(parents=True)
        batch = _batch(table, kinds)
        records = RecordBatchToExamplesEncoder().encode(batch) if batch.num_rows else []
        for shard in range(shards):
            path = place / f"data_tfrecord-{shard:05d}-of-{shards:05d}.gz"
            with tf.io.TFRecordWriter(str(path), options) as file:
                for record in records[shard::shards]:
                    file.write(record)
    if told:
        (folder / "rows.json").write_text(json.dumps({"types": kinds, "rows_read": 0}))
    return str(folder)


def _kind(columns: list[list[Any]]) -> str:
    types = [type(value) for column in columns for value in column if value is not None]
    return KINDS[types[0]] if types else "string"


def _batch(table: Table, kinds: Mapping[str, str]) -> pa.RecordBatch:
    arrays = []
    for name, values in table.items():
        stored = [value.encode() if isinstance(value, str) else value for value in values]
        lists = [None if value is None else [value] for value in stored]
        arrays.append(pa.array(lists, pa.large_list(ARROW[kinds[name]])))
    return pa.RecordBatch.from_arrays(arrays, list(table))
