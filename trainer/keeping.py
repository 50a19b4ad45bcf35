"""The checkpoints of one training, here and in remote storage, found again by all workers alike.

Of a state that is cut up each worker writes and reads its own parts, where all see one folder;
else worker 0 writes the whole. Where each machine has a disk of its own, the first worker of each
gets from remote storage what its disk lacks. Nobody begins a step before all stand at the same one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import checkpoint, identity, layout
from trainer.checkpoint import Checkpoint, Writers
from trainer.errors import CheckpointError
from trainer.layout import Part
from trainer.remote import Remote
from trainer.saving import Saves
from trainer.settings import Job
from trainer.strategy import Replicas
from trainer.uploading import Uploads

Template = Mapping[str, np.ndarray]
SEEN = ".seen-{}"
"""A file by which workers find out whether they see one folder."""


class Keeping:
    """What is kept of one training.

    Attributes:
        uploads: to remote storage; None: there is none, or another worker makes them.
        writers: who writes the parts of a checkpoint; one alone where not all see its folder.
    """

    def __init__(
        self,
        job: Job,
        replicas: Replicas,
        *,
        tell: Callable[..., None],
        warn: Callable[[str], None],
    ) -> None:
        self._folder = Path(job.checkpoints)
        self._workers = replicas.workers
        self._control = replicas.control
        self._tell, self._warn = tell, warn
        self._template: Template = {}
        self._saves = Saves(job.checkpoints, keep=job.checkpoint.keep, tell=self._is_saved)
        self._remote: Remote | None = None
        self.uploads: Uploads | None = None
        self.writers = Writers()
        self._best_steps: dict[int, int] = {}
        if not job.checkpoint.remote:
            return
        self._remote = Remote(job.checkpoint, key=identity.digest(identity.of_job(job)))
        if self._leads:
            self.uploads = Uploads(
                self._remote, self._folder, keep=job.checkpoint.keep,
                tell=lambda **facts: tell("upload", **facts), warn=warn,
            )  # fmt: skip

    @property
    def _leads(self) -> bool:
        return self._workers.rank == 0

    # Saved

    def begin(
        self,
        parts: Mapping[str, np.ndarray | Part],
        facts: Mapping[str, Any],
        *,
        step: int,
        best: int,
        writers: Writers | None = None,
    ) -> None:
        """Have a checkpoint written, and copied once it is whole; see `Saves.begin`.

        Raises:
            CheckpointError: when the one before could not be written.
        """
        self._best_steps[step] = best
        self._saves.begin(parts, facts, step=step, best_step=best or None, writers=writers)

    def _is_saved(self, step: int, path: Path, seconds: float) -> None:
        self._tell("checkpoint", step=step, path=str(path), seconds=seconds)
        best = self._best_steps.pop(step)
        if self.uploads:
            self.uploads.offer(step, best)

    def check(self) -> None:
        """Raise what went wrong with a save that has ended.

        Raises:
            CheckpointError: when it could not be written.
        """
        self._saves.check()

    def wait(self, *, hurries: bool = False) -> None:
        """Return when what was begun is whole here.

        Args:
            hurries: wait next to no time for the parts of other workers, which may be gone.

        Raises:
            CheckpointError: when it could not be written.
        """
        if hurries:
            self._saves.hurry()
        self._saves.wait()

    def finish(self, *, upload_seconds: float) -> None:
        """Return when what was begun is whole here, and there, unless that takes too long.

        All workers wait for the first one: none ends, or reads, before a checkpoint has its name.

        Args:
            upload_seconds: most that is waited for remote storage.

        Raises:
            CheckpointError: when it could not be written here.
        """
        self.wait()
        if self.uploads:
            self.uploads.finish(upload_seconds)
        if self._workers.count > 1:
            self._control.agree(False)

    # Found again

    def restore(self, template: Template) -> Checkpoint | None:
        """Return the newest whole checkpoint, the same on every worker; None when there is none.

        Args:
            template: arrays of the names, dtypes and shapes that it must hold.

        Raises:
            CheckpointError: when a worker cannot see the one that worker 0 goes on from, or worker
                0 cannot write to the folder.
        """
        self._template = template
        self.writers = self._find_writers()
        mine = self._newest() if self._leads else None
        if self._workers.count > 1:
            step = int(self._control.largest(tf.constant(mine.step if mine else -1, tf.int64)))
            mine = self._of_all(step, mine) if step >= 0 else None
        if mine and self.uploads:
            # It may be one that the process before this one did not get there.
            self.uploads.offer(mine.step, _best_step(mine))
        return mine

    def _find_writers(self) -> Writers:
        """Return who writes: all workers where they see one folder, else each for itself.

        Raises:
            CheckpointError: when the folder cannot be written to.
        """
        workers = self._workers
        if workers.count == 1:
            return Writers()
        mine = 0 if workers.rank else os.getpid()
        token = int(self._control.largest(tf.constant(mine, tf.int64)))
        seen = self._folder / SEEN.format(token)
        try:
            if self._leads:
                self._folder.mkdir(parents=True, exist_ok=True)
                seen.touch()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be saved: {error.strerror}", where=str(self._folder),
                right="make the folder writable and run again",
            ) from error  # fmt: skip
        self._control.agree(False)  # now it is there
        is_apart = self._control.agree(not seen.exists())
        if self._leads:
            seen.unlink(missing_ok=True)
        return Writers() if is_apart else Writers(workers.count, workers.rank, token)

    def _newest(self) -> Checkpoint | None:
        here = [step for step, _ in checkpoint.found(self._folder)]
        there = self._steps_there()
        for step in sorted({*here, *there}, reverse=True):
            found = self._load(step) if step in here else None
            if found is None and step in there:
                found = self._fetch(step)
            if found is not None:
                return found
        return None

    def _steps_there(self) -> list[int]:
        try:
            return self._remote.steps() if self._remote else []
        except CheckpointError as error:
            self._warn(f"nobody knows which checkpoints are in {self._remote.address}: {error}")
            return []

    def _load(self, step: int) -> Checkpoint | None:
        try:
            return checkpoint.load(self._folder / f"step-{step:08d}", self._template)
        except CheckpointError as error:
            self._warn(f"checkpoint of step {step} passed over: {error}")
            return None

    def _fetch(self, step: int) -> Checkpoint | None:
        """Return a checkpoint from there, copied here with the best one that it speaks of."""
        try:
            best = self._remote.best_step(step)
            if best and best != step and not (self._folder / f"step-{best:08d}").exists():
                self._copy(best)
            self._copy(step)
        except CheckpointError as error:
            self._warn(f"the copy of step {step} passed over: {error}")
            return None
        return self._load(step)

    def _copy(self, step: int) -> None:
        def fill(aside: Path) -> None:
            self._remote.get(step, aside)
            try:
                layout.check(aside)
            except CheckpointError as error:
                raise CheckpointError(error.what, where=self._remote.of(step)) from error

        path = checkpoint.place(self._folder, step, fill)
        self._tell("fetched", step=step, path=str(path), source=self._remote.of(step))

    def _of_all(self, step: int, mine: Checkpoint | None) -> Checkpoint:
        """Return the checkpoint of a step once every worker has it.

        Raises:
            CheckpointError: naming the first worker that has not.
        """
        path = self._folder / f"step-{step:08d}"
        is_first_here = self._workers.place_on_host == 0
        if mine is None and is_first_here:
            mine = self._load(step) if path.exists() else None
            if mine is None and self._remote:
                mine = self._fetch(step)
        self._control.agree(False)  # the others of this machine read what the first one got
        if mine is None and not is_first_here:
            mine = self._load(step)
        has = self._control.joined(tf.constant([int(mine is not None)]))
        lacking = [rank for rank, one in enumerate(has.numpy()) if not one]
        if lacking or mine is None:
            raise CheckpointError(
                f"worker {lacking[0]} cannot see the checkpoint of step {step} that the others go "
                "on from", where=str(path),
                right="give all workers the same folder, or set checkpoint.remote",
            )  # fmt: skip
        return mine


def _best_step(found: Checkpoint) -> int:
    return int(found.facts.get("progress", {}).get("best_step") or 0)
