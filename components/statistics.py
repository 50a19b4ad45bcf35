"""StatisticsGen: TFDV's statistics of each split, computed on whole Arrow batches.

The work of one shard is a plain function: it reads the shard's examples in batches and adds them to
TFDV's own accumulators and to exact counts of values. Shards are read side by side and merged, so
memory holds a few batches, whatever the number of rows. The result is what TFDV's Beam transform
`GenerateStatistics` gives, in TFX's layout; `values.json` beside it holds the distinct values
of each column that has few enough. The values of a column of long texts are not counted at all:
such statistics have lengths and missing values, and neither distinct nor top values. Nor are those
of images, whose statistics are those of bytes.
"""

import gzip
import json
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
import tensorflow_data_validation as tfdv
from tensorflow_data_validation import types
from tensorflow_data_validation.statistics.generators import basic_stats_generator
from tensorflow_data_validation.utils import top_k_uniques_stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import artifact_utils, standard_artifacts
from tfx_bsl.coders import example_coder

from components.text_choice import LONG_BYTES
from components.value_counts import ValueCounts
from trainer import journal
from trainer.errors import DataFileError

BATCH_ROWS = 1 << 15
BATCH_BYTES = 64 << 20
"""Of serialized examples that are parsed at once, or one, where it has more."""
READ_BYTES = 1 << 20
DISTINCT_LIMIT = 10_000
"""A number column with more distinct values than this is not listed in `values.json`."""
TEXT_LIMIT = 1 << 20
"""Of a text column with more distinct values than this they are estimated, and none is listed."""
STATISTICS_FILE = "FeatureStats.pb"
VALUES_FILE = "values.json"
ROWS_FILE = "rows.json"
AT_HAND = "statistics"
"""Folder beside our ExampleGen's examples that holds their statistics."""
TELL_SECONDS = 0.2
REMAKE = "run again with --no-cache ExampleGen, which writes it anew"
TENSOR_TYPES = {"int": tf.int64, "float": tf.float32, "string": tf.string, "image": tf.string}


@dataclass
class PartialStatistics:
    """TFDV's accumulator of one part of the rows, and exact counts of their values.

    Attributes:
        options: of TFDV.
        images: columns of images.
    """

    options: tfdv.StatsOptions = field(default_factory=tfdv.StatsOptions)
    images: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._generator = self._made()
        self._basic = self._generator.create_accumulator()
        self._counts: dict[str, ValueCounts] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Give what travels between processes: all but TFDV's generator, which holds functions."""
        return {name: value for name, value in vars(self).items() if name != "_generator"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where another process stopped."""
        vars(self).update(state)
        self._generator = self._made()

    def _made(self) -> Any:
        return basic_stats_generator.BasicStatsGenerator(
            num_values_histogram_buckets=self.options.num_values_histogram_buckets,
            num_histogram_buckets=self.options.num_histogram_buckets,
            num_quantiles_histogram_buckets=self.options.num_quantiles_histogram_buckets,
            epsilon=self.options.epsilon,
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch whose columns are lists of values."""
        self._basic = self._generator.add_input(self._basic, batch)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_null(column.type):
                values = column.flatten()
                counts = self._counts_of(name, values.type)
                if name in self.images or _is_long(values):
                    counts.give_up()
                counts.add(values)

    def merge(self, other: "PartialStatistics") -> None:
        """Add the statistics of another part."""
        self._basic = self._generator.merge_accumulators([self._basic, other._basic])
        for name, counts in other._counts.items():
            self._counts.setdefault(name, ValueCounts(counts.limit)).merge(counts)

    def statistics(self) -> statistics_pb2.DatasetFeatureStatistics:
        """Return TFDV's statistics of all rows that were added, features by name.

        Nothing can be added or merged afterwards: TFDV's sketches are then closed.
        """
        basic = self._generator.extract_output(self._generator.compact(self._basic))
        features = sorted(basic.features, key=lambda feature: feature.path.step[0])
        result = statistics_pb2.DatasetFeatureStatistics()
        result.CopyFrom(basic)
        del result.features[:]
        for feature in features:
            if feature.path.step[0] in self.images:
                _as_bytes(feature)
            elif feature.type == statistics_pb2.FeatureNameStatistics.STRING:
                self._add_top_values(feature)
            result.features.append(feature)
        return result

    def distinct_values(self) -> dict[str, list[tuple[Any, int]]]:
        """Return pairs of value and count of each column with at most `DISTINCT_LIMIT` values."""
        return {
            name: _pairs(table)
            for name, counts in sorted(self._counts.items())
            if (table := counts.table()).num_rows <= DISTINCT_LIMIT and not counts.given_up
        }

    def _counts_of(self, name: str, kind: pa.DataType) -> ValueCounts:
        limit = DISTINCT_LIMIT if pa.types.is_primitive(kind) else TEXT_LIMIT
        return self._counts.setdefault(name, ValueCounts(limit))

    def _add_top_values(self, feature: statistics_pb2.FeatureNameStatistics) -> None:
        counts = self._counts.get(feature.path.step[0])
        if counts and counts.given_up and counts.estimate():
            feature.string_stats.unique = counts.estimate()
        table = counts.table() if counts else None
        if table is None or not table.num_rows:
            return
        ranks = self.options.num_rank_histogram_buckets
        head = table.slice(0, max(ranks, self.options.num_top_values))
        top = top_k_uniques_stats_util.make_feature_stats_proto_topk_uniques(
            types.FeaturePath(list(feature.path.step)),
            num_top_values=self.options.num_top_values,
            num_rank_histogram_buckets=ranks,
            num_unique=table.num_rows,
            value_count_list=[
                top_k_uniques_stats_util.FeatureValueCount(value, count)
                for value, count in zip(*head.to_pydict().values(), strict=True)
            ],
        )
        feature.string_stats.MergeFrom(top.string_stats)


def images_of(kinds: Mapping[str, str]) -> frozenset[str]:
    """Return the columns of images among columns with their kinds."""
    return frozenset(name for name, kind in kinds.items() if kind == "image")


def _as_bytes(feature: statistics_pb2.FeatureNameStatistics) -> None:
    """Make statistics of texts those of bytes, which is how a schema is told that they are none."""
    told = statistics_pb2.BytesStatistics(common_stats=feature.string_stats.common_stats)
    told.avg_num_bytes = feature.string_stats.avg_length
    feature.type = statistics_pb2.FeatureNameStatistics.BYTES
    feature.bytes_stats.CopyFrom(told)


def _is_long(values: pa.Array) -> bool:
    """Say whether one of them is a long text."""
    if not pa.types.is_large_binary(values.type) or not len(values):
        return False
    return pc.max(pc.binary_length(values)).as_py() > LONG_BYTES


def _pairs(table: pa.Table) -> list[tuple[Any, int]]:
    values, counts = table.to_pydict().values()
    return [
        (value.decode(errors="replace") if isinstance(value, bytes) else value, count)
        for value, count in zip(values, counts, strict=True)
    ]


def write_statistics(examples: str, statistics: str, splits: list[str]) -> None:
    """Write ``Split-<name>/FeatureStats.pb`` of each split, and ``values.json``.

    What our ExampleGen counted while it wrote the examples is taken from it.

    Args:
        examples: place of the Examples artifact.
        statistics: place of the ExampleStatistics artifact.
        splits: names of the splits.

    Raises:
        DataFileError: when a shard of the examples cannot be read.
    """
    at_hand = Path(examples) / AT_HAND
    if (at_hand / VALUES_FILE).is_file():
        shutil.copytree(at_hand, statistics, dirs_exist_ok=True)
        return
    keep_statistics(compute(examples, splits, _progress(examples)), statistics)


def keep_statistics(partials: Mapping[str, PartialStatistics], statistics: str) -> None:
    """Write the statistics of each split, and `values.json` last of all."""
    values = {}
    for split, partial in partials.items():
        folder = Path(statistics) / f"Split-{split}"
        folder.mkdir(parents=True, exist_ok=True)
        whole = statistics_pb2.DatasetFeatureStatisticsList(datasets=[partial.statistics()])
        (folder / STATISTICS_FILE).write_bytes(whole.SerializeToString(deterministic=True))
        values[split] = partial.distinct_values()
    (Path(statistics) / VALUES_FILE).write_text(json.dumps(values))


def read_statistics(statistics: str, split: str) -> statistics_pb2.DatasetFeatureStatistics:
    """Return the statistics of one split from an ExampleStatistics artifact."""
    whole = statistics_pb2.DatasetFeatureStatisticsList()
    path = Path(statistics) / f"Split-{split}" / STATISTICS_FILE
    whole.ParseFromString(path.read_bytes())
    return whole.datasets[0]


def read_values(statistics: str) -> dict[str, dict[str, list[tuple[Any, int]]]]:
    """Return split -> column -> pairs of value and count, most frequent first.

    Columns with more than `DISTINCT_LIMIT` distinct values are not in it; NaN, infinite and missing
    values are not counted. Text that is not UTF-8 has its bad bytes replaced.
    """
    whole = json.loads((Path(statistics) / VALUES_FILE).read_text())
    return {
        split: {name: [(value, count) for value, count in pairs] for name, pairs in columns.items()}
        for split, columns in whole.items()
    }


def compute(
    examples: str, splits: list[str], tell: Callable[[int], None] = lambda _: None
) -> dict[str, PartialStatistics]:
    """Return the statistics of each split, its shards read side by side.

    Args:
        examples: place of the Examples artifact.
        splits: names of the splits.
        tell: is told the number of rows of each batch, from any thread.
    """
    shards = [(split, path) for split in splits for path in shard_paths(examples, split)]
    kinds = column_kinds(examples)
    images = images_of(kinds)
    result = {split: PartialStatistics(images=images) for split in splits}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = pool.map(lambda shard: shard_statistics(shard[1], kinds, tell), shards)
        for (split, _), part in zip(shards, parts, strict=True):
            result[split].merge(part)
    return result


def shard_statistics(
    path: Path, kinds: Mapping[str, str], tell: Callable[[int], None] = lambda _: None
) -> PartialStatistics:
    """Return the statistics of one shard, to be merged with those of the others."""
    partial = PartialStatistics(images=images_of(kinds))
    for batch in read_shard(path, kinds):
        partial.add(batch)
        tell(batch.num_rows)
    return partial


def shard_paths(examples: str, split: str) -> list[Path]:
    """Return the shards of one split of an Examples artifact, by name."""
    folder = Path(examples) / f"Split-{split}"
    return sorted(path for path in folder.iterdir() if path.name[0] not in "._")


def read_examples(examples: str, split: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split as batches; see `read_shard`.

    Raises:
        DataFileError: when a shard cannot be read.
    """
    kinds = column_kinds(examples)
    for path in shard_paths(examples, split):
        yield from read_shard(path, kinds)


def column_kinds(examples: str) -> dict[str, str]:
    """Return the columns that our ExampleGen wrote: name to its kind, as in `column_types`.

    Empty for examples that something else wrote.
    """
    return read_rows(examples).get("types", {})


def read_rows(examples: str) -> dict[str, Any]:
    """Return what our ExampleGen wrote of files, rows and types; nothing of other examples."""
    path = Path(examples) / ROWS_FILE
    return json.loads(path.read_text()) if path.exists() else {}


def read_shard(path: Path, kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield one shard's tf.Examples as batches of at most `BATCH_ROWS` rows.

    A batch has at most about `BATCH_BYTES`, unless one example has more.

    Each column is a ``large_list`` of int64, float32 or large_binary, null where the value is
    missing; a column that is missing in the whole batch has Arrow's null type, or is not there.

    Args:
        path: TFRecord file of serialized tf.Examples.
        kinds: see `column_kinds`. With them TensorFlow's parser is used, which takes a sixth of the
            time of tfx_bsl's and runs beside other threads, but cannot find columns by itself nor
            tell an empty list from a missing one. Our ExampleGen writes no empty lists.

    Raises:
        DataFileError: when the shard cannot be read.
    """
    decode = _parser(kinds) if kinds else example_coder.ExamplesToRecordBatchDecoder().DecodeBatch
    waiting: list[bytes] = []
    size = 0
    for record in chain.from_iterable(_read_records(path)):
        if waiting and (len(waiting) >= BATCH_ROWS or size + len(record) > BATCH_BYTES):
            yield decode(waiting)
            waiting, size = [], 0
        waiting.append(record)
        size += len(record)
    if waiting:
        yield decode(waiting)


def _parser(kinds: Mapping[str, str]) -> Callable[[list[bytes]], pa.RecordBatch]:
    spec = {
        name: tf.io.RaggedFeature(TENSOR_TYPES[kind], row_splits_dtype=tf.int64)
        for name, kind in sorted(kinds.items())
    }

    def decode(records: list[bytes]) -> pa.RecordBatch:
        with tf.device("CPU"):
            columns = tf.io.parse_example(records, spec)
        lists = [_lists(columns[name]) for name in spec]
        return pa.RecordBatch.from_arrays(lists, list(spec))

    return decode


def _lists(ragged: tf.RaggedTensor) -> pa.Array:
    """Return a ragged column as lists, null where a row has no value."""
    splits, flat = ragged.row_splits.numpy(), ragged.values.numpy()
    if not len(flat):
        return pa.nulls(len(splits) - 1)
    values = pa.array(flat, pa.large_binary()) if flat.dtype == object else pa.array(flat)
    # A null among the offsets makes the list that begins there null.
    missing = np.append(splits[1:] == splits[:-1], False)
    return pa.LargeListArray.from_arrays(pa.array(splits, mask=missing), values)


def _read_records(path: Path) -> Iterator[list[bytes]]:
    """Yield the records of a TFRecord file, a few at a time.

    A record is: length (uint64), its checksum (4 bytes), the data, their checksum (4 bytes). The
    checksums are not looked at, since gzip has its own over the whole.

    Raises:
        DataFileError: when the file is damaged.
    """
    left = b""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            # The rest of a long record at once, so that it is not copied chunk by chunk.
            while chunk := file.read(max(READ_BYTES, _record_bytes(left) - len(left))):
                records, left = _split_records(left + chunk)
                yield records
    except (OSError, EOFError) as error:
        raise DataFileError(
            f"these examples cannot be read ({error})", where=str(path), right=REMAKE
        ) from error
    if left:
        raise DataFileError(
            "the file ends in the middle of an example", where=str(path), right=REMAKE
        )


def _record_bytes(start: bytes) -> int:
    """Return how long the record is that begins so; 0 where that cannot be told yet."""
    return struct.unpack_from("<Q", start)[0] + 16 if len(start) >= 8 else 0


def _split_records(data: bytes) -> tuple[list[bytes], bytes]:
    records, start, end = [], 0, len(data)
    while start + 12 <= end:
        after = start + 16 + struct.unpack_from("<Q", data, start)[0]
        if after > end:
            break
        records.append(data[start + 12 : after - 4])
        start = after
    return records, data[start:]


def _progress(examples: str) -> Callable[[int], None]:
    """Return a function that takes a number of rows and tells the run's journal of their sum."""
    total = read_rows(examples).get("rows_read", 0)
    lock, state = threading.Lock(), {"done": 0, "told": 0.0}

    def tell(rows: int) -> None:
        with lock:
            state["done"] += rows
            done, now = int(state["done"]), time.monotonic()
            if now - state["told"] < TELL_SECONDS and done != total:
                return
            state["told"] = now
        journal.append(
            os.environ.get("HEADRACE_EVENTS", ""), "progress",
            id="StatisticsGen", done=done, total=total, unit="rows",
        )  # fmt: skip

    return tell


@component
def StatisticsGen(
    examples: InputArtifact[standard_artifacts.Examples],
    statistics: OutputArtifact[standard_artifacts.ExampleStatistics],
    settings: Parameter[str],  # ruff: ignore[unused-function-argument]
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument]
) -> None:
    """Compute the statistics of every split of the examples."""
    splits = artifact_utils.decode_split_names(examples.split_names)
    statistics.split_names = artifact_utils.encode_split_names(splits)
    statistics.span = examples.span
    write_statistics(examples.uri, statistics.uri, splits)
