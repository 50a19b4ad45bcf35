"""Checkpoints written beside training: the copy is taken in its thread, the rest in another.

Saves are whole or absent as `trainer.checkpoint` makes them, one at a time and in order. What goes
wrong with one is raised in the training's thread, when it next asks or saves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from trainer import checkpoint
from trainer.checkpoint import Writers
from trainer.layout import Part

OTHERS_SECONDS = 600.0
"""How long the first worker waits for the parts of the others."""
HURRY_SECONDS = 5.0
"""The same when one of them may be gone."""


class Saves:
    """The saves of one training, in one folder."""

    def __init__(self, folder: str, *, keep: int, tell: Callable[[int, Path, float], None]) -> None:
        """Begin with none.

        Args:
            folder: of all checkpoints of the training.
            keep: newest ones that stay.
            tell: called with the step, path and seconds of writing of each that is whole, by the
                first of its writers.
        """
        self._folder = folder
        self._keep = keep
        self._tell = tell
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        self._last: Future[None] | None = None
        self._hurries_until = math.inf

    def begin(
        self,
        parts: Mapping[str, np.ndarray | Part],
        facts: Mapping[str, Any],
        *,
        step: int,
        best_step: int | None,
        writers: Writers | None = None,
    ) -> None:
        """Have a checkpoint written, or this worker's parts of it, once the one before is.

        Args:
            parts: by name; nobody changes them any more.
            facts: JSON values; the same.
            step: names the checkpoint.
            best_step: one that stays, however old.
            writers: who writes it together; this process alone when not given.

        Raises:
            CheckpointError: when the one before could not be written.
        """
        # Two copies of the state at once are more memory than one save ahead is worth.
        self.wait()
        self._last = self._thread.submit(
            self._save, parts, facts, step, best_step, writers or Writers()
        )

    def _save(
        self,
        parts: Mapping[str, Any],
        facts: Mapping[str, Any],
        step: int,
        best_step: int | None,
        writers: Writers,
    ) -> None:
        started = time.monotonic()
        if writers.rank:
            checkpoint.contribute(self._folder, parts, step=step, writers=writers)
            return
        path = checkpoint.save(
            self._folder, parts, facts, step=step, keep=self._keep, best_step=best_step,
            writers=writers, until=lambda: min(started + OTHERS_SECONDS, self._hurries_until),
        )  # fmt: skip
        self._tell(step, path, time.monotonic() - started)

    def hurry(self) -> None:
        """Wait no longer than `HURRY_SECONDS` from now on for parts of other workers."""
        self._hurries_until = time.monotonic() + HURRY_SECONDS

    def check(self) -> None:
        """Raise what went wrong with a save that has ended.

        Raises:
            CheckpointError: when it could not be written.
        """
        if self._last is not None and self._last.done():
            self.wait()

    def wait(self) -> None:
        """Return when what was begun is whole.

        Raises:
            CheckpointError: when it could not be written.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()
