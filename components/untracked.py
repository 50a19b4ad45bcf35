"""Markers of runs that are not wholly in MLflow yet, and locks on files.

A marker ``<pipeline>/untracked/<run>.json`` holds the paths of a run's journal and SPEC. It is made
before MLflow is asked for anything and removed when the run's end is stored, so whatever happens in
between (a server away, a process killed) leaves it for the next tracking process. Who works on a
marker holds a lock on it, which the kernel frees when that process dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_POLL_SECONDS = 0.05


@dataclass
class Marker:
    """One run's marker, locked by this process.

    Attributes:
        path: of the marker.
        journal: the run's journal.
        spec: the run's SPEC.json.
    """

    path: Path
    journal: Path
    spec: Path
    _file: IO[str]

    def remove(self) -> None:
        """The run is wholly stored: nothing is left to do."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def release(self) -> None:
        """Leave it to the next tracking process."""
        self._file.close()


def mark(journal: Path, spec: Path) -> Marker:
    """Make the marker of the run that keeps `journal` (``<pipeline>/logs/<run>/events.jsonl``)."""
    folder = journal.parent.parent.parent / "untracked"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{journal.parent.name}.json"
    # Locked before it has its name: nobody takes it for one that was left.
    unnamed = folder / f".{journal.parent.name}.{os.getpid()}"
    file = open(unnamed, "w", encoding="utf-8")  # ruff: ignore[open-file-with-context-handler] - locked while open
    fcntl.flock(file, fcntl.LOCK_EX)
    json.dump({"journal": str(journal), "spec": str(spec)}, file)
    file.flush()
    os.replace(unnamed, path)
    return Marker(path, journal, spec, file)


def left_behind(own: Marker) -> Iterator[Marker]:
    """Yield the other markers beside `own` that no process works on, oldest first, locked."""
    paths = [path for path in own.path.parent.glob("*.json") if path != own.path]
    for path in sorted(paths, key=_age):
        marker = _claim(path)
        if marker is not None:
            yield marker


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _claim(path: Path) -> Marker | None:
    try:
        file = open(path, encoding="utf-8")  # ruff: ignore[open-file-with-context-handler] - locked while open
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holds = json.load(file)
        marker = Marker(path, Path(holds["journal"]), Path(holds["spec"]), file)
    except (OSError, ValueError, KeyError, TypeError):
        file.close()
        return None
    if os.fstat(file.fileno()).st_nlink == 0 or not marker.journal.exists():
        # Another process stored it a moment ago, or a person removed the record.
        marker.remove()
        return None
    return marker


@contextmanager
def locked(path: Path, *, wait_seconds: float) -> Generator[None]:
    """Hold the lock file `path` for the block; several processes take turns.

    Raises:
        TimeoutError: when another process holds it for longer than `wait_seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    with open(path, "a", encoding="utf-8") as file:
        while not _is_locked(file):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path}: another process held it for {wait_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)
        yield


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
