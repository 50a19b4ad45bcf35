"""ExampleGen: data files to tf.Examples in TFX's layout, split for training and evaluation.

Built on Beam: one element a part of a file (a byte range, a row group), never a row. The work of a
part is a plain function: read, split, encode, and write its own gzip shard of each split.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import tensorflow as tf
from tfx.components.example_gen import utils as example_gen_utils
from tfx.components.util import examples_utils
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, standard_artifacts
from tfx_bsl.coders import example_coder

from components import readers, split
from components.fingerprint import file_digest
from components.readers import Part, Source
from trainer import journal
from trainer.errors import DataFileError

GZIP_LEVEL = 1
"""6 makes files a fifth smaller and the node a quarter slower."""


@component(use_beam=True)
def ExampleGen(
    examples: OutputArtifact[standard_artifacts.Examples],
    settings: Parameter[str],
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument] - part of the cache key
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Write the examples of the files that the settings name.

    Args:
        examples: gets ``Split-train``, ``Split-eval`` and ``rows.json``.
        settings: JSON text of files, label, null_values and split.
        fingerprint: JSON text of what a cached result depends on.
        beam_pipeline: runs the parts.
    """
    told = json.loads(settings)
    source = readers.inspect(told["files"], told["null_values"])
    _warn(source.layout.warnings)
    is_eval = split.by_settings(
        told["split"],
        source.layout,
        lambda: (batch for part in source.parts for batch in source.read(part)),
    )
    folder = Path(examples.uri)
    for name in split.SPLITS:
        (folder / f"Split-{name}").mkdir(parents=True, exist_ok=True)
    shards = Shards(source, is_eval, folder)
    write(shards, beam_pipeline)
    _describe(examples, shards)


class Shards:
    """What the work of a part needs, and what all parts came to.

    Attributes:
        source: the inspected files.
        folder: the artifact's place.
        counts: rows written, by split.
        errors: what went wrong.
    """

    def __init__(self, source: Source, is_eval: split.IsEval, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._is_eval = is_eval
        self._lock = threading.Lock()

    def write(self, number: int) -> None:
        """Write the shards of one part: its rows of each split, in their order."""
        part = self.source.parts[number]
        writers = {name: self._writer(name, number) for name in split.SPLITS}
        counts: Counter[str] = Counter()
        try:
            for batch in self.source.read(part):
                held_back = self._is_eval(batch)
                for name, mask in (("train", ~held_back), ("eval", held_back)):
                    for example in encode(batch.filter(pa.array(mask))):
                        writers[name].write(example)
                    counts[name] += int(mask.sum())
        finally:
            for writer in writers.values():
                writer.close()
        self._count(part, counts)

    def _count(self, part: Part, counts: Counter[str]) -> None:
        """Add what a part came to.

        Raises:
            DataFileError: the file has changed since it was inspected.
        """
        if counts.total() != part.rows:
            raise DataFileError(
                f"the file changed while it was read: {part.rows} rows, then {counts.total()}",
                where=str(part.path),
                right="run again when nothing writes to it",
            )
        with self._lock:
            self.counts += counts
            done = self.counts.total()
        total = sum(one.rows for one in self.source.parts)
        journal.append(_events(), "progress", id="ExampleGen", done=done, total=total, unit="rows")

    def _writer(self, name: str, number: int) -> tf.io.TFRecordWriter:
        file = f"data_tfrecord-{number:05d}-of-{len(self.source.parts):05d}.gz"
        options = tf.io.TFRecordOptions("GZIP", compression_level=GZIP_LEVEL)
        return tf.io.TFRecordWriter(str(self.folder / f"Split-{name}" / file), options)


def write(shards: Shards, pipeline: beam.Pipeline | None) -> None:
    """Write every part, by Beam where there is a pipeline.

    Raises:
        Exception: the first one that the work of a part raised.
    """
    numbers = list(range(len(shards.source.parts)))
    if pipeline is None:
        side_by_side(shards.write, numbers)
        return
    _RUNNING[str(shards.folder)] = shards
    try:
        with pipeline as started:
            _ = (
                started
                | "Parts" >> beam.Create(numbers)
                | "Write" >> beam.ParDo(_WriteParts(str(shards.folder)))
            )
    finally:
        del _RUNNING[str(shards.folder)]
    # Beam would tell of an error by its text alone, so it is kept and raised here.
    for error in shards.errors:
        raise error


_RUNNING: dict[str, Shards] = {}
"""What the pipelines of this process write, by folder: Beam copies its functions by pickling."""


class _WriteParts(beam.DoFn):
    """Writes the parts of a bundle side by side: Arrow, zlib and the encoder need no Python lock."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._waiting: list[int] = []

    def process(self, element: int) -> None:
        """Take a part's number into the bundle."""
        self._waiting.append(element)

    def finish_bundle(self) -> None:
        """Write the parts that the bundle holds."""
        numbers, self._waiting = self._waiting, []
        shards = _RUNNING[self._folder]
        try:
            side_by_side(shards.write, numbers)
        except Exception as error:  # ruff: ignore[blind-except] - `write` raises it
            shards.errors.append(error)


def side_by_side(work: Callable[[int], None], numbers: Iterable[int]) -> None:
    """Do the work of each number in threads; the first error ends what has not begun."""
    with ThreadPoolExecutor(readers.WORKERS) as pool:
        waiting = [pool.submit(work, number) for number in numbers]
        try:
            for one in waiting:
                one.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def encode(batch: pa.RecordBatch) -> list[bytes]:
    """Return each row as a serialized tf.Example.

    int64 columns become int64_list, float64 ones float_list (float32), texts bytes_list; a missing
    value is a feature with an empty list.
    """
    if not batch.num_rows:
        return []
    lists = [_as_list(column) for column in batch.columns]
    kept = [at for at, column in enumerate(batch.columns) if column.null_count < len(column)]
    if not kept:
        return [tf.train.Example().SerializeToString()] * batch.num_rows
    names = [batch.schema.names[at] for at in kept]
    rows = pa.RecordBatch.from_arrays([lists[at] for at in kept], names)
    return example_coder.RecordBatchToExamplesEncoder().encode(rows)


def _as_list(column: pa.Array) -> pa.Array:
    """Return a column as lists of at most one value, float64 as float32."""
    if pa.types.is_large_list(column.type):
        values = column.flatten()
        offsets = np.asarray(column.offsets) - column.offsets[0].as_py()
        return pa.LargeListArray.from_arrays(pa.array(offsets), _example_type(values))
    present = np.asarray(column.is_valid())
    offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), _example_type(column.drop_null()))


def _example_type(values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):
        return values.cast(pa.float32(), safe=False)
    return values.cast(pa.large_binary()) if pa.types.is_string(values.type) else values


def _describe(examples: Any, shards: Shards) -> None:
    """Set the artifact's properties, and tell how many rows were read and kept."""
    examples.split_names = artifact_utils.encode_split_names(list(split.SPLITS))
    examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
    examples.set_string_custom_property(
        example_gen_utils.FILE_FORMAT_PROPERTY_NAME, "tfrecords_gzip"
    )
    examples.set_int_custom_property("span", 0)
    source = shards.source
    told = {
        "examples": {name: shards.counts[name] for name in split.SPLITS},
        "rows_read": sum(source.rows.values()),
        "rows_refused": 0,
        "types": source.layout.kinds,
        "files": [
            {"path": str(path), "rows": rows, "sha256": file_digest(path)}
            for path, rows in source.rows.items()
        ],
    }
    (shards.folder / "rows.json").write_text(json.dumps(told))
    journal.append(_events(), "data", **told)


def _warn(messages: Iterable[str]) -> None:
    for message in messages:
        journal.append(_events(), "warning", id="ExampleGen", message=message)


def _events() -> str:
    return os.environ.get("HEADRACE_EVENTS", "")
