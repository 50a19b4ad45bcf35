"""The processes of one run: started, followed through the journal, stopped in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components import fingerprint, provenance
from pipeline import cache
from pipeline.config import PipelineConfig
from trainer import cluster, journal, supervisor
from trainer.errors import TrainingError

OnEvent = Callable[[dict[str, Any]], None]
POLL_SECONDS = 0.1
STOP_SECONDS = 30.0
STOPPING = "stopping: what was finished is kept; Ctrl-C once more ends it at once"


@dataclass
class Run:
    """One run while it goes on.

    Attributes:
        number: its name, counted up from 1 in each pipeline.
        folder: ``logs/<number>``.
        config: the configuration.
        decisions: what is cached and why, by node.
        on_event: told of every event of the journal.
        children: processes to stop with the run, by name.
        told: the events so far.
        stopped: the first signal that was received; 0: none.
        signals: how many were.
    """

    number: str
    folder: Path
    config: PipelineConfig
    decisions: Mapping[str, cache.Decision]
    on_event: OnEvent
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    stopped: int = 0
    signals: int = 0
    offset: int = 0

    @property
    def events(self) -> Path:
        """The run's journal."""
        return self.folder / "events.jsonl"

    def tell(self, event: str, **facts: Any) -> None:
        """Add an event to the journal and show it."""
        journal.append(self.events, event, **facts)
        self.follow()

    def follow(self) -> list[dict[str, Any]]:
        """Show what the journal has grown by, and return it."""
        new, self.offset = journal.read(self.events, self.offset)
        for event in new:
            self.told.append(event)
            self.on_event(event)
        return new


def start(one: Run) -> None:
    """Start training's process, so that it imports while data are read, and the nodes' own."""
    trains = one.decisions.get("Trainer") or one.decisions["MemoryPlanner"]
    if not trains.cached:
        workers = 1 if "MemoryPlanner" in one.decisions else one.config.training.workers
        if cluster.VARIABLE in os.environ:
            workers = 1  # a cluster from outside, in which this process is one of them
        for rank, child in enumerate(supervisor.start(one.folder / "training", workers=workers)):
            one.children[f"training {rank}" if rank else "training"] = child
    with open(one.folder / "pipeline.log", "ab") as log:
        one.children["nodes"] = subprocess.Popen(
            [sys.executable, "-m", "pipeline.dag", str(one.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(one),
            start_new_session=True,
        )


def _environment(one: Run) -> dict[str, str]:
    return {
        **os.environ,
        "HEADRACE_EVENTS": str(one.events),
        "HEADRACE_RUN_DIR": str(one.folder),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
    }


def watch(one: Run) -> int:
    """Show the journal until the nodes' process ends; return the run's exit code."""
    nodes = one.children["nodes"]
    is_stopping = False
    while nodes.poll() is None:
        if one.stopped and not is_stopping:
            is_stopping = True
            one.tell("warning", id="", message=STOPPING)
        for event in one.follow():
            # Not earlier: its imports would hold up those of the nodes.
            if event["event"] == "node" and event["state"] in {"done", "cached"}:
                start_tracking(one)
        time.sleep(POLL_SECONDS)
    one.follow()
    if one.stopped:
        return 143 if one.stopped == signal.SIGTERM else 130
    code = nodes.returncode
    if code and not any(event["event"] == "error" for event in one.told):
        lost = TrainingError(
            f"the process that runs the nodes ended with {code}",
            right=f"see {one.folder / 'pipeline.log'}",
        )
        one.tell("error", id="", facts=lost.facts(), exit_code=lost.exit_code)
        return lost.exit_code
    return code


@contextlib.contextmanager
def signals(one: Run) -> Generator[None, None, None]:
    """Stop the children in order at the first signal, at once at the second, all at the third."""

    def stop(number: int, frame: object) -> None:  # ruff: ignore[unused-function-argument]
        one.signals += 1
        one.stopped = one.stopped or number
        if one.signals > 2:
            raise KeyboardInterrupt
        for name in ("nodes", "training"):
            child = one.children.get(name)
            if child is not None and child.poll() is None:
                child.send_signal(signal.SIGKILL if one.signals > 1 else signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Generator[None, None, None]:
    """Heed Ctrl-C though a library may not: what one swallowed is raised at the block's end.

    pyarrow, for one, imports pandas in a place that cannot raise, prints a traceback and goes on.

    Raises:
        KeyboardInterrupt: at the block's end, when one was swallowed.
    """
    received: list[int] = []
    told = sys.unraisablehook

    def stop(number: int, frame: object) -> None:  # ruff: ignore[unused-function-argument]
        received.append(number)
        raise KeyboardInterrupt

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        if not issubclass(found.exc_type, KeyboardInterrupt):
            told(found)

    before = signal.signal(signal.SIGINT, stop)
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = told
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def stop_children(one: Run) -> None:
    """End what still runs: a training process that no node used, or that a signal stops."""
    waiting = [
        child for name, child in one.children.items() if name != "tracking" and child.poll() is None
    ]
    for child in waiting:
        child.terminate()
    until = time.monotonic() + STOP_SECONDS
    for child in waiting:
        try:
            child.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_for_tracking(one: Run, seconds: float) -> None:
    """Wait until all is stored, for so many seconds at most and no longer than a person does.

    A signal ends the waiting, two when the first one ended the run; the tracking process stores
    the rest without this one.
    """
    child, until = one.children["tracking"], time.monotonic() + seconds
    received = one.signals
    while child.poll() is None and time.monotonic() < until and one.signals == received:
        time.sleep(POLL_SECONDS)
    one.follow()


def start_tracking(one: Run) -> None:
    """Start the tracking process, once."""
    # A push alone is tracked where it makes a version in the registry.
    tracked = ("Trainer", "Evaluator", *(["Pusher"] if one.config.tracking.register else []))
    is_new = any(name in one.decisions and not one.decisions[name].cached for name in tracked)
    if "tracking" in one.children or not is_new:
        return
    spec = one.folder / "tracking.json"
    write_whole(spec, json.dumps(_tracking_spec(one), indent=1))
    with open(one.folder / "tracking.log", "ab") as log:
        one.children["tracking"] = subprocess.Popen(
            [sys.executable, "-m", "components.tracking", str(one.events), str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _tracking_spec(one: Run) -> dict[str, Any]:
    """Return what the tracking process needs to know beside the journal."""
    config = one.config
    flat = config.flat()
    key = fingerprint.of_state(one.decisions["Trainer"].fingerprint)
    digests = {
        f"digest.{name.lower()}": fingerprint.digest(one.decisions[node].fingerprint[part])
        for name, node, part in (
            ("data", "ExampleGen", "data"),
            ("code", "Trainer", "code"),
            ("settings", "Trainer", "settings"),
        )
    }
    return {
        "tracking_uri": config.tracking_uri,
        "artifact_root": str(config.root_folder / "mlruns"),
        "experiment": config.name,
        "run_name": one.number,
        "params": flat,
        "tags": {**provenance.collect_tags(config.base), **digests},
        "config_text": "".join(f"{name} = {json.dumps(value)}\n" for name, value in flat.items()),
        "fingerprint": key,
        "parent_pid": os.getpid(),
        "resume": (config.folder / "checkpoints" / key).is_dir(),
        "register": config.tracking.register,
        "trained_before": all(one.decisions[name].cached for name in ("Trainer", "Evaluator")),
        "artifacts": {
            "report.html": str(config.folder / "report.html"),
            "plan.json": str(one.folder / "plan.json"),
            "anomalies.json": str(one.folder / "anomalies.json"),
        },
    }


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text)
    aside.replace(path)
