"""What a worker says while it trains: events for the journal, warnings, metrics for Prometheus."""

from __future__ import annotations

import os
from typing import Any

from trainer import cluster, journal, monitoring
from trainer.cluster import Workers
from trainer.errors import SettingError
from trainer.settings import Job

LEAVE_SECONDS = 5.0
"""How long whoever watches may take to see that training was interrupted."""


class Voice:
    """What one worker says.

    Attributes:
        metrics: what Prometheus is shown; None: nothing.
        leads: whether this is the worker that writes and tells.
    """

    def __init__(self, job: Job, workers: Workers) -> None:
        self.metrics: monitoring.Metrics | None = None
        self.leads = workers.rank == 0
        self._job, self._workers = job, workers

    def show(self) -> None:
        """Let Prometheus watch this worker, where a port is set.

        Raises:
            SettingError: when the port is taken, unless training was going on already.
        """
        first = self._job.monitoring.port
        if not first:
            return
        restarts = int(os.environ.get(cluster.RESTARTS, "0"))
        port = first + self._workers.place_on_host
        try:
            self.metrics = monitoring.Metrics(port, rank=self._workers.rank, restarts=restarts)
        except SettingError as error:
            if not restarts:
                raise
            self.warn(f"training goes on, but nobody can watch it: {error}")

    def stop_showing(self) -> None:
        """Show that training was interrupted, to who looks soon."""
        if self.metrics:
            self.metrics.stop()
            self.metrics.close(most_seconds=LEAVE_SECONDS)

    def tell(self, event: str, **facts: Any) -> None:
        """Add an event to the run's journal, and show what it tells."""
        if self.metrics:
            self.metrics.take(event, facts)
        if self.leads:
            journal.append(self._job.events, event, **facts)

    def warn(self, message: str) -> None:
        """Say something that the person should know, once."""
        self.tell("warning", id="Trainer", message=message)
