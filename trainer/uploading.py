"""Copies of checkpoints to remote storage, made beside training and never in its way.

One thread takes the newest checkpoint that is whole here, and the best one, and tries until it is
there; while the storage is away it waits longer and longer between two tries. Older ones that were
not copied yet are passed over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import CheckpointError
from trainer.remote import Remote

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True)
class Offer:
    """A checkpoint that is whole here, the best one at that time, and when it was offered."""

    step: int
    best_step: int
    since: float


class Uploads:
    """The uploads of one training.

    Attributes:
        failures: tries that did not succeed.
        uploaded_step: newest that is there; None: not known of any.
    """

    def __init__(
        self,
        remote: Remote,
        folder: Path,
        *,
        keep: int,
        tell: Callable[..., None],
        warn: Callable[[str], None],
    ) -> None:
        """Begin with none.

        Args:
            remote: where they go.
            folder: of the checkpoints here.
            keep: newest ones that stay there.
            tell: called with step, path, seconds and lag_seconds of each that is there.
            warn: told of what goes wrong, once in words of its own.
        """
        self.remote = remote
        self.failures = 0
        self.uploaded_step: int | None = None
        self._folder, self._keep, self._tell, self._warn = folder, keep, tell, warn
        self._offers: list[Offer] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._said = ""
        self._pause = FIRST_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._work, name="uploading", daemon=True)
        self._thread.start()

    def offer(self, step: int, best_step: int = 0) -> None:
        """Have the checkpoint of a step copied, and the best one before it; returns at once."""
        with self._changed:
            self._offers.append(Offer(step, best_step, time.monotonic()))
            self._changed.notify_all()

    def lag_seconds(self) -> float:
        """Return how long the oldest checkpoint that is not there has waited; 0: none waits."""
        with self._changed:
            return time.monotonic() - self._offers[0].since if self._offers else 0.0

    def finish(self, seconds: float) -> None:
        """Wait until the newest is there, so long at most; no other will be copied."""
        with self._changed:
            waiting = bool(self._offers)
            # What failed a while ago may succeed now.
            self._pause = FIRST_PAUSE_SECONDS
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._offers, timeout=seconds)
            self._is_closed = True
            self._changed.notify_all()
            step = self._offers[-1].step if self._offers else 0
        if waiting and not done:
            why = self._said or f"it took more than {seconds:.0f} s"
            self._warn(
                f"the checkpoint of step {step} is not in {self.remote.address}, but in "
                f"{self._folder} alone: {why}"
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._offers)
                if self._is_closed:
                    return
                newest = self._offers[-1]
            if self._is_there(newest):
                with self._changed:
                    self._offers = [one for one in self._offers if one.since > newest.since]
                    self._changed.notify_all()
            else:
                self._rest()

    def _rest(self) -> None:
        with self._changed:
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            until = time.monotonic() + pause
            # Whoever waits for the end makes the pause short.
            self._changed.wait_for(
                lambda: self._is_closed or self._pause < pause or time.monotonic() >= until,
                timeout=pause,
            )

    def _is_there(self, wanted: Offer) -> bool:
        """Try once; tell whether nothing is left to do for it."""
        began = time.monotonic()
        try:
            self._copy(wanted)
        except CheckpointError as error:
            self.failures += 1
            self._say(str(error))
            return False
        except FileNotFoundError:
            # A newer one took its place here, and is offered.
            return True
        self._pause = FIRST_PAUSE_SECONDS
        self.uploaded_step = wanted.step
        now = time.monotonic()
        self._tell(
            step=wanted.step, path=self.remote.of(wanted.step), seconds=now - began,
            lag_seconds=now - self._offers[0].since,
        )  # fmt: skip
        if self._said:
            self._said = ""
            self._warn(f"checkpoints are copied to {self.remote.address} again")
        return True

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._warn(f"{what}; training goes on, and so do the tries")

    def _copy(self, wanted: Offer) -> None:
        # The best first: who goes on from the newest may want its weights.
        kept = {one for one in (wanted.best_step, wanted.step) if one}
        for step in sorted(kept):
            self.remote.put(self._folder / f"step-{step:08d}")
        for step in self.remote.steps()[self._keep :]:
            if step not in kept:
                self.remote.remove(step)
