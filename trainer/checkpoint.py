"""Checkpoints: whole or absent, verified when read, damaged ones named and passed over.

A checkpoint is a folder ``step-00000200`` as `trainer.layout` describes it. It is written under
another name beside it, flushed to the disk, and renamed; so what has the name is whole, unless the
disk damaged it later, which the digests tell. Several workers write theirs into the same folder
aside; the first of them waits for what the others tell of their files, and renames it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer import layout
from trainer.errors import CheckpointError
from trainer.layout import Part

NAME = re.compile(r"step-(\d{8,})")
UNFINISHED = ".saving-"
NOTE = "told-{}.json"
"""What a worker tells of the file that it wrote, for the manifest."""
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        step: batches that the state has been through.
        arrays: weights, optimizer's state and counters, by name; read when they are asked for.
        facts: JSON values: position, history, what was best.
        path: its folder.
    """

    step: int
    arrays: layout.Stored
    facts: dict[str, Any]
    path: Path


@dataclass(frozen=True)
class Writers:
    """Who writes one checkpoint together.

    Attributes:
        count: of them.
        rank: which of them this process is, from 0; the first one makes it a checkpoint.
        token: the same number for all, another one whenever they are started.
    """

    count: int = 1
    rank: int = 0
    token: int = field(default_factory=os.getpid)

    def aside(self, folder: Path, step: int) -> Path:
        """Return where they write before it has its name."""
        return folder / f"{UNFINISHED}{step:08d}-{self.token}"


def save(
    folder: str | os.PathLike[str],
    parts: Mapping[str, np.ndarray | Part],
    facts: Mapping[str, Any],
    *,
    step: int,
    keep: int,
    best_step: int | None = None,
    writers: Writers | None = None,
    until: Callable[[], float] = lambda: math.inf,
) -> Path:
    """Write one checkpoint, then remove those that are neither among the newest nor the best.

    Args:
        folder: of all checkpoints of one training.
        parts: by name; arrays, or this worker's parts of them; restored bit for bit.
        facts: JSON values.
        step: names the checkpoint; one of the same step is replaced.
        keep: newest ones that stay.
        best_step: one that stays, however old.
        writers: who writes parts; this process alone when not given.
        until: when the others must be done, in seconds of the monotonic clock; asked again and
            again.

    Raises:
        CheckpointError: when it cannot be written; those from before are as they were.
    """
    folder, writers = Path(folder), writers or Writers()

    def fill(aside: Path) -> None:
        own = _write(aside, parts, writers)
        others = [_told_by(aside, rank, until) for rank in range(1, writers.count)]
        manifest = {
            "format": layout.FORMAT,
            "step": step,
            **layout.merged([own, *others]),
            "facts": dict(facts),
        }
        layout.write_json(aside / layout.MANIFEST, manifest)
        _flush(aside)

    target = place(folder, step, fill, writers=writers)
    _forget_old(folder, keep, {step, best_step})
    return target


def contribute(
    folder: str | os.PathLike[str], parts: Mapping[str, Part], *, step: int, writers: Writers
) -> None:
    """Write this worker's parts of a checkpoint, and tell the first worker of them.

    Args:
        folder: of all checkpoints of one training, the same as for the others.
        parts: by name.
        step: names the checkpoint.
        writers: who writes it; not for the first of them.

    Raises:
        CheckpointError: when they cannot be written.
    """
    folder = Path(folder)
    aside = writers.aside(folder, step)
    try:
        aside.mkdir(parents=True, exist_ok=True)
        own = _write(aside, parts, writers)
        note = aside / NOTE.format(writers.rank)
        layout.write_json(note.with_suffix(".part"), own)
        note.with_suffix(".part").rename(note)
    except OSError as error:
        failure: CheckpointError = _not_written(error, folder / f"step-{step:08d}")
        raise failure from error


def _write(
    folder: Path, parts: Mapping[str, np.ndarray | Part], writers: Writers
) -> dict[str, Any]:
    own = {name: one if isinstance(one, Part) else Part.all_of(one) for name, one in parts.items()}
    return layout.write(folder, layout.file_of(writers.rank, writers.count), own)


def _told_by(aside: Path, rank: int, until: Callable[[], float]) -> dict[str, Any]:
    """Wait for what a worker tells of its file; return it, its note removed.

    Raises:
        CheckpointError: when it does not come.
    """
    note = aside / NOTE.format(rank)
    # Not `exists`, whose answer a network file system may take from a minute ago.
    while note.name not in os.listdir(aside):
        if time.monotonic() > until():
            raise CheckpointError(
                f"worker {rank} did not write its part of the checkpoint", where=str(aside),
                right="its log says more; earlier checkpoints are intact",
            )  # fmt: skip
        time.sleep(POLL_SECONDS)
    told = json.loads(note.read_text(encoding="utf-8"))
    note.unlink()
    return told


def place(
    folder: Path, step: int, fill: Callable[[Path], None], *, writers: Writers | None = None
) -> Path:
    """Make the checkpoint of a step out of what `fill` writes into the folder that it is given.

    Args:
        folder: of all checkpoints of one training.
        step: names the checkpoint; one of the same step is replaced.
        fill: writes its files.
        writers: who writes there; this process alone when not given.

    Raises:
        CheckpointError: when it cannot be written, or `fill` raises one; those from before are as
            they were.
    """
    target = folder / f"step-{step:08d}"
    writers = writers or Writers()
    aside = writers.aside(folder, step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder, writers)
        aside.mkdir(exist_ok=writers.count > 1)
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


def _describe(value: np.ndarray) -> list[Any]:
    return [str(value.dtype), list(value.shape)]


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _clear(folder: Path, writers: Writers) -> None:
    """Remove what a process that died while saving left behind."""
    for path in folder.glob(f"{UNFINISHED}*"):
        # The others may be further than this one.
        if writers.count == 1 or path.name.rpartition("-")[2] != str(writers.token):
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
    """Open one checkpoint, whose files are as they were written.

    Args:
        path: its folder.
        slots: arrays of the names, dtypes and shapes that it must hold.

    Raises:
        CheckpointError: when it is damaged, or lacks a slot, which is named.
    """
    path = Path(path)
    manifest = layout.check(path)
    try:
        _check_slots(path, manifest, slots)
        arrays = layout.Stored(path, manifest, list(slots))
        return Checkpoint(int(manifest["step"]), arrays, dict(manifest["facts"]), path)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint is damaged ({type(error).__name__}: {error})", where=str(path)
        ) from error


def _check_slots(path: Path, manifest: Mapping[str, Any], slots: Mapping[str, np.ndarray]) -> None:
    stored, parts = manifest["slots"], manifest["parts"]
    for name, value in slots.items():
        if name not in stored:
            raise CheckpointError(f'the checkpoint lacks the slot "{name}"', where=str(path))
        if stored[name] != _describe(value):
            raise CheckpointError(
                f'the checkpoint\'s slot "{name}" is of another model', where=str(path),
                holds=str(stored[name]), right=f"{_describe(value)} is needed",
            )  # fmt: skip
        if sum(last - first for _, _, first, last in parts[name]) != value.size:
            raise CheckpointError(
                f'the checkpoint lacks a part of the slot "{name}"', where=str(path)
            )


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
