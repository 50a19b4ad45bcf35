"""What a training process shows Prometheus: one endpoint a worker, read from outside.

Numbers that the journal is told anyway are taken from its events; a step costs two observations
and two times. What must be asked for (memory, GPUs, ages) is asked when somebody scrapes, in the
server's thread. `prometheus_client` is imported where a port is set, and nowhere else. Rules,
dashboard and a configuration that scrape these names stand in ``trainer/on_call``.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainer import devices
from trainer.errors import SettingError
from trainer.loss_scale import FLOOR

ADDRESS = "0.0.0.0"
GAUGES = {
    "headrace_running": "1 from the first step to the last, then 0",
    "headrace_training_loss": "mean over the examples since the last report",
    "headrace_eval_loss": "of the last evaluation",
    "headrace_eval_loss_rises": "evaluations in a row whose loss rose, as early_stop counts them",
    "headrace_learning_rate": "of the last update",
    "headrace_examples_per_second": "over all workers",
    "headrace_tokens_per_second": "over all workers",
    "headrace_updates_per_second": "weight updates that were applied",
    "headrace_gradient_norm": "global norm before clipping",
    "headrace_loss_scale": "that the gradients are computed with; 1 where there is none",
    "headrace_loss_scale_floor": "that the scale never goes below; 0 where there is none",
    "headrace_skipped_steps": "whose gradients were not finite, in all",
    "headrace_steps": "done, over all epochs",
    "headrace_epoch": "of the last step, from 1",
    "headrace_progress_ratio": "steps done of those that are planned, 0 to 1",
    "headrace_seconds_left": "until the last step, by the pace of this process so far",
    "headrace_usual_step_seconds": "a step takes, waiting for data included (moving mean)",
    "headrace_longest_pause_seconds": "between two steps so far: evaluations and saves",
    "headrace_seconds_since_step": "since the last step ended, or training began",
    "headrace_straggler_ratio": "own seconds of the slowest worker over those of the fastest",
    "headrace_memory_planned_bytes": "peak of TensorFlow's allocator that the plan foresaw",
    "headrace_memory_peak_bytes": "peak of TensorFlow's allocator so far; 0: not counted",
    "headrace_checkpoint_age_seconds": "since the last checkpoint was whole, or training began",
    "headrace_checkpoint_interval_seconds": "between two checkpoints at the usual pace",
    "headrace_upload_lag_seconds": "that a whole checkpoint waits for its copy; 0: none waits",
    "headrace_upload_failures": "uploads of this process that were tried again",
    "headrace_restarts": "times that the workers of this run were started again",
}
"""Every gauge by name, each with the label ``worker``."""
STEP_SECONDS = "headrace_step_seconds"
GPU_GAUGES = {
    "headrace_gpu_utilization_ratio": "share of the time in which it computed, 0 to 1",
    "headrace_gpu_memory_used_bytes": "by all processes",
    "headrace_gpu_memory_total_bytes": "that there are",
}
"""Of each GPU of this worker, with the label ``gpu`` too."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
           300.0)  # fmt: skip
WEIGHT = 0.1
"""Of the newest step in the moving mean."""
LAST_LOOK_SECONDS = 60.0
"""Longest wait for the scrape that shows how training ended."""

FROM_EVENTS = {
    "training_started": {"planned_memory_bytes": "headrace_memory_planned_bytes"},
    "train_step": {
        "loss": "headrace_training_loss",
        "epoch": "headrace_epoch",
        "learning_rate": "headrace_learning_rate",
        "gradient_norm": "headrace_gradient_norm",
        "loss_scale": "headrace_loss_scale",
        "skipped_steps": "headrace_skipped_steps",
        "examples_per_second": "headrace_examples_per_second",
        "updates_per_second": "headrace_updates_per_second",
    },
    "evaluation": {"loss": "headrace_eval_loss"},
}
"""Facts of the journal's events that become gauges as they are."""


class Metrics:
    """What one worker shows.

    Attributes:
        address: ``host:port`` that is listened at.
    """

    def __init__(self, port: int, *, rank: int, restarts: int) -> None:
        """Begin to listen.

        Args:
            port: of this worker.
            rank: of this worker.
            restarts: of the run so far.

        Raises:
            SettingError: when the port is taken, or `prometheus_client` is not there.
        """
        try:
            import prometheus_client as client
        except ImportError as error:
            raise SettingError(
                "needs prometheus_client", where="monitoring.port", holds=str(port),
                right="pip install prometheus-client, or set it to 0",
            ) from error  # fmt: skip
        registry = client.CollectorRegistry()
        worker = str(rank)
        self._gauges = {
            name: client.Gauge(name, text, ["worker"], registry=registry)
            for name, text in GAUGES.items()
        }
        self._worker = worker
        seconds = client.Histogram(
            STEP_SECONDS, "of a step, by what it is spent on", ["worker", "part"],
            buckets=BUCKETS, registry=registry,
        )  # fmt: skip
        self._waiting = seconds.labels(worker, "waiting")
        self._computing = seconds.labels(worker, "computing")
        registry.register(_Gpus(worker))
        self._looks = _Looks()
        registry.register(self._looks)
        self._pace = _Pace()
        self._tokens = 1
        self._every_steps = 0
        self.set("headrace_restarts", restarts)
        self.set("headrace_running", 0)
        self.ask("headrace_memory_peak_bytes", devices.peak_bytes)
        try:
            self._server, self._thread = client.start_http_server(port, ADDRESS, registry)
        except OSError as error:
            failure: SettingError = taken(port, error)
            raise failure from error
        self.address = f"{ADDRESS}:{self._server.server_port}"

    def set(self, name: str, value: float) -> None:
        """Set a gauge of `GAUGES`."""
        self._gauges[name].labels(self._worker).set(value)

    def ask(self, name: str, function: Callable[[], float]) -> None:
        """Have a gauge's value asked for whenever somebody scrapes."""
        self._gauges[name].labels(self._worker).set_function(function)

    def begin(self, *, steps: int, done: int, tokens: int, every_steps: int, scaled: bool) -> None:
        """Say what will be trained; the first step comes next.

        Args:
            steps: in all.
            done: of those, before this process.
            tokens: of an example.
            every_steps: between two checkpoints.
            scaled: whether there is a loss scale that moves.
        """
        self._pace = pace = _Pace(steps=steps, done=done)
        self._tokens, self._every_steps = tokens, every_steps
        self.set("headrace_loss_scale_floor", FLOOR if scaled else 0.0)
        self.ask("headrace_steps", lambda: pace.done)
        self.ask("headrace_progress_ratio", lambda: pace.done / max(steps, 1))
        self.ask("headrace_seconds_left", pace.seconds_left)
        self.ask("headrace_usual_step_seconds", lambda: pace.usual_seconds)
        self.ask("headrace_longest_pause_seconds", lambda: pace.longest_seconds)
        self.ask("headrace_seconds_since_step", pace.since_step)
        self.ask("headrace_checkpoint_interval_seconds", lambda: every_steps * pace.usual_seconds)
        self.set("headrace_running", 1)

    def step(self, *, waiting_seconds: float, computing_seconds: float) -> None:
        """Take in one step: the time for which its batch was waited for, and the rest of it."""
        self._waiting.observe(waiting_seconds)
        self._computing.observe(computing_seconds)
        self._pace.step(waiting_seconds + computing_seconds)

    def take(self, event: str, facts: Mapping[str, Any]) -> None:
        """Take in what the journal is told."""
        for fact, name in FROM_EVENTS.get(event, {}).items():
            if facts.get(fact) is not None:
                self.set(name, float(facts[fact]))
        if event == "train_step":
            self.set("headrace_tokens_per_second", self._tokens * facts["examples_per_second"])
        elif event in {"training_started", "checkpoint"} and self._every_steps:
            saved = time.monotonic()
            self.ask("headrace_checkpoint_age_seconds", lambda: time.monotonic() - saved)
        elif event == "training_done":
            self.stop()

    def stop(self) -> None:
        """Say that no step will follow."""
        self.set("headrace_running", 0)
        self._looks.changed()

    def close(self, *, most_seconds: float = LAST_LOOK_SECONDS) -> None:
        """Stop listening, once whoever scrapes has seen the end; at once when nobody does.

        Without that look Prometheus could not tell a training that ended from one that died.
        """
        self._looks.wait(most_seconds)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def taken(port: int, error: OSError) -> SettingError:
    """Return the error that says that a port cannot be listened at."""
    what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
    return SettingError(
        f"port {port} {what}", where="monitoring.port", holds=str(port),
        right="take a port that is free, and as many after it as there are workers; 0 is off",
    )  # fmt: skip


class _Pace:
    """Steps done and how long they take, from which the time left is told."""

    def __init__(self, *, steps: int = 0, done: int = 0) -> None:
        self.steps, self.done = steps, done
        self.usual_seconds = self.longest_seconds = 0.0
        self._first: tuple[float, int] | None = None
        self._last = time.monotonic()

    def step(self, seconds: float) -> None:
        now = time.monotonic()
        self.done += 1
        if self._first is None:
            # The first step of a process traces the graph: it says nothing of the others.
            self._first = (now, self.done)
        else:
            usual = self.usual_seconds or seconds
            self.usual_seconds = usual + WEIGHT * (seconds - usual)
            self.longest_seconds = max(self.longest_seconds, now - self._last)
        self._last = now

    def since_step(self) -> float:
        return time.monotonic() - self._last

    def seconds_left(self) -> float:
        if self._first is None or self.done == self._first[1]:
            return math.nan
        started, done = self._first
        return (self._last - started) / (self.done - done) * max(self.steps - self.done, 0)


class _Gpus:
    """Asks the driver about this worker's GPUs at each scrape."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        readings = devices.gpu_readings()
        for name, text in GPU_GAUGES.items() if readings else ():
            family = GaugeMetricFamily(name, text, labels=["worker", "gpu"])
            field = name.removeprefix("headrace_gpu_")
            for one in readings:
                family.add_metric([self._worker, one.name], getattr(one, field))
            yield family


class _Looks:
    """When somebody scraped."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._last: float | None = None
        self._gap = 0.0
        self._is_seen = True

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> list[Any]:
        now = time.monotonic()
        with self._lock:
            if self._last is not None:
                self._gap = max(self._gap, now - self._last)
            self._last, self._is_seen = now, True
            self._lock.notify_all()
        return []

    def changed(self) -> None:
        with self._lock:
            self._is_seen = False

    def wait(self, most_seconds: float) -> None:
        with self._lock:
            if self._last is None:
                return
            patience = min(most_seconds, 2 * self._gap if self._gap else most_seconds)
            self._lock.wait_for(lambda: self._is_seen, timeout=patience)
