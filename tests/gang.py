"""Runs one function in several worker processes that form a cluster.

The function stands at the top of a test file, takes nothing, and returns what can be pickled. Each
worker imports TensorFlow anew, so let one run do many cases.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer import cluster

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ended:
    """How one worker ended: its exit code, what it returned if it did, and what it printed."""

    code: int
    value: Any
    output: str


def run(function: Callable[[], Any], *, workers: int, seconds: float = 400) -> list[Any]:
    """Return what the function returned on each worker, by rank; fails when one of them did."""
    ended = end(function, workers=workers, seconds=seconds)
    for rank, one in enumerate(ended):
        assert one.code == 0, f"worker {rank} of {workers}: {one.code}\n{one.output[-4000:]}"
    return [one.value for one in ended]


def end(
    function: Callable[[], Any],
    *,
    workers: int,
    seconds: float = 400,
    environment: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Return how each worker ended, by rank; none of them outlives `seconds`."""
    file = function.__code__.co_filename
    addresses = cluster.free_addresses(workers)
    with tempfile.TemporaryDirectory() as folder:
        started = [
            _start(file, function.__name__, Path(folder) / str(rank), {
                cluster.VARIABLE: cluster.describe(addresses, rank), **(environment or {})
            })
            for rank in range(workers)
        ]  # fmt: skip
        try:
            deadline = time.monotonic() + seconds
            for one in started:
                one.wait(max(1.0, deadline - time.monotonic()))
        finally:
            for one in started:
                one.kill()
                one.wait()
        return [_ended(one, Path(folder) / str(rank)) for rank, one in enumerate(started)]


def _start(
    file: str, name: str, place: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    place.mkdir()
    with open(place / "output", "wb") as output:
        return subprocess.Popen(
            [sys.executable, __file__, file, name, str(place / "value")],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_CPU_ALLOCATOR_USE_BFC": "true",
                 # Or tests/trainer, which is no package, would be taken for trainer.
                 "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def _ended(process: subprocess.Popen[bytes], place: Path) -> Ended:
    value = place / "value"
    return Ended(
        process.returncode,
        pickle.loads(value.read_bytes()) if value.exists() else None,
        (place / "output").read_text(errors="replace"),
    )


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(file: str, name: str, place: str) -> None:
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(file).parent)]
    described = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    Path(place).write_bytes(pickle.dumps(getattr(module, name)()))


if __name__ == "__main__":
    _work(*sys.argv[1:])
