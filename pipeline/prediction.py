"""`predict`: an exported model over files, one line of answers a row, in the files' order.

Rows are read, answered and written batch by batch, so memory does not grow with the files.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import queue
import tempfile
import threading
import tomllib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from components import column_types, prediction_rows, registry, served, shares
from components.prediction_rows import Rows
from trainer.errors import InputError

ERROR = "error"
SUFFIXES = (".csv", ".parquet")
AT_ONCE = len(os.sched_getaffinity(0))
"""Threads that ask the model, each for some rows of its own."""
ROWS_AT_ONCE = 1024
"""That a model is asked about: more lie outside of the processor's cache, and take more time."""
AHEAD = 2
"""Batches that are read while one is answered."""
MOST_NAMED = 10
LARGE_BYTES = 64 << 20
M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


def predict(
    model: str, data: str, out: Path, *, keep_errors: bool, registry_uri: str = ""
) -> list[str]:
    """Answer every row of the files and write the answers, whole or not at all.

    Args:
        model: folder of a SavedModel, or of its versions, of which the newest is taken; or
            ``models:/name/version``.
        data: a file, a folder or a glob.
        out: a ``.csv`` or ``.parquet`` file that is made.
        keep_errors: whether a row that cannot be read gets a line with ``error`` filled in,
            rather than ending the command.
        registry_uri: where MLflow's registry is.

    Returns: what a person is told, line by line.

    Raises:
        InputError: when the model or the files cannot be read, or `out` cannot be written.
    """
    if out.suffix not in SUFFIXES:
        right = "name a file that ends in .csv or .parquet"
        raise InputError("no kind of file that is written", where=str(out), right=right)
    with _model_folder(model, registry_uri) as folder:
        described = _described(folder)
        settings = _settings(folder)
        nulls = settings.get("data.null_values", list(column_types.DEFAULT_NULLS))
        _few_arenas()
        rows, answer = _looked_at(data, described, nulls, folder)
        # What was held while the types of the columns were looked at.
        pa.default_memory_pool().release_unused()
        said = _missing(described, rows)
        moved = _drift(folder)
        written = _write(out, _answers(answer, rows, moved, keep_errors=keep_errors))
        said += _drifted(moved, settings)
    return [*said, f"{written:,} rows", str(out)]


def _looked_at(
    data: str, described: Mapping[str, Any], nulls: list[str], folder: Path
) -> tuple[Rows, Callable[[served.Columns], dict[str, np.ndarray]]]:
    """Return the rows and the loaded model: of large files both at once, as each takes a while.

    Of small ones what is wrong with them is told before TensorFlow is imported.

    Raises:
        InputError: when the rows or the model cannot be read.
    """
    files = prediction_rows.find(data)
    if files.size < LARGE_BYTES:
        rows = prediction_rows.look(files, described["columns"], nulls)
        _missing(described, rows)
        return rows, served.load(folder, callers=AT_ONCE).answer
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(served.load, folder, callers=AT_ONCE)
        rows = prediction_rows.look(files, described["columns"], nulls)
        return rows, loading.result().answer


def _few_arenas() -> None:
    """Have the C library share its memory out between few pools, where it can be told.

    Each thread would else have its own, and keep what it once needed: 100 MB more in all.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


@contextmanager
def _model_folder(model: str, registry_uri: str) -> Generator[Path, None, None]:
    """Give the folder that holds the SavedModel, of a registered one for a while.

    Yields:
        The folder.

    Raises:
        InputError: when there is none.
    """
    if model.startswith(registry.SCHEME):
        with tempfile.TemporaryDirectory(prefix="headrace-model-") as aside:
            yield registry.fetch(model, registry_uri, Path(aside))
        return
    found = served.newest(Path(model))
    if found is None:
        raise InputError("holds no model", where=model, right=served.WHERE_MODELS_ARE)
    yield found


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


def _settings(folder: Path) -> dict[str, Any]:
    """Return the settings beside the model, by dotted key; none beside one of another tool."""
    try:
        tables = tomllib.loads((folder / "pipeline.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}

    def leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, Mapping):
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield prefix + name, value

    return dict(leaves(tables, ""))


def _missing(described: Mapping[str, Any], rows: Rows) -> list[str]:
    """Return which columns of the model the files do not have; others are not looked at.

    Raises:
        InputError: when they have none of them.
    """
    names = [one["column"] for one in described["columns"]]
    missing = [name for name in names if name not in rows.names]
    if len(missing) == len(names):
        raise InputError(
            "the files have no column that the model reads",
            where="DATA",
            holds=", ".join(sorted(rows.names)[:20]),
            right=f"the model reads {', '.join(names[:20])}",
        )
    return [f"warning    the files have no column {name}: missing in all rows" for name in missing]


def _drift(folder: Path) -> shares.Drift | None:
    path = folder / "statistics" / shares.FILE
    return shares.Drift(path) if path.is_file() else None


def _drifted(moved: shares.Drift | None, settings: Mapping[str, Any]) -> list[str]:
    """Return one warning that names the columns that moved, the farthest first."""
    if moved is None:
        return ["drift      not checked: no statistics stand beside the model"]
    keys = ("validation.drift.threshold", "validation.skew.threshold")
    threshold = next((settings[key] for key in keys if key in settings), shares.THRESHOLD)
    found = moved.moved(float(threshold))
    if not found:
        return []
    named = [
        f"{one.column} ({one.what or f'{one.measure} {one.value:.2g}'})"
        for one in found[:MOST_NAMED]
    ]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [
        f"warning    these rows are unlike those that the model learned from (threshold "
        f"{threshold:g}): {', '.join(named)}{more}"
    ]


def _answers(
    answer: Any, rows: Rows, moved: shares.Drift | None, *, keep_errors: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the answers, in order; some rows are answered by each core, and the next ones read.

    A core that shares out small operations waits more than it works: each answers rows of its own.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting: deque[tuple[list[Future[dict[str, np.ndarray]]], list[str]]] = deque()
        for read, columns, errors in _ahead(rows.read(keep_errors)):
            parts = [
                pool.submit(answer, {name: one[start : start + ROWS_AT_ONCE]
                                     for name, one in columns.items()})
                for start in range(0, read.num_rows, ROWS_AT_ONCE)
            ]  # fmt: skip
            if moved is not None:
                moved.add(read)
            waiting.append((parts, errors))
            if len(waiting) > 1:
                yield _joined(*waiting.popleft())
        while waiting:
            yield _joined(*waiting.popleft())


def _joined(parts: list[Future[dict[str, np.ndarray]]], errors: list[str]) -> pa.RecordBatch:
    """Return the answers of a batch, asked for in parts."""
    found = [one.result() for one in parts]
    whole = {
        name: one if name == "classes" else np.concatenate([part[name] for part in found])
        for name, one in found[0].items()
    }
    return _answered(whole, errors)


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield what another thread reads, a few items ahead; its error is raised here."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(AHEAD)
    is_over = threading.Event()

    def put(entry: tuple[str, Any]) -> None:
        while not is_over.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for item in items:
                if is_over.is_set():
                    return
                put(("item", item))
            put(("end", None))
        except BaseException as error:  # ruff: ignore[blind-except] - raised where it is waited for
            put(("error", error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while (entry := ready.get())[0] == "item":
            yield entry[1]
        if entry[0] == "error":
            raise entry[1]
    finally:
        is_over.set()
        thread.join()


def _answered(found: Mapping[str, np.ndarray], errors: list[str]) -> pa.RecordBatch:
    """Return the answers of a batch; a row with an error has none."""
    wrong = pa.array([bool(one) for one in errors]) if any(errors) else None

    def told(values: np.ndarray) -> pa.Array:
        is_text = values.dtype == object
        array = pa.array(values, pa.binary()).cast(pa.string()) if is_text else pa.array(values)
        return array if wrong is None else pc.if_else(wrong, pa.scalar(None, array.type), array)

    made = {"prediction": told(found["prediction"])}
    if "probabilities" in found:
        for at, name in enumerate(found["classes"][0]):
            made[f"probability:{name.decode()}"] = told(found["probabilities"][:, at])
    missing = pa.nulls(len(errors), pa.string())
    made[ERROR] = missing if wrong is None else pa.array([one or None for one in errors])
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def _write(out: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the batches beside `out` and rename; return how many rows they have.

    Raises:
        InputError: when it cannot be written, or there is no row.
    """
    incoming = out.with_name(f".{out.name}.{os.getpid()}.incoming")
    rows = 0
    try:
        first = next(batches, None)
        if first is None:
            raise InputError("holds no row", where="DATA", right="name files with rows")
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
