"""The training process from outside: started, given its job, watched, started again.

They meet in a folder: ``worker.json`` (who waits), ``job.json`` (what to do, taken by renaming
it), ``result.json`` (how it ended, whole or absent), ``worker.log``. The process that starts the
worker early need not be the one that gives it the job. Standard library only, no TensorFlow.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.errors import WorkerLost, from_facts
from trainer.settings import Job, to_json

JOB, TAKEN, RESULT, LOG, WAITING, EXIT = (
    "job.json", "job.taken.json", "result.json", "worker.log", "worker.json", "exit.json",
)  # fmt: skip
POLL_SECONDS = 0.05
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0)
STOP_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
INTERRUPTED_CODES = {128 + signal.SIGINT: "SIGINT", 128 + signal.SIGTERM: "SIGTERM"}


def die_with_parent(parent: int = 0) -> None:
    """Make the kernel end this process with SIGKILL when the one that started it ends.

    Args:
        parent: process id of that one, where known: when it has ended already, so does this one.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)


def start(
    folder: str | os.PathLike[str], *, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """Start a worker that imports TensorFlow and waits for a job in `folder`.

    It ends with the calling process. Its output goes to ``worker.log``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WAITING, JOB, TAKEN, EXIT):
        (folder / name).unlink(missing_ok=True)
    root = str(Path(__file__).resolve().parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "HEADRACE_PARENT": str(os.getpid()),
    }
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            [python, "-m", "trainer.worker", str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    write_json(folder / WAITING, {"pid": process.pid, "started": _start_time(process.pid)})
    return process


def run(
    job: Job,
    folder: str | os.PathLike[str],
    *,
    max_restarts: int,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Have the job done and return its result.

    The worker that waits in `folder` takes it, or a new one. When the worker dies, the job goes on
    from its last checkpoint in another, at most `max_restarts` times. An error that the worker
    told of is not tried again: it would come again.

    Returns: the content of ``result.json``.

    Raises:
        HeadraceError: the one that the worker told of.
        WorkerLost: when it died more often than that, or was asked to end.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result = Path(job.result or folder / RESULT).resolve()
    job = replace(job, result=str(result))
    for attempt in range(max_restarts + 1):
        worker = _Worker.waiting_in(folder) or _Worker(folder, start(folder, python=python))
        result.unlink(missing_ok=True)
        write_json(folder / JOB, to_json(job))
        try:
            code = worker.wait()
        except BaseException:
            worker.stop()
            raise
        if result.exists():
            return _accept(json.loads(result.read_text(encoding="utf-8")))
        if code in INTERRUPTED_CODES:
            raise WorkerLost(
                f"the training process was asked to end by {INTERRUPTED_CODES[code]}",
                where=str(folder / LOG), right="run again to go on from its last checkpoint",
            )  # fmt: skip
        if attempt < max_restarts:
            time.sleep(BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)])
    raise WorkerLost(
        f"the training process died {max_restarts + 1} times, the last time {describe_exit(code)}",
        where=str(folder / LOG),
        right="the log says more; run again to go on from the last checkpoint",
    )


def _accept(result: dict[str, Any]) -> dict[str, Any]:
    if result["status"] != "ok":
        raise from_facts(result["error"])
    return result


def describe_exit(code: int | None) -> str:
    """Return what an exit code says, as `subprocess.Popen.returncode` gives it."""
    if code is None:
        return "with no exit code that this process could see"
    if code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name
    hint = " (often: the machine ran out of memory)" if -code == signal.SIGKILL else ""
    return f"by signal {-code}, {name}{hint}"


class _Worker:
    """A worker process, a child of this one or not."""

    def __init__(
        self, folder: Path, child: subprocess.Popen[bytes] | None, pid: int = 0, started: str = ""
    ) -> None:
        self.folder = folder
        self.child = child
        self.pid = child.pid if child else pid
        self.started = started

    @classmethod
    def waiting_in(cls, folder: Path) -> _Worker | None:
        """Return the live worker that waits for a job in `folder`, if there is one."""
        try:
            known = json.loads((folder / WAITING).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if (folder / TAKEN).exists() or (folder / JOB).exists():
            return None
        one = cls(folder, None, int(known["pid"]), str(known["started"]))
        return one if one.is_alive() else None

    def is_alive(self) -> bool:
        """Tell whether it still runs; a zombie does not, nor another process of its number."""
        if self.child is not None:
            return self.child.poll() is None
        return _start_time(self.pid) == self.started

    def wait(self) -> int | None:
        """Wait until it ends; return the exit code, or None when it is not a child of this one."""
        while self.is_alive():
            time.sleep(POLL_SECONDS)
        return self.child.returncode if self.child is not None else _told_code(self.folder)

    def stop(self) -> None:
        """Ask it to save and end; make it end when it does not."""
        until = time.monotonic() + STOP_SECONDS
        self._send(signal.SIGTERM)
        while self.is_alive() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self._send(signal.SIGKILL)
        if self.child is not None:
            self.child.wait()

    def _send(self, number: int) -> None:
        if self.is_alive():
            os.kill(self.pid, number)


def _told_code(folder: Path) -> int | None:
    """Return the code that a worker noted before it ended, if it could."""
    try:
        return int(json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError):
        return None


def _start_time(pid: int) -> str:
    """Return when a live process started (field 22 of proc(5)'s stat); empty: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that a reader sees whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
