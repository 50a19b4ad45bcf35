"""Checkpoints written beside training: the copy is taken in its thread, the rest in another.

Saves are whole or absent as `trainer.checkpoint` makes them, one at a time and in order. What goes
wrong with one is raised in the training's thread, when it next asks or saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from trainer import checkpoint


class Saves:
    """The saves of one training, in one folder."""

    def __init__(self, folder: str, *, keep: int, tell: Callable[[int, Path, float], None]) -> None:
        """Begin with none.

        Args:
            folder: of all checkpoints of the training.
            keep: newest ones that stay.
            tell: called with the step, path and seconds of writing of each that is whole.
        """
        self._folder = folder
        self._keep = keep
        self._tell = tell
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        self._last: Future[None] | None = None

    def begin(
        self,
        arrays: Mapping[str, np.ndarray],
        facts: Mapping[str, Any],
        *,
        step: int,
        best_step: int | None,
    ) -> None:
        """Have a checkpoint written, once the one before is.

        Args:
            arrays: by name; nobody changes them any more.
            facts: JSON values; the same.
            step: names the checkpoint.
            best_step: one that stays, however old.

        Raises:
            CheckpointError: when the one before could not be written.
        """
        # Two copies of the state at once are more memory than one save ahead is worth.
        self.wait()
        self._last = self._thread.submit(self._save, arrays, facts, step, best_step)

    def _save(
        self,
        arrays: Mapping[str, np.ndarray],
        facts: Mapping[str, Any],
        step: int,
        best_step: int | None,
    ) -> None:
        started = time.monotonic()
        path = checkpoint.save(
            self._folder, arrays, facts, step=step, keep=self._keep, best_step=best_step
        )
        self._tell(step, path, time.monotonic() - started)

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
