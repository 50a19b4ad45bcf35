"""In the Trainer's task, the process that has a gang train: ``python -m kubeflow.leader FOLDER``.

To the supervisor it is a training process like any other: it takes the job that lies in FOLDER and
writes the result. In between it hands the job on, through the shared volume, to the pods of a gang.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

from kubeflow import gang, gang_objects
from kubeflow.gang_objects import Owner
from trainer import journal, pulse, supervisor, worker
from trainer.errors import WorkerLost
from trainer.settings import Job, to_json

GANG, ROOM = "HEADRACE_GANG", "HEADRACE_GANG_ROOM"
"""Variables of the task: what the gang is, and its folder on the shared volume."""
BEAT_SECONDS = 20.0
LINE_SECONDS = 10.0
"""Time between two lines of progress in the task's log."""


def main(argv: list[str]) -> int:
    """Wait for a job, have it done, and return the exit code."""
    supervisor.die_with_parent(int(os.environ.get("HEADRACE_PARENT", "0")))
    folder = Path(argv[1]).resolve()
    job = worker.wait_for_job(folder)
    signal.signal(signal.SIGTERM, _asked_to_end)
    beats = pulse.Pulse(folder)
    threading.Thread(target=_beat, args=(beats,), daemon=True).start()
    try:
        result = lead(job, folder)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:  # ruff: ignore[blind-except] - told whole in the log
        traceback.print_exception(error)
        result = gang.describe(error)
    supervisor.write_json(Path(job.result), result)
    return worker.from_result(result)


def _asked_to_end(number: int, frame: object) -> None:  # ruff: ignore[unused-function-argument]
    # The gang is removed on the way out, and its pods save their state.
    sys.exit(128 + number)


def _beat(beats: pulse.Pulse) -> None:
    """Say that this process lives: how the pods do, the gang tells."""
    while True:
        beats.beat()
        time.sleep(BEAT_SECONDS)


def lead(job: Job, folder: Path) -> dict[str, Any]:
    """Have a gang do a job; what it made is then where the job says.

    Args:
        job: as the Trainer gave it; its columns and checkpoints are on the shared volume.
        folder: of this process.

    Raises:
        WorkerLost: a worker ended without what it was to make.
    """
    asked = gang_objects.from_text(os.environ[GANG])
    name = f"headrace-{uuid.uuid4().hex[:10]}"
    room = Path(os.environ[ROOM]) / name
    room.mkdir(parents=True)
    told = dataclasses.replace(
        job, export=str(room / "export"), events=str(room / "events.jsonl"), result=""
    )
    if job.folder:
        shutil.copytree(job.folder, room / "model")
        told = dataclasses.replace(told, folder=str(room / "model"))
    supervisor.write_json(room / supervisor.JOB, to_json(told))
    follower = _Follower(Path(told.events), job.events)
    try:
        result = gang.train(
            gang.Cluster(os.environ["HEADRACE_NAMESPACE"], tell=_say),
            asked,
            name=name,
            owner=Owner(os.environ.get("HEADRACE_POD", ""), os.environ.get("HEADRACE_POD_UID", "")),
            folder=room,
            warn=lambda message: journal.append(
                job.events, "warning", id="Trainer", message=message
            ),
        )
        follower.stop()
        if not Path(told.export).is_dir():
            raise WorkerLost("the first worker left no model", where=told.export)
        shutil.copytree(told.export, job.export, dirs_exist_ok=True)
        shutil.copyfile(result["predictions"], folder / worker.PREDICTIONS)
        return {**result, "predictions": str(folder / worker.PREDICTIONS)}
    finally:
        follower.stop()
        shutil.rmtree(room, ignore_errors=True)


def _say(line: str) -> None:
    print(f"[worker 0] {line}", flush=True)  # ruff: ignore[print]


class _Follower:
    """Copies the gang's journal to the task's own, and tells its log how far training is."""

    def __init__(self, source: Path, target: str) -> None:
        self._source, self._target = source, target
        self._offset = 0
        self._plan: dict[str, Any] = {}
        self._told = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        found, self._offset = journal.read(self._source, self._offset)
        for event in found:
            self._tell(event)
            if self._target:
                with open(self._target, "a", encoding="utf-8") as file:
                    file.write(json.dumps(event) + "\n")

    def _tell(self, event: dict[str, Any]) -> None:
        from pipeline import lines

        if event["event"] == "training_started":
            self._plan = event
            print(lines.training_plan(event), flush=True)  # ruff: ignore[print]
        if event["event"] == "train_step" and time.monotonic() - self._told >= LINE_SECONDS:
            self._told = time.monotonic()
            print(lines.training_step(event, self._plan), flush=True)  # ruff: ignore[print]
        if event["event"] == "evaluation":
            print(lines.evaluation(event), flush=True)  # ruff: ignore[print]


if __name__ == "__main__":
    worker.leave(Path(sys.argv[1]), main(sys.argv))
