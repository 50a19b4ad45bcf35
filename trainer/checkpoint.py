"""Checkpoints: whole or absent, verified when read, damaged ones named and passed over.

A checkpoint is a folder ``step-00000200`` with ``state.npy`` (arrays, one npy file after the
other) and ``manifest.json`` (their names in that order, their SHA-256, and facts). It is written
under another name beside it, flushed to the disk, and renamed; so what has the name is whole,
unless the disk damaged it later, which the digest tells.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import CheckpointError

FORMAT = 1
NAME = re.compile(r"step-(\d{8,})")
UNFINISHED = ".saving-"
STATE = "state.npy"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        step: batches that the state has been through.
        arrays: weights, optimizer's state and counters, by name.
        facts: JSON values: position, history, what was best.
        path: its folder.
    """

    step: int
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    path: Path


def save(
    folder: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    facts: Mapping[str, Any],
    *,
    step: int,
    keep: int,
    best_step: int | None = None,
) -> Path:
    """Write one checkpoint, then remove those that are neither among the newest nor the best.

    Args:
        folder: of all checkpoints of one training.
        arrays: by name; restored bit for bit.
        facts: JSON values.
        step: names the checkpoint; one of the same step is replaced.
        keep: newest ones that stay.
        best_step: one that stays, however old.

    Raises:
        CheckpointError: when it cannot be written; those from before are as they were.
    """
    folder = Path(folder)
    target = place(folder, step, lambda aside: _write(aside, arrays, facts, step))
    _forget_old(folder, keep, {step, best_step})
    return target


def place(folder: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Make the checkpoint of a step out of what `fill` writes into the folder that it is given.

    Args:
        folder: of all checkpoints of one training.
        step: names the checkpoint; one of the same step is replaced.
        fill: writes its files.

    Raises:
        CheckpointError: when it cannot be written, or `fill` raises one; those from before are as
            they were.
    """
    target = folder / f"step-{step:08d}"
    aside = folder / f"{UNFINISHED}{step:08d}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        aside.mkdir()
        fill(aside)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
        _flush(folder)
    except OSError as error:
        failure: CheckpointError = _not_written(error, target)
        raise failure from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _not_written(error: OSError, target: Path) -> CheckpointError:
    is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return CheckpointError(
        "no space left to save the checkpoint" if is_full
        else f"the checkpoint cannot be saved: {error.strerror}",
        where=str(target),
        right="make room there and run again; earlier checkpoints are intact" if is_full
        else "make the folder writable and run again; earlier checkpoints are intact",
    )  # fmt: skip


def _write(
    folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], step: int
) -> None:
    with open(folder / STATE, "wb") as file:
        for value in arrays.values():
            # Not numpy.save, whose error on a full disk does not say that the disk is full.
            form = np.lib.format.header_data_from_array_1_0(np.asarray(value, order="C"))
            np.lib.format.write_array_header_1_0(file, form)
            file.write(np.ascontiguousarray(value).data)
        file.flush()
        os.fsync(file.fileno())
    manifest = {
        "format": FORMAT,
        "step": step,
        "sha256": _digest(folder / STATE),
        "slots": {name: _describe(value) for name, value in arrays.items()},
        "facts": dict(facts),
    }
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _flush(folder)


def _describe(value: np.ndarray) -> list[Any]:
    return [str(value.dtype), list(value.shape)]


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _clear(folder: Path) -> None:
    """Remove what a process that died while saving left behind."""
    for path in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def _forget_old(folder: Path, keep: int, kept: set[int | None]) -> None:
    for step, path in found(folder)[keep:]:
        if step not in kept:
            shutil.rmtree(path, ignore_errors=True)


def found(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of what has a checkpoint's name, newest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    named = [(NAME.fullmatch(path.name), path) for path in paths]
    return sorted(
        ((int(match[1]), path) for match, path in named if match), key=lambda one: -one[0]
    )


def load(path: str | os.PathLike[str], slots: Mapping[str, np.ndarray]) -> Checkpoint:
    """Read one checkpoint.

    Args:
        path: its folder.
        slots: arrays of the names, dtypes and shapes that it must hold.

    Raises:
        CheckpointError: when it is damaged, or lacks a slot, which is named.
    """
    path = Path(path)
    try:
        manifest = check(path)
        _check_slots(path, manifest["slots"], slots)
        with open(path / STATE, "rb") as file:
            stored = {name: np.load(file, allow_pickle=False) for name in manifest["slots"]}
        arrays = {name: stored[name] for name in slots}
        return Checkpoint(int(manifest["step"]), arrays, dict(manifest["facts"]), path)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise CheckpointError(
            f"the checkpoint is damaged ({type(error).__name__}: {error})", where=str(path)
        ) from error


def check(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose state is what the manifest says.

    Raises:
        CheckpointError: when it is damaged.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] == FORMAT and manifest["sha256"] == _digest(path / STATE):
            return manifest
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint is damaged ({type(error).__name__}: {error})", where=str(path)
        ) from error
    raise CheckpointError("the checkpoint is damaged", where=str(path / STATE))


def _check_slots(
    path: Path, stored: Mapping[str, list[Any]], slots: Mapping[str, np.ndarray]
) -> None:
    for name, value in slots.items():
        if name not in stored:
            raise CheckpointError(f'the checkpoint lacks the slot "{name}"', where=str(path))
        if stored[name] != _describe(value):
            raise CheckpointError(
                f'the checkpoint\'s slot "{name}" is of another model', where=str(path),
                holds=str(stored[name]), right=f"{_describe(value)} is needed",
            )  # fmt: skip


def restore(
    folder: str | os.PathLike[str],
    slots: Mapping[str, np.ndarray],
    *,
    warn: Callable[[str], None],
) -> Checkpoint | None:
    """Return the newest whole checkpoint of `folder`; None when there is none.

    Args:
        folder: of all checkpoints of one training.
        slots: as for `load`.
        warn: told of each checkpoint that is passed over: which, its step, and why.
    """
    for step, path in found(Path(folder)):
        try:
            return load(path, slots)
        except CheckpointError as error:
            warn(f"checkpoint of step {step} passed over: {error}")
    return None
