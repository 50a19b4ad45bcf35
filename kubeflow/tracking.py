"""MLflow from within a task: the Trainer's while it trains, and the Evaluator's numbers after it.

Each task follows its own journal with `components.tracking`, in a process of its own. What makes
both write to one run is a file beside the training's record: the tracking's specification and the
first event of the journal, from which a session has its name.

Where KFP took the training from its cache, that run stays as it is, and the Evaluator's task begins
another. It alone is given the run's name: as a parameter of the Trainer, every new name would be a
training.

KFP 2.17 sets MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_ID and MLFLOW_RUN_ID in the pod: then runs go
there, nested under that run. Otherwise they go where the configuration says. A server that is away
costs nothing but the tracking.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from components import fingerprint
from kubeflow.launching import cause
from kubeflow.parameters import property_text
from trainer import journal

SHARED = "tracking.json"
"""Beside the training's record: what the Evaluator's task goes on with."""
END_SECONDS = 60.0
"""How long what is left may take to be stored."""
URI, EXPERIMENT, PARENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID"
RUN, RUN_TAG, TRAINED_TAG = "HEADRACE_KFP_RUN", "headrace.kubeflow_run", "headrace.trained_in"
NAME_TAG = "mlflow.runName"


@contextlib.contextmanager
def tracked(
    spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path
) -> Generator[None, None, None]:
    """Track what a Trainer or an Evaluator does within the block; nothing of other nodes.

    Args:
        spec: of the task, its parameters bound.
        given: the arguments of the task.
        scratch: the task's own folder, with the journal.
    """
    begin = {"Trainer": _of_trainer, "Evaluator": _of_evaluator}.get(spec["id"])
    told = begin(spec, given, scratch) if begin and _address(spec) else None
    if told is None:
        yield
        return
    started = time.monotonic()
    child = _start(told, scratch)
    status, code = "failed", 4
    try:
        yield
        status, code = "succeeded", 0
    except Exception as error:
        if known := cause(error):
            code = known.exit_code
            journal.append(scratch / "events.jsonl", "error", facts=known.facts(), exit_code=code)
        raise
    finally:
        seconds = time.monotonic() - started
        journal.append(
            scratch / "events.jsonl", "run_ended", status=status, exit_code=code, seconds=seconds
        )
        _end(child)


def keep(spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path) -> None:
    """Leave beside the training's record what the Evaluator's task goes on with."""
    path = scratch / SHARED
    if spec["id"] == "Trainer" and path.is_file() and "out_model_run" in given:
        place = Path(given["out_model_run"]["path"]) / SHARED
        place.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def _address(spec: Mapping[str, Any]) -> str:
    """Return where MLflow is; empty: nowhere that a pod reaches."""
    return os.environ.get(URI, "") or spec["facts"].get("tracking_uri", "")


def _of_trainer(
    spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path
) -> dict[str, Any] | None:
    del given
    whole = property_text(spec, "fingerprint")
    if not whole:
        return None
    journal.append(scratch / "events.jsonl", "run_started")
    told = {
        **_run_of_mlflow(spec, scratch),
        # What the training depends on; the Evaluator's task adds the other settings.
        "params": json.loads(whole)["settings"],
        "fingerprint": fingerprint.of_state(json.loads(whole)),
        # A task that is tried again goes on with the run of the one before.
        "resume": True,
    }
    (first, *_), _ = journal.read(scratch / "events.jsonl")
    # Not where MLflow is, which may hold a password: an artifact is for everybody's eyes.
    shared = {name: value for name, value in told.items() if name != "tracking_uri"}
    (scratch / SHARED).write_text(json.dumps({"spec": shared, "first": first}), encoding="utf-8")
    return told


def _run_of_mlflow(spec: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Return where a run of MLflow is made, and what it is called until it has a name."""
    run, parent = os.environ.get(RUN, ""), os.environ.get(PARENT, "")
    tags = {RUN_TAG: run, "mlflow.parentRunId": parent}
    return {
        "tracking_uri": _address(spec),
        "artifact_root": str(scratch / "mlruns"),
        "experiment": spec["pipeline"],
        "experiment_id": os.environ.get(EXPERIMENT, "") if os.environ.get(URI) else "",
        "run_name": run or "kubeflow",
        "tags": {name: value for name, value in tags.items() if value},
    }


def _of_evaluator(
    spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path
) -> dict[str, Any] | None:
    """Go on with the Trainer's session, or, where another run trained, begin one."""
    places = [Path(one["path"]) / SHARED for one in given.values() if isinstance(one, dict)]
    held = next((place for place in places if place.is_file()), None)
    if held is None:
        return None
    known = json.loads(held.read_text(encoding="utf-8"))
    told, run = known["spec"], os.environ.get(RUN, "")
    told["tracking_uri"] = _address(spec)
    told = {**told, "params": {**spec["facts"].get("settings", {}), **told["params"]}}
    trained = told["tags"].get(RUN_TAG, run)
    if run and trained != run:
        journal.append(scratch / "events.jsonl", "run_started")
        told = {**told, **_run_of_mlflow(spec, scratch)}
        told["tags"][TRAINED_TAG] = trained
    else:
        with open(scratch / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(known["first"]) + "\n")
    if name := given.get("run_name"):
        told = {**told, "tags": {**told["tags"], NAME_TAG: name}}
    return told


def _start(told: Mapping[str, Any], scratch: Path) -> subprocess.Popen[bytes]:
    path = scratch / "tracking.spec.json"
    path.write_text(json.dumps({**told, "parent_pid": os.getpid()}), encoding="utf-8")
    with open(scratch / "tracking.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "components.tracking", str(scratch / "events.jsonl"), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        code = child.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    if code:
        said = "MLflow has not got all of this run"
        print(said, file=sys.stderr, flush=True)  # ruff: ignore[print]
