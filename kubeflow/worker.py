"""A pod of a gang: ``python -m kubeflow.worker``.

It starts one training process a device, each with its ``TF_CONFIG`` by the pod's completion index,
and gives them the job that lies in the gang's folder. When one ends badly, or hangs, the others of
this pod are ended too, and the pod fails; the gang is then started again as a whole. SIGTERM, as
when the machine is drained, goes on to all of them: they save their state. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kubeflow.gang_objects import ADDRESSES, FOLDER, PROCESSES
from trainer import cluster, pulse, supervisor
from trainer.errors import InputError
from trainer.settings import Job, job_from_json, to_json

INDEX = "JOB_COMPLETION_INDEX"
POLL_SECONDS = 0.2
LOST_SECONDS = 5.0
"""What the other processes may take to end once one was lost: they wait for it in a step, and do
not come to save their state."""
LOST = "lost"
"""The file that tells a pod so, when another pod has died."""
HUNG = "hung.json"
"""Beside a process's result: that it hung, and what tells it from those that waited for it."""
NOTE = "ended.json"
"""Beside a process's result: that it ended by itself, with which ``code`` (as `subprocess` has it)
and at what ``time``, or that its pod was ``asked`` to end."""
HUNG_CODE = 4
"""Of a pod that ends for this reason: the contract's, of a training that cannot go on."""


def main() -> int:
    """Train as one machine of several, and return the exit code."""
    folder = Path(os.environ[FOLDER])
    job = job_from_json(json.loads((folder / supervisor.JOB).read_text(encoding="utf-8")))
    try:
        _require_gpus()
        processes = _start(job, folder)
    except InputError as error:
        rank = int(os.environ[INDEX]) * int(os.environ[PROCESSES])
        facts = {"status": "failed", "error": error.facts(), "training": None}
        result_of(folder, rank).parent.mkdir(exist_ok=True)
        supervisor.write_json(result_of(folder, rank), facts)
        print(error, file=sys.stderr, flush=True)  # ruff: ignore[print]
        return error.exit_code

    def forward(number: int, frame: object) -> None:  # ruff: ignore[unused-function-argument]
        for place in _places(folder, processes):
            _note(place, None, asked=True)
        _send(processes, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    return _wait(processes, folder)


def result_of(folder: Path, rank: int) -> Path:
    """Return where a process tells how it ended."""
    return place_of(folder, rank) / supervisor.RESULT


def place_of(folder: Path, rank: int) -> Path:
    """Return the folder of a process, by which it and its pod meet."""
    return folder / f"rank-{rank}"


def _require_gpus() -> None:
    """Refuse to train on a CPU where GPUs were asked for.

    Raises:
        InputError: the pod has fewer.
    """
    asked = int(os.environ.get("HEADRACE_GPUS", "0") or 0)
    there = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if there < asked:
        raise InputError(
            "a pod has fewer GPUs than were asked for",
            where="kubeflow.gpus_per_node", holds=f"{asked}, and the pod has {there}",
            right="check the node's device plugin, or set it to what there is",
        )  # fmt: skip


def _start(job: Job, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start this pod's processes and give them their job; their output is the pod's log."""
    addresses = os.environ[ADDRESSES].split(",")
    count = int(os.environ[PROCESSES])
    first = int(os.environ[INDEX]) * count
    started = []
    for rank in range(first, first + count):
        place = place_of(folder, rank)
        place.mkdir(parents=True, exist_ok=True)
        for name in (pulse.NAME, HUNG, NOTE):
            (place / name).unlink(missing_ok=True)
        own = dataclasses.replace(job, result=str(result_of(folder, rank)))
        supervisor.write_json(place / supervisor.JOB, to_json(own))
        environment = {
            **os.environ,
            cluster.VARIABLE: cluster.describe(addresses, rank),
            supervisor.RANK: str(rank),
            "HEADRACE_PARENT": str(os.getpid()),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "trainer.worker", str(place)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        )
    return started


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait until all have ended; return the code of the first that ended badly, else 0."""
    places = _places(folder, processes)
    watch = _Watch(places)
    until = None
    # In the order in which they end; those after the first are ended by this process.
    bad: list[int] = []
    running = dict(places)
    while running:
        for place, one in list(running.items()):
            if one.poll() is None:
                continue
            del running[place]
            if one.returncode:
                bad.append(one.returncode)
            if one.returncode and until is None:
                _note(place, one.returncode)
        if until is None and (bad or watch.finds_one_hung() or (folder / LOST).exists()):
            until = time.monotonic() + LOST_SECONDS
            _send(processes, signal.SIGTERM)
        if until is not None and time.monotonic() > until:
            _send(processes, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    if watch.has_found:
        return HUNG_CODE
    return (bad[0] if bad[0] > 0 else 128 - bad[0]) if bad else 0


def _places(
    folder: Path, processes: list[subprocess.Popen[bytes]]
) -> dict[Path, subprocess.Popen[bytes]]:
    """Return this pod's processes by their folders."""
    first = int(os.environ[INDEX]) * int(os.environ[PROCESSES])
    return {place_of(folder, first + at): one for at, one in enumerate(processes)}


def _note(place: Path, code: int | None, *, asked: bool = False) -> None:
    """Leave a note of a process's end, from which it is told whose end came first."""
    # A volume that is away or full must not keep the pod from ending.
    with contextlib.suppress(OSError):
        if not (place / NOTE).exists():
            supervisor.write_json(place / NOTE, {"code": code, "time": time.time(), "asked": asked})


class _Watch:
    """Looks for a process that gives no sign of life, and for those that wait for it in a step.

    One that has given none yet may wait for a machine that the cluster has not found.
    """

    def __init__(self, processes: dict[Path, subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._silence = {place: supervisor.Silence() for place in processes}
        self.has_found = False

    def finds_one_hung(self) -> bool:
        """Tell it, once a pod is silent for too long, and leave beside each what is known of it."""
        silent = [
            place
            for place, process in self._processes.items()
            if process.poll() is None
            and pulse.read(place)[0]
            and self._silence[place].is_too_long(place)
        ]
        for place in silent:
            known = self._silence[place]
            is_stopped = supervisor.is_stopped(self._processes[place].pid)
            told = {"seconds": known.seconds, "beats": known.beats, "is_stopped": is_stopped}
            supervisor.write_json(place / HUNG, told)
        self.has_found = self.has_found or bool(silent)
        return self.has_found


def _send(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for one in processes:
        if one.poll() is None:
            one.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
