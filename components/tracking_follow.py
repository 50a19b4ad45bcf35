"""A journal on its way into the tracking store: read, store in batches, say once what fails."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from components import untracked
from components.tracking_held import Held
from components.tracking_names import without_credentials
from components.tracking_record import Record, session_of
from trainer import journal as journals

_POLL_SECONDS = 0.2
_FLUSH_SECONDS = 2.0
# A flush of 10 ms of CPU is followed by at least 2 s without one: half a percent of one core.
_FLUSH_SHARE = 0.005
_RETRY_SECONDS = 30.0

Spec = Mapping[str, Any]
"""SPEC.json; its keys are in tracking.py."""


class Store(Protocol):
    """Where runs are kept; every method raises one of `failures` when the store does not answer."""

    failures: tuple[type[Exception], ...]

    def connect(self) -> None:
        """Open the store, making it when it is absent."""

    def attach(self, spec: Spec, record: Record, *, session: str) -> Held:
        """Return the run that this session writes to."""
        ...

    def write(self, held: Held, record: Record) -> None:
        """Store what `record` has pending, and empty it."""

    def finish(self, held: Held, record: Record) -> None:
        """Store the rest, and how the run ended."""


@dataclass
class Follower:
    """A journal and how far it is stored.

    Attributes:
        journal: the run's journal; its first event names the session.
        spec: see tracking.py.
        marker: of this run; the ones that others left beside it are stored first.
        store: where it goes.
        record: what was read and is not stored yet.
        held: the run in the store; None until the store answered.
        session: "" until the first event was read.
        offset: bytes of the journal read so far.
        said: what the last ``tracking`` event said of `stored`; None before the first.
    """

    journal: Path
    spec: Spec
    marker: untracked.Marker
    store: Store
    record: Record = field(default_factory=Record)
    held: Held | None = None
    session: str = ""
    offset: int = 0
    said: bool | None = None
    _has_failed: bool = False

    def __post_init__(self) -> None:
        self.record.take_spec(self.spec)

    def follow(self, is_over: Callable[[], bool]) -> bool:
        """Store the journal while it grows, until its end; whether all of it is stored.

        Args:
            is_over: whether the run can write no more, though it said no end.
        """
        next_store = 0.0
        while True:
            is_gone = is_over()  # asked before reading: what it wrote last is still read
            self.read()
            if is_gone or self.record.ended:
                return self.store_pending(is_last=True) is not None
            if self.session and time.monotonic() >= next_store:
                cost = self.store_pending()
                pause = _RETRY_SECONDS if cost is None else max(_FLUSH_SECONDS, cost / _FLUSH_SHARE)
                next_store = time.monotonic() + pause
            time.sleep(_POLL_SECONDS)

    def read(self) -> None:
        """Take the events that the journal gained."""
        events, self.offset = journals.read(self.journal, self.offset)
        for event in events:
            self.session = self.session or session_of(event)
            self.record.take(event)

    def store_pending(self, *, is_last: bool = False) -> float | None:
        """Store what is pending; the CPU seconds that it took, None when the store failed."""
        if not self.session:
            return 0.0
        try:
            if self.held is None:
                self.store.connect()
                self._store_left_behind()
                self.held = self.store.attach(self.spec, self.record, session=self.session)
            used = time.process_time()
            self.store.write(self.held, self.record)
            used = time.process_time() - used
            if is_last:
                self.store.finish(self.held, self.record)
        except self.store.failures as error:
            # Once; and again when the last word was that all is well.
            if not self._has_failed or (is_last and self.said):
                self.tell(self._sentence(error))
            self._has_failed = True
            return None
        self._warn()
        if not self.said:
            self.tell("")
        if is_last and self.record.registered:
            with suppress(OSError):
                journals.append(self.journal, "registered", model=self.record.registered)
        return used

    def _store_left_behind(self) -> None:
        """Store what earlier processes could not, where tracking goes now."""
        for marker in untracked.left_behind(self.marker):
            try:
                spec = json.loads(marker.spec.read_text(encoding="utf-8"))
                left = Follower(marker.journal, spec, marker, self.store)
                left.read()
                if left.session:
                    held = self.store.attach(spec, left.record, session=left.session)
                    self.store.finish(held, left.record)
            except (*self.store.failures, ValueError, KeyError) as error:
                logging.getLogger(__name__).warning("%s: not stored: %s", marker.path, error)
                marker.release()
            else:
                marker.remove()

    def tell(self, trouble: str) -> None:
        """Add the ``tracking`` event: stored when there is no `trouble`."""
        self.said = not trouble
        with suppress(OSError):
            journals.append(
                self.journal,
                "tracking",
                tracking_uri=without_credentials(self.spec["tracking_uri"]),
                experiment=self.spec["experiment"],
                run_id=self.held.run_id if self.held else "",
                stored=self.said,
                message=trouble,
            )

    def _warn(self) -> None:
        for message in self.record.warnings:
            with suppress(OSError):
                journals.append(self.journal, "warning", id="Tracking", message=message)
        self.record.warnings.clear()

    def _sentence(self, error: Exception) -> str:
        uri = without_credentials(self.spec["tracking_uri"])
        return (
            f"MLflow at {uri} does not take this run ({first_line(error)});"
            " the record is kept, and the next run stores it"
        )


def first_line(error: Exception) -> str:
    """Return what an error says in one line without credentials."""
    lines = without_credentials(str(error)).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
