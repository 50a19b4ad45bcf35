"""What tracking and display cost a training: `python bench/tracking.py`.

A loop whose step takes about 50 ms of both cores trains nothing; it tells the journal what a real
one does, about every second. A tracking process and a display on a terminal follow the journal, as
in `headrace run`. Blocks with and without them alternate: without, both processes stand still.
Beside the ratio of step times, which a busy machine blurs, stand the processor seconds that each
part used while the loop ran, as a share of all that the machine's cores had to give in that time.

Prints one JSON line. `start_cpu_seconds` is spent before training begins, while data are read.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from components.provenance import collect_tags
from trainer import journal

BLOCKS = 6
BLOCK_SECONDS = 10.0
TICKS = os.sysconf("SC_CLK_TCK")

DISPLAY = """
import sys, time
from pathlib import Path
from pipeline import display
from trainer import journal
offset, ended = 0, False
with display.screen(as_json=False) as screen:
    while not ended:
        events, offset = journal.read(Path(sys.argv[1]), offset)
        for event in events:
            screen.on_event(event)
            ended = ended or event["event"] == "run_ended"
        time.sleep(0.1)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder))))


def measure(root: Path) -> dict:
    events = begin(root)
    tracking = subprocess.Popen(
        [sys.executable, "-m", "components.tracking", events, events.parent / "tracking.json"],
        stderr=subprocess.DEVNULL,
    )
    display = start_display(events)
    while not any(event["event"] == "tracking" for event in journal.read(events)[0]):
        time.sleep(0.2)
    start_cpu = cpu_seconds(tracking.pid)
    journal.append(
        events, "training_started", steps=100_000, epochs=1, global_batch=1024, micro_batch=64,
        accumulation_steps=16, precision="float32", planned_memory_bytes=10**9,
    )  # fmt: skip
    followers = {"tracking": tracking.pid, "display": display.pid}
    before = {name: cpu_seconds(pid) for name, pid in followers.items()}
    journal_seconds = 0.0
    steps: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(BLOCKS):
        journal_seconds += block(steps["with"], events)
        for pid in followers.values():
            os.kill(pid, signal.SIGSTOP)
        block(steps["without"], None)
        for pid in followers.values():
            os.kill(pid, signal.SIGCONT)
    machine_seconds = sum(steps["with"]) * len(os.sched_getaffinity(0))
    time.sleep(3)  # what is still pending counts too
    shares = {
        name: (cpu_seconds(pid) - before[name]) / machine_seconds for name, pid in followers.items()
    }
    shares["journal"] = journal_seconds / machine_seconds
    journal.append(events, "run_ended", status="succeeded", exit_code=0, seconds=1.0)
    for process in (tracking, display):
        process.wait(60)
    tags = collect_tags(".")
    medians = {name: statistics.median(one) for name, one in steps.items()}
    return {
        "bench": "tracking",
        "step_seconds": round(medians["without"], 5),
        "ratio_of_step_times": round(medians["with"] / medians["without"], 4),
        "cpu_share": {name: round(share, 5) for name, share in shares.items()},
        "cpu_share_of_all": round(sum(shares.values()), 5),
        "steps": len(steps["with"]),
        "start_cpu_seconds": round(start_cpu, 1),
        "load": os.getloadavg()[0],
        **{name: tags[name] for name in ("hardware.cpu", "hardware.cores", "version.python")},
    }


def begin(root: Path) -> Path:
    folder = root / "toy" / "logs" / "1"
    folder.mkdir(parents=True)
    spec = {
        "tracking_uri": f"sqlite:///{root}/mlflow.db", "artifact_root": str(root / "mlruns"),
        "experiment": "toy", "run_name": "1", "fingerprint": "f", "resume": False,
    }  # fmt: skip
    (folder / "tracking.json").write_text(json.dumps(spec))
    journal.append(folder / "events.jsonl", "run_started", run="1")
    for node in ("ExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "DataGate"):
        journal.append(folder / "events.jsonl", "node", id=node, state="done", why="", seconds=1.0)
    journal.append(folder / "events.jsonl", "node", id="Trainer", state="running", why="new")
    return folder / "events.jsonl"


def start_display(events: Path) -> subprocess.Popen:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", DISPLAY, str(events)], stdout=theirs, stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": "."},
    )  # fmt: skip
    os.close(theirs)
    threading.Thread(target=drain, args=(ours,), daemon=True).start()
    return process


def drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def block(taken: list[float], events: Path | None) -> float:
    """Run steps for `BLOCK_SECONDS`; return the seconds spent in telling the journal."""
    weights = np.ones((1024, 1024), np.float32)
    told, journal_seconds, end = time.perf_counter(), 0.0, time.perf_counter() + BLOCK_SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(SIZE):
            weights @ weights
        if events is not None and started - told >= 1.0:
            before = time.perf_counter()
            step = len(taken) + 1
            journal.append(
                events, "train_step", step=step, epoch=1, loss=1 / step, learning_rate=1e-3,
                gradient_norm=0.5, loss_scale=1.0, skipped_steps=0,
                examples_per_second=9000.0 + step, updates_per_second=20.0 + 1 / step,
            )  # fmt: skip
            told = time.perf_counter()
            journal_seconds += told - before
        taken.append(time.perf_counter() - started)
    return journal_seconds


def size_for(seconds: float) -> int:
    weights = np.ones((1024, 1024), np.float32)
    times = []
    for _ in range(30):
        started = time.perf_counter()
        weights @ weights
        times.append(time.perf_counter() - started)
    return max(1, round(seconds / statistics.median(times)))


SIZE = size_for(0.05)

if __name__ == "__main__":
    main()
