"""ExampleGen: data files to tf.Examples in TFX's layout, split for training and evaluation.

Built on Beam: one element a part of a file (a byte range, a row group), never a row. The work of a
part is a plain function: read, clean, split, encode, and write its own gzip shard of each split.
The statistics of the rows are added up in the same pass, for StatisticsGen to take.
"""

import contextlib
import gzip
import json
import os
import pickle
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
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

from components import beam_runner, example_records, image_files, memory_use, readers, split
from components.cleaning import Cleaning, Rules, broken_images, cleaned_batches
from components.csv_records import Dialect
from components.fingerprint import file_digest
from components.readers import Part, Source
from components.statistics import AT_HAND, PartialStatistics, images_of, keep_statistics
from trainer import journal
from trainer.errors import DataFileError, TrainingError

ENCODED_ROWS = 4096
"""Rows encoded at once: their examples take several times the room of the columns."""
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
        examples: gets ``Split-train``, ``Split-eval``, ``rows.json`` and ``statistics``.
        settings: JSON text of files, label, null_values, csv and split.
        fingerprint: JSON text of what a cached result depends on.
        beam_pipeline: runs the parts.
    """
    generate(examples, json.loads(settings), beam_pipeline)


def generate(examples: Any, told: Mapping[str, Any], pipeline: beam.Pipeline | None) -> None:
    """Read, split and write what the settings name, and describe it.

    Args:
        examples: the artifact to fill.
        told: files, label, null_values, csv and split.
        pipeline: runs the parts; without one they run in this thread's pool.
    """
    source = readers.inspect(
        told["files"],
        told["null_values"],
        Dialect(**told.get("csv", {})),
        block=memory_use.block_bytes(told.get("memory_bytes", 0), readers.WORKERS),
    )
    _warn(source.layout.warnings)
    cleaning = Cleaning(Rules.of(told.get("clean")), source.layout, told["label"])
    cleaning.find_duplicates(batch for part in source.parts for batch in source.read(part))
    is_eval = split.by_settings(
        told["split"], source.layout, lambda: cleaned_batches(source, cleaning)
    )
    folder = Path(examples.uri)
    for name in split.SPLITS:
        (folder / f"Split-{name}").mkdir(parents=True, exist_ok=True)
    shards = Shards(source, is_eval, folder, cleaning)
    write(shards, pipeline)
    _describe(examples, shards)
    _warn(memory_use.beyond(told.get("memory_bytes", 0)))


@dataclass
class Counted:
    """What the work of some parts came to: rows by split, changes by rule, rows dropped by file."""

    counts: Counter[str]
    cleaned: Counter[str]
    dropped: Counter[Path]
    partials: dict[str, PartialStatistics]


class Shards:
    """What the work of a part needs, and what all parts came to.

    Attributes:
        source: the inspected files.
        groups: numbers of the parts that are written into one file a split.
        folder: the artifact's place.
        counts: rows written, by split.
        cleaned: values and rows that each rule of cleaning changed or dropped.
        dropped: rows of each file that cleaning dropped.
        errors: what went wrong.
    """

    def __init__(
        self,
        source: Source,
        is_eval: split.IsEval,
        folder: Path,
        cleaning: Cleaning | None = None,
    ) -> None:
        self.source = source
        self.groups = source.shards()
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.cleaned: Counter[str] = Counter()
        self.dropped: Counter[Path] = Counter()
        self._cleaning = cleaning or Cleaning(Rules(), source.layout, "")
        before = np.cumsum([0, *(one.rows for one in source.parts)]).tolist()
        self._begins = dict(zip(source.parts, before, strict=False))
        self.errors: list[Exception] = []
        self._is_eval = is_eval
        self._lock = threading.Lock()
        self._partials: dict[int, dict[str, PartialStatistics]] = {}

    def write(self, number: int) -> None:
        """Write the shards of the parts that go together, the rows of each split in their order."""
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context(self._open(name, number)) for name in split.SPLITS}
            for part in self.groups[number]:
                self._write_part(self.source.parts[part], files)
        total = sum(one.rows for one in self.source.parts)
        with self._lock:
            done = self.counts.total()
        journal.append(_events(), "progress", id="ExampleGen", done=done, total=total, unit="rows")

    def _write_part(self, part: Part, files: Mapping[str, gzip.GzipFile]) -> None:
        counts: Counter[str] = Counter()
        cleaned: Counter[str] = Counter()
        read = 0
        for raw in self.source.read(part):
            batch, changed = self._cleaning.values(raw)
            kept, dropped = self._cleaning.kept(batch, self._begins[part] + read)
            cleaned += changed + dropped
            self._refuse_broken(batch, kept, part, read)
            batch = batch if kept.all() else batch.filter(pa.array(kept))
            held_back = self._split(batch, part, read + np.flatnonzero(kept))
            read += raw.num_rows
            for name, mask in (("train", ~held_back), ("eval", held_back)):
                mine = batch.filter(pa.array(mask))
                self._add(name, mine)
                for some in _slices(mine):
                    records = example_records.frame(example_records.encode(some))
                    files[name].write(example_records.joined_bytes(records))
                counts[name] += mine.num_rows
        self._count(part, read, counts, cleaned)

    def _refuse_broken(
        self, batch: pa.RecordBatch, kept: np.ndarray, part: Part, read: int
    ) -> None:
        """Refuse the first row whose image is missing or cannot be decoded.

        Raises:
            DataFileError: naming its place.
        """
        if self._cleaning.rules.drop_broken_images:
            return
        for row, what in broken_images(batch, kept):
            (place,) = readers.places(part.path, [part.first + read + row], self.source.dialect)
            # A file of its own is the image, and needs no column.
            is_file = image_files.is_image(part.path)
            said = what.removeprefix(f"column {image_files.IMAGE} ") if is_file else what
            refused = image_files.refused(said, place)
            raise refused

    def _add(self, name: str, batch: pa.RecordBatch) -> None:
        """Add rows to this thread's statistics: they are at hand, and would be parsed again."""
        with self._lock:
            mine = self._partials.setdefault(threading.get_ident(), {})
        if name not in mine:
            mine[name] = PartialStatistics(images=self._images())
        if batch.num_rows:
            mine[name].add(example_records.as_lists(batch))

    def _images(self) -> frozenset[str]:
        return images_of(self.source.layout.kinds)

    def statistics(self) -> dict[str, PartialStatistics]:
        """Return the statistics of each split, once all parts are written."""
        whole = {name: PartialStatistics(images=self._images()) for name in split.SPLITS}
        for of_thread in self._partials.values():
            for name, one in of_thread.items():
                whole[name].merge(one)
        self._partials.clear()
        return whole

    def _split(self, batch: pa.RecordBatch, part: Part, rows: np.ndarray) -> np.ndarray:
        """Return which rows are held back.

        Raises:
            DataFileError: naming the place of a row that does not say so.
        """
        try:
            return self._is_eval(batch)
        except split.RowRefused as error:
            (place,) = readers.places(
                part.path, [part.first + int(rows[error.row])], self.source.dialect
            )
            raise error.at(place) from error

    def _count(self, part: Part, read: int, counts: Counter[str], cleaned: Counter[str]) -> None:
        """Add what a part came to.

        Raises:
            DataFileError: the file has changed since it was inspected.
        """
        if read != part.rows:
            raise DataFileError(
                f"the file changed while it was read: {part.rows:,} rows of it were "
                f"{read:,} a moment later",
                where=str(part.path),
                right="run again when nothing writes to it any more",
            )
        with self._lock:
            self.counts += counts
            self.cleaned += cleaned
            self.dropped[part.path] += read - counts.total()

    @contextlib.contextmanager
    def _open(self, name: str, number: int) -> Generator[gzip.GzipFile, None, None]:
        """Open a shard that gets its name only when it is whole, whoever else writes it too.

        Yields:
            the file.
        """
        file = f"data_tfrecord-{number:05d}-of-{len(self.groups):05d}.gz"
        folder = self.folder / f"Split-{name}"
        part = folder / f".{file}.{uuid.uuid4().hex}"
        try:
            with gzip.GzipFile(part, "wb", compresslevel=GZIP_LEVEL, mtime=0) as shard:
                yield shard
            os.replace(part, folder / file)
        finally:
            part.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        """Give what a worker elsewhere needs: no lock, and nothing that was counted here."""
        return {**vars(self), "_lock": None, "_partials": {}, "errors": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin to count anew."""
        vars(self).update(state)
        self._lock = threading.Lock()

    def take(self) -> Counted:
        """Return what was written since the last time, and forget it."""
        taken = Counted(self.counts, self.cleaned, self.dropped, self.statistics())
        self.counts, self.cleaned, self.dropped = Counter(), Counter(), Counter()
        return taken

    def add(self, counted: Counted) -> None:
        """Add what was written elsewhere."""
        self.counts += counted.counts
        self.cleaned += counted.cleaned
        self.dropped += counted.dropped
        mine = self._partials.setdefault(
            0, {name: PartialStatistics(images=self._images()) for name in split.SPLITS}
        )
        for name, one in counted.partials.items():
            mine[name].merge(one)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, ENCODED_ROWS):
        yield batch.slice(start, ENCODED_ROWS)


def write(shards: Shards, pipeline: beam.Pipeline | None) -> None:
    """Write every part, by Beam where there is a pipeline.

    Raises:
        Exception: the first one that the work of a part raised.
    """
    numbers = list(range(len(shards.groups)))
    if pipeline is None:
        side_by_side(shards.write, numbers)
        return
    if not beam_runner.is_local(pipeline):
        _write_elsewhere(shards, numbers, pipeline)
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


def _write_elsewhere(shards: Shards, numbers: list[int], pipeline: beam.Pipeline) -> None:
    """Write every part on the workers of a cluster, and bring back what they counted.

    What a part came to is kept beside the examples, whole, under the part's own name: a part that
    is written twice, because a worker was lost, is counted once.

    Raises:
        TrainingError: the job failed, or a part was not written.
    """
    scratch = shards.folder / ".counted"
    scratch.mkdir(exist_ok=True)
    names = [str(path) for path in shards.source.names]
    with beam_runner.explained(), pipeline as started:
        _ = (
            started
            | "Parts" >> beam.Create(numbers)
            | "Apart" >> beam.Reshuffle()
            | "Write" >> beam.ParDo(WriteElsewhere(shards, names))
        )
    for number in numbers:
        path = scratch / str(number)
        if not path.is_file():
            raise TrainingError(
                f"the job ended, and part {number} of {len(numbers)} was not written",
                where=str(shards.folder),
                right="look into the log of the cluster, and run again",
            )
        shards.add(pickle.loads(path.read_bytes()))
    shutil.rmtree(scratch)


class WriteElsewhere(beam.DoFn):
    """Writes parts in a worker's process, wherever that runs."""

    def __init__(self, shards: Shards, files: list[str]) -> None:
        super().__init__()
        self._shards, self._files = shards, files

    def setup(self) -> None:
        """Refuse what this worker cannot reach."""
        beam_runner.require_reachable([*self._files, str(self._shards.folder)])

    def process(self, element: int) -> None:
        """Write one part, and what it came to."""
        self._shards.write(element)
        place = self._shards.folder / ".counted"
        part = place / f".{element}.{uuid.uuid4().hex}"
        part.write_bytes(pickle.dumps(self._shards.take()))
        os.replace(part, place / str(element))


_RUNNING: dict[str, Shards] = {}
"""What the pipelines of this process write, by folder: Beam copies its functions by pickling."""


class _WriteParts(beam.DoFn):
    """Writes the parts of a bundle side by side: Arrow, NumPy and zlib need no Python lock."""

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


def _describe(examples: Any, shards: Shards) -> None:
    """Set the artifact's properties, and tell how many rows were read and kept."""
    examples.split_names = artifact_utils.encode_split_names(list(split.SPLITS))
    examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
    examples.set_string_custom_property(
        example_gen_utils.FILE_FORMAT_PROPERTY_NAME, "tfrecords_gzip"
    )
    examples.set_int_custom_property("span", 0)
    told = facts(shards)
    keep_statistics(shards.statistics(), str(shards.folder / AT_HAND))
    (shards.folder / "rows.json").write_text(json.dumps(told))
    journal.append(_events(), "data", **told)


def facts(shards: Shards) -> dict[str, Any]:
    """Return what ``rows.json`` holds of written examples: rows, types, files.

    Of each file, rows that were read are those refused, dropped and kept; one that is refused ends
    the run, so none is here.
    """
    source = shards.source
    return {
        "examples": {name: shards.counts[name] for name in split.SPLITS},
        "rows_read": sum(source.rows.values()),
        "rows_refused": 0,
        "rows_dropped": shards.dropped.total(),
        "cleaned": dict(sorted(shards.cleaned.items())),
        "types": source.layout.kinds,
        "files": [
            {
                "path": str(path),
                "rows": rows,
                "rows_refused": 0,
                "rows_dropped": shards.dropped[path],
                "rows_kept": rows - shards.dropped[path],
                "sha256": file_digest(path),
                "lacks": [name for name in source.layout.kinds if name not in source.names[path]],
            }
            for path, rows in source.rows.items()
        ],
    }


def _warn(messages: Iterable[str]) -> None:
    for message in messages:
        journal.append(_events(), "warning", id="ExampleGen", message=message)


def _events() -> str:
    return os.environ.get("HEADRACE_EVENTS", "")
