"""The training process: ``python -m trainer.worker FOLDER``.

It imports TensorFlow at once and then waits for ``FOLDER/job.json``, so that the imports overlap
with the nodes that prepare the data. It never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import cluster, imports, pulse, supervisor
from trainer.errors import HeadraceError, MemoryExceeded, TrainingError, WorkerLost
from trainer.settings import Job, job_from_json

READY = "ready.json"
PREDICTIONS = "predictions.npy"
POLL_SECONDS = 0.02
WARM_UP_ROWS = 8


class Signals:
    """The first signal that asked this process to end, remembered until the loop looks."""

    def __init__(self) -> None:
        self.number = 0

    def listen(self) -> None:
        """Take SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, number: int, _: Any) -> None:
        self.number = self.number or number


def prepare() -> None:
    """Import everything heavy and start TensorFlow's runtime.

    The CPU allocator counts its bytes only when it is told to before the first tensor.
    """
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with imports.without(*imports.OF_KERAS):
        import tensorflow as tf

        from trainer import export, loop  # ruff: ignore[unused-import] - they import the rest

    if cluster.VARIABLE not in os.environ:
        # With other workers, its runtime starts when it is told of them.
        tf.function(lambda x: tf.reduce_sum(x @ x))(tf.zeros([WARM_UP_ROWS, WARM_UP_ROWS]))


def wait_for_job(folder: Path) -> Job:
    """Return the job, taken by renaming its file, which one process alone can do."""
    while True:
        try:
            (folder / supervisor.JOB).rename(folder / supervisor.TAKEN)
        except FileNotFoundError:
            time.sleep(POLL_SECONDS)
            continue
        return job_from_json(json.loads((folder / supervisor.TAKEN).read_text(encoding="utf-8")))


def do(job: Job, folder: Path, *, stop: Callable[[], int]) -> dict[str, Any]:
    """Train, predict the eval split, export; return the content of ``result.json``.

    Args:
        job: what to do.
        folder: gets the predictions.
        stop: says which signal asked to end, 0 none.
    """
    import numpy as np

    from trainer import export, forecast, loop, measuring

    if job.folder:
        # First, as Python itself has the folder of a script.
        sys.path.insert(0, job.folder)
    if job.purpose == "plan":
        return {"status": "ok", "error": None, "forecast": forecast.of_job(job)}
    alive = pulse.Pulse(folder)
    if cluster.VARIABLE in os.environ:
        pulse.end_when_silent(alive)
    if job.purpose == "measure":
        return {"status": "ok", "error": None, "measured": measuring.of_job(job, beat=alive.beat)}
    trained = loop.train(job, stop=stop, beat=alive.beat)
    if os.environ.get(supervisor.RANK, "0") != "0":
        if trained.metrics:
            trained.metrics.close()
        return {"status": "ok", "error": None}
    export.export(trained.built, job.features, job.export)
    path = folder / PREDICTIONS
    aside = path.with_name(f".{PREDICTIONS}")
    with open(aside, "wb") as file:
        np.save(file, trained.predictions)
    aside.replace(path)
    if trained.metrics:
        trained.metrics.close()
    return {
        "status": "ok",
        "error": None,
        "training": trained.facts,
        "predictions": str(path),
        "history": trained.history,
    }


def failed(error: BaseException, log: Path) -> dict[str, Any]:
    """Return the content of ``result.json`` for an error; the traceback goes to the log."""
    traceback.print_exception(error)
    return {
        "status": "failed",
        "error": _ours(error, log).facts(),
        "training": None,
        "predictions": None,
        "history": [],
    }


def _ours(error: BaseException, log: Path) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    first = _told(str(error))
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return MemoryExceeded(
            f"memory ran out while training: {first[:200]}", where="training.micro_batch",
            right=f"a smaller one, or training.recompute = true; the full account is in {log}",
        )  # fmt: skip
    if cluster.VARIABLE in os.environ and "ollective" in str(error):
        return WorkerLost(
            f"another worker was lost in the middle of a step: {first[:200]}", where=str(log),
            right="its own log says why; all go on from the last checkpoint",
        )  # fmt: skip
    return TrainingError(
        f"training failed: {type(error).__name__}: {first[:300]}", where=str(log),
        right="the full account stands there",
    )  # fmt: skip


def _told(text: str) -> str:
    """Return the line of an error's text that says what happened.

    TensorFlow puts it above the node that raised it, and Python code that was traced at the end;
    what stands first are the places that the error came through.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if not lines[0].startswith(("Graph execution error", "in user code")):
        return lines[0]
    node = next((at for at, line in enumerate(lines) if "[[{{node" in line), 0)
    return lines[node - 1] if node > 1 else lines[-1]


def main(argv: list[str]) -> int:
    """Wait for a job and do it; return the exit code."""
    supervisor.die_with_parent(int(os.environ.get("HEADRACE_PARENT", "0")))
    folder = Path(argv[1]).resolve()
    refused = _refused_cluster()
    if refused is None:
        prepare()
    supervisor.write_json(folder / READY, {"pid": os.getpid(), "time": time.time()})
    job = wait_for_job(folder)
    if refused is not None:
        supervisor.write_json(Path(job.result), failed(refused, folder / supervisor.LOG))
        return refused.exit_code
    signals = Signals()
    signals.listen()
    from trainer.loop import Interrupted

    try:
        result = do(job, folder, stop=lambda: signals.number)
        code = 0
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except Exception as error:  # ruff: ignore[blind-except] - told whole, in the log and result
        result = failed(error, folder / supervisor.LOG)
        code = from_result(result)
    supervisor.write_json(Path(job.result), result)
    return code


def _refused_cluster() -> HeadraceError | None:
    """Return why ``TF_CONFIG`` cannot be, before the imports that it would make useless."""
    try:
        cluster.check(cluster.read(os.environ.get(cluster.VARIABLE, "")))
    except HeadraceError as error:
        return error
    return None


def from_result(result: dict[str, Any]) -> int:
    """Return the exit code of the contract for a result."""
    from trainer.errors import from_facts

    return 0 if result["error"] is None else from_facts(result["error"]).exit_code


def leave(folder: Path, code: int) -> None:
    """Note the code for who cannot wait for this process, and end without TensorFlow's teardown."""
    supervisor.write_json(folder / supervisor.EXIT, {"code": code})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(Path(sys.argv[1]), main(sys.argv))
