"""The training processes from outside: started, given their job, watched, started again.

They meet in a folder: ``worker.json`` (who waits), ``job.json`` (what to do, taken by renaming
it), ``result.json`` (how it ended, whole or absent), ``worker.log``. The process that starts the
worker early need not be the one that gives it the job. Of several workers, worker k beyond the
first has the same in ``worker-k``; when one of them dies, all are started again, since the others
wait for it in the middle of a step. Standard library only, no TensorFlow.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer import cluster, journal, pulse
from trainer.errors import WorkerLost, from_facts
from trainer.settings import Job, to_json

JOB, TAKEN, RESULT, LOG, WAITING, EXIT = (
    "job.json", "job.taken.json", "result.json", "worker.log", "worker.json", "exit.json",
)  # fmt: skip
POLL_SECONDS = 0.05
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0)
STOP_SECONDS = 30.0
LOST_SECONDS = 2.0
"""How long the other workers may go on once one has died: they wait for it in a collective."""
SILENT_SECONDS = 120.0
"""A worker that does no step for so long, and for `PATIENCE` of its slowest steps, hangs."""
PATIENCE = 20.0
UNKNOWN_SECONDS = 1800.0
"""The same where nobody knows how long it takes: imports, tracing, an evaluation, the export."""
LOOK_SECONDS = 1.0
RANK = "HEADRACE_RANK"
"""The environment's variable that tells a worker which of those on this machine it is."""
PR_SET_PDEATHSIG = 1
STOPPED = {"T", "t"}
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
    folder: str | os.PathLike[str],
    *,
    workers: int = 1,
    python: str = sys.executable,
    restarts: int = 0,
    module: str = "trainer.worker",
) -> list[subprocess.Popen[bytes]]:
    """Start workers that import TensorFlow and wait for a job in `folder`; return them by rank.

    They end with the calling process. The output of each goes to its ``worker.log``.

    Args:
        folder: where they meet.
        workers: how many.
        python: that runs them.
        restarts: how often workers of this job were started before.
        module: what they run; another one has others train, as on a cluster.
    """
    again = {cluster.RESTARTS: str(restarts)}
    if workers == 1:
        return [_start(Path(folder), again, python=python, module=module)]
    addresses = cluster.free_addresses(workers)
    return [
        _start(
            place,
            {cluster.VARIABLE: cluster.describe(addresses, rank), RANK: str(rank), **again},
            python=python,
            module=module,
        )
        for rank, place in enumerate(places(Path(folder), workers))
    ]


def places(folder: Path, workers: int) -> list[Path]:
    """Return the folder of each worker, by rank."""
    return [folder, *(folder / f"worker-{rank}" for rank in range(1, workers))]


def _start(
    folder: Path, told: dict[str, str], *, python: str, module: str
) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WAITING, JOB, TAKEN, EXIT, pulse.NAME):
        (folder / name).unlink(missing_ok=True)
    root = str(Path(__file__).resolve().parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "HEADRACE_PARENT": str(os.getpid()),
        **told,
    }
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            [python, "-m", module, str(folder)],
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

    The workers that wait in `folder` take it, or new ones. When one dies, the job goes on from its
    last checkpoint in others, at most `max_restarts` times. An error that a worker told of is not
    tried again: it would come again.

    Returns: the content of ``result.json``.

    Raises:
        from_facts: the error that a worker told of.
        WorkerLost: when it died more often than that, or was asked to end.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = workers_of(job)
    results = [
        Path(job.result or folder / RESULT).resolve(),
        *((place / RESULT).resolve() for place in places(folder, count)[1:]),
    ]
    first = ""
    for attempt in range(max_restarts + 1):
        gang = _Gang.waiting_in(folder, count) or _Gang.started_in(
            folder, count, python=python, restarts=attempt
        )
        for worker, result in zip(gang.workers, results, strict=True):
            result.unlink(missing_ok=True)
            write_json(worker.folder / JOB, to_json(replace(job, result=str(result))))
        try:
            codes = gang.wait(is_watched=job.purpose != "plan")
        except BaseException:
            gang.stop()
            raise
        told = {
            rank: json.loads(one.read_text(encoding="utf-8"))
            for rank, one in enumerate(results)
            if one.exists()
        }
        for one in told.values():
            # That it lost another one is no error of its own.
            if one["status"] != "ok" and one["error"]["type"] != WorkerLost.__name__:
                raise from_facts(one["error"])
        if 0 in told and told[0]["status"] == "ok":
            return told[0]
        silent = [rank for rank, code in codes.items() if code != 0 and rank not in told]
        rank = gang.hung if gang.hung is not None else (silent or list(codes))[0]
        code, log = codes[rank], gang.workers[rank].folder / LOG
        who = f"worker {rank} of {count}" if count > 1 else "the training process"
        how = f"died {describe_exit(code)}" if gang.hung is None else gang.describe_hang()
        if gang.hung is None and code in INTERRUPTED_CODES:
            raise WorkerLost(
                f"{who} was asked to end by {INTERRUPTED_CODES[code]}",
                where=str(log), right="run again to go on from its last checkpoint",
            )  # fmt: skip
        first = first or f"{who} {how}"
        if attempt < max_restarts:
            journal.append(
                job.events, "warning", id="Trainer",
                message=f"{who} {how}; training goes on from its last checkpoint "
                f"(restart {attempt + 1} of {max_restarts}; its log is {log})",
            )  # fmt: skip
            time.sleep(BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)])
    raise WorkerLost(
        f"{who} {how}, and training was started {max_restarts + 1} times"
        if count > 1 or gang.hung is not None
        else f"{who} died {max_restarts + 1} times, the last time {describe_exit(code)}",
        where=str(log),
        right=(f"the first time {first}; " if first != f"{who} {how}" else "")
        + "the log says more; run again to go on from the last checkpoint",
    )


def workers_of(job: Job) -> int:
    """Return how many processes do a job here: a cluster from outside has its own, one of them us.

    A plan asks one process about all of them.
    """
    is_one_of_many = cluster.VARIABLE in os.environ
    return 1 if is_one_of_many or job.purpose == "plan" else job.training.workers


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

    def end(self, until: float) -> None:
        """Make it end when it has not by then, in seconds of the monotonic clock."""
        while self.is_alive() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self.send(signal.SIGKILL)
        if self.child is not None:
            self.child.wait()

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.is_alive():
            os.kill(self.pid, number)


class Silence(pulse.Silence):
    """How long a worker of a folder has given no sign of life, and whether that is too long."""

    def __init__(self) -> None:
        super().__init__(LOOK_SECONDS)

    def is_too_long(self, folder: Path) -> bool:
        """Look, now and then; tell whether the worker of the folder hangs."""
        if not self.is_due():
            return False
        beats, slowest = pulse.read(folder)
        self.look(beats)
        bound = max(SILENT_SECONDS, PATIENCE * slowest) if slowest else UNKNOWN_SECONDS
        return self.seconds > bound


class _Gang:
    """The workers of one training on this machine, by rank."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self.workers = workers
        self.hung: int | None = None
        self._silence = [Silence() for _ in workers]

    @classmethod
    def waiting_in(cls, folder: Path, count: int) -> _Gang | None:
        """Return the live workers that wait in `folder`, if there are so many; others are ended."""
        found = [_Worker.waiting_in(place) for place in places(folder, count)]
        live = [one for one in found if one is not None]
        if len(live) == count:
            return cls(live)
        cls(live).stop()
        return None

    @classmethod
    def started_in(cls, folder: Path, count: int, *, python: str, restarts: int) -> _Gang:
        """Return new workers."""
        children = start(folder, workers=count, python=python, restarts=restarts)
        return cls([
            _Worker(place, child)
            for place, child in zip(places(folder, count), children, strict=True)
        ])

    def wait(self, *, is_watched: bool = True) -> dict[int, int | None]:
        """Wait until all have ended, of which none goes on long without another.

        Args:
            is_watched: whether they give signs of life, and one that gives none is ended.

        Returns: the exit codes by rank, in the order in which they ended.
        """
        codes: dict[int, int | None] = {}
        while len(codes) < len(self.workers):
            for rank, worker in enumerate(self.workers):
                if rank not in codes and not worker.is_alive():
                    codes[rank] = worker.wait()
            if any(codes.values()) and len(codes) < len(self.workers):
                self.stop(seconds=LOST_SECONDS)
            elif is_watched and self.hung is None and len(codes) < len(self.workers):
                self.hung = self._find_hung(codes)
                if self.hung is not None:
                    self.stop(seconds=LOST_SECONDS)
            time.sleep(POLL_SECONDS)
        return codes

    def _find_hung(self, ended: Collection[int]) -> int | None:
        """Return the worker that hangs; of those that wait for one another, the one behind."""
        live = [rank for rank in range(len(self.workers)) if rank not in ended]
        # Each of them is looked at, so that it is known who is behind.
        if True not in [self._silence[one].is_too_long(self.workers[one].folder) for one in live]:
            return None
        stopped = [rank for rank in live if _state(self.workers[rank].pid) in STOPPED]
        return min(stopped or live, key=lambda rank: self._silence[rank].beats)

    def describe_hang(self) -> str:
        """Return what the worker that hung did, after it was ended."""
        return f"hung: it did no step for {self._silence[self.hung or 0].seconds:.0f} s"

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Ask all to save and end; make those end that do not."""
        for one in self.workers:
            one.send(signal.SIGTERM)
        until = time.monotonic() + seconds
        for one in self.workers:
            one.end(until)


def _told_code(folder: Path) -> int | None:
    """Return the code that a worker noted before it ended, if it could."""
    try:
        return int(json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError):
        return None


def _start_time(pid: int) -> str:
    """Return when a live process started (field 22 of proc(5)'s stat); empty: there is none."""
    fields = _facts(pid)
    return "" if not fields or fields[0] in {"Z", "X"} else fields[19]


def _state(pid: int) -> str:
    """Return a process's state as proc(5) names it; empty: there is none."""
    return (_facts(pid) or [""])[0]


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped, as by SIGSTOP."""
    return _state(pid) in STOPPED


def _facts(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that a reader sees whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
