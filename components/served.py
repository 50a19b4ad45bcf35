"""A pushed model as Python calls it: what it says of its columns, and its answers to plain ones."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.errors import InputError

NO_TEXT = b"\xff"
"""Stands for a missing text in the model's ``columns`` signature."""
WHERE_MODELS_ARE = "name the folder of a pushed model, such as runs/flights/models/1"

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Served:
    """A model that was loaded.

    Attributes:
        folder: of the SavedModel.
        described: what `describe` returns.
        answer: from the model's columns, by key, to its outputs, by name; of ``classes``, which are
            the same in each row, one row.
    """

    folder: Path
    described: Mapping[str, Any]
    answer: Callable[[Columns], dict[str, np.ndarray]]

    @property
    def columns(self) -> list[dict[str, Any]]:
        """What each column is: ``column`` (its name in the data), ``key`` and ``kind``."""
        return list(self.described["columns"])

    @property
    def label(self) -> Mapping[str, Any]:
        """The label: ``column`` and ``task``."""
        return self.described["label"]


def newest(folder: Path) -> Path | None:
    """Return the version folder of a model, or the folder itself if it is one; None: no model."""
    versions = [one for one in folder.glob("*") if one.name.isascii() and one.name.isdigit()]
    for one in (folder, *sorted(versions, key=lambda one: -int(one.name))):
        if (one / "saved_model.pb").is_file():
            return one
    return None


def describe(folder: Path) -> dict[str, Any]:
    """Return what a model says of its columns.

    Raises:
        InputError: when it says nothing that this version reads.
    """
    path = folder / "assets" / "columns.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = "is no model of headrace: assets/columns.json cannot be read"
        raise InputError(what, where=str(folder), right=WHERE_MODELS_ARE) from error
    if not _is_known(found):
        raise InputError(
            "is a model of another version of headrace: assets/columns.json has another form",
            where=str(folder),
            right="train and push it again with this version",
        )
    return found


def _is_known(found: Any) -> bool:
    try:
        columns = all({"column", "key", "kind"} <= set(one) for one in found["columns"])
        return columns and {"column", "task"} <= set(found["label"])
    except (KeyError, TypeError):
        return False


def load(folder: Path, *, callers: int = 0) -> Served:
    """Load a model.

    Args:
        folder: of the SavedModel.
        callers: threads that will ask it at once, where this process has done nothing with
            TensorFlow yet: each operation then runs in one thread. A batch is too small to be
            shared out operation by operation: with two callers on two cores that answers up to
            half more rows a second. 0: as TensorFlow has it.

    Raises:
        InputError: when it is none, or cannot be loaded.
    """
    described = describe(folder)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Its libraries warn of the Python that they will need one day.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf

    if callers:
        # RuntimeError: TensorFlow has begun, and keeps the threads that it has.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(callers)
    try:
        model = tf.saved_model.load(str(folder))
        signature = model.signatures["columns"]
    except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        right = "push it again, or name another one"
        raise InputError(f"cannot be loaded: {said}", where=str(folder), right=right) from error

    def answer(columns: Columns) -> dict[str, np.ndarray]:
        # The model is held here: else it is collected, and its signature finds no weights.
        assert model is not None
        fed = {name: tf.constant(one) for name, one in columns.items()}
        found = signature(**fed)
        if "classes" in found:
            # The same in each row: texts are slow to come out of a tensor.
            found["classes"] = found["classes"][:1]
        return {name: one.numpy() for name, one in found.items()}

    return Served(folder, described, answer)


def missing(column: Mapping[str, Any], rows: int) -> np.ndarray:
    """Return a column that is missing in all rows, as the model takes it."""
    if column["kind"] == "image":
        return np.full(rows, b"", object)
    if column["kind"] == "string":
        return np.full(rows, NO_TEXT, object)
    return np.full(rows, np.nan)


def plain(column: Mapping[str, Any], values: pa.Array) -> np.ndarray:
    """Return a column's values as the model takes them; null is missing.

    Args:
        column: one of `Served.columns`.
        values: of numbers or texts, as the column's kind is; numbers may stand for texts.
    """
    if pa.types.is_null(values.type):
        return missing(column, len(values))
    if column["kind"] == "image":
        return pc.fill_null(values.cast(pa.large_binary()), b"").to_numpy(zero_copy_only=False)
    if column["kind"] == "string":
        texts = values if _is_bytes(values.type) else values.cast(pa.string()).cast(pa.binary())
        # Not `to_pylist`, which takes ten times as long, and holds Python's lock for it.
        return pc.fill_null(texts, NO_TEXT).to_numpy(zero_copy_only=False)
    return np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), np.nan))


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
