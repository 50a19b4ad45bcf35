"""What saves and the Prometheus endpoint cost a training: `python bench/checkpoints.py`.

One process trains a table of ten numbers with the default model and the default interval of 200
steps. Blocks of 200 steps alternate: plain; with a save at their beginning, written beside the
steps; with the endpoint watched, scraped every 5 s. A block's cost is what it takes beyond a plain
one, in per cent, the medians of the blocks. Beside it stands what the training thread itself spent
on it (the copy of the state; the observations of a step), which other programs of the machine
disturb less.

Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
BLOCKS, STEPS, ROWS, COLUMNS, BATCH = 4, 200, 1_000_000, 10, 256
SCRAPE_SECONDS = 5.0
KINDS = ("plain", "saved", "watched")


def write_columns(folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for index in range(COLUMNS):
        np.save(folder / f"{index}.values.npy", random.normal(size=ROWS))
        np.save(folder / f"{index}.present.npy", np.ones(ROWS, bool))
    np.save(folder / "label.npy", random.integers(0, 2, ROWS).astype(np.int32))
    described = {
        "rows": ROWS,
        "features": {f"x{index}": {"kind": "float", "index": index} for index in range(COLUMNS)},
        "label": {"kind": "int", "index": COLUMNS},
    }
    (folder / "columns.json").write_text(json.dumps(described))


def make_run(folder: Path):
    from trainer import loop
    from trainer.settings import (
        CheckpointSettings,
        Features,
        Job,
        LabelFeature,
        ModelSettings,
        NumberFeature,
        TrainingSettings,
    )

    write_columns(folder / "columns")
    edges = (-2.0, -1.0, 0.0, 1.0, 2.0)
    features = Features(
        tuple(NumberFeature(f"x{i}", "float", edges, 0.0, 1.0) for i in range(COLUMNS)), (),
        LabelFeature("late", "binary", "int", ("0", "1"), (0.5, 0.5)),
    )  # fmt: skip
    columns = str(folder / "columns")
    job = Job(
        model=ModelSettings(),
        # Fewer steps than an epoch has are done: no evaluation is in the way.
        training=TrainingSettings(steps=10**6, global_batch=BATCH),
        checkpoint=CheckpointSettings(every_steps=10**6), features=features, train=columns,
        eval=columns, checkpoints=str(folder / "checkpoints"), export="",
        events=str(folder / "events.jsonl"), result="",
    )  # fmt: skip
    run = loop.Run(job)
    run.fitted.choose()
    run.announce()
    return run


def main() -> None:
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from trainer import monitoring
    from trainer import strategy as replicated

    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        metrics = monitoring.Metrics(0, rank=0, restarts=0)
        metrics.begin(steps=10**6, done=0, tokens=1, every_steps=STEPS, scaled=False)
        address = f"http://127.0.0.1:{metrics.address.rpartition(':')[2]}/metrics"
        batches = [replicated.share(run.replicas, run.batches.at(place)) for place in range(128)]
        blocks: dict[str, list[float]] = {kind: [] for kind in KINDS}
        own: dict[str, list[float]] = {"saved": [], "watched": []}
        for number in range(1 + BLOCKS):
            for kind in KINDS:
                seconds, mine = block(run, batches, kind, metrics, address)
                if number:  # the first of each traces
                    blocks[kind].append(seconds)
                    if kind in own:
                        own[kind].append(mine / seconds)
        size = sum(one.stat().st_size for one in Path(folder).rglob("state.npy"))
        metrics.close(most_seconds=0)
    plain = statistics.median(blocks["plain"])
    found = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "tensorflow": tf.__version__,
        "step_seconds": round(plain / STEPS, 4),
        "state_bytes": size,
        "blocks": BLOCKS,
        "spread_percent": percent(max(blocks["plain"]) / min(blocks["plain"]) - 1),
    }
    for kind, name in (("saved", "save"), ("watched", "monitoring")):
        found[f"{name}_percent"] = percent(statistics.median(blocks[kind]) / plain - 1)
        found[f"{name}_own_percent"] = percent(statistics.median(own[kind]))
    print(json.dumps(found))


def percent(share: float) -> float:
    return round(100 * share, 3)


def block(run, batches, kind: str, metrics, address: str) -> tuple[float, float]:
    """Do so many steps; return the seconds, and those that the training thread gave to the kind."""
    from trainer.monitoring import Metrics

    spent = 0.0
    stop = threading.Event()
    if kind == "watched":
        shown: Metrics = Timed(metrics)
        run.voice.metrics = shown
        threading.Thread(target=scrape, args=(address, stop), daemon=True).start()
    began = time.perf_counter()
    if kind == "saved":
        run.save()
        spent = time.perf_counter() - began
    for place in range(STEPS):
        run.one_step(batches[place % len(batches)])
    if kind == "saved":
        waited = time.perf_counter()
        run.keeping.wait()
        spent += time.perf_counter() - waited
    seconds = time.perf_counter() - began
    stop.set()
    if kind == "watched":
        run.voice.metrics, spent = None, shown.seconds
    return seconds, spent


def scrape(address: str, stop: threading.Event) -> None:
    while not stop.wait(SCRAPE_SECONDS):
        urllib.request.urlopen(address, timeout=10).read()


class Timed:
    """The metrics, with the time that they take of the training thread."""

    def __init__(self, metrics) -> None:
        self.metrics = metrics
        self.seconds = 0.0

    def __getattr__(self, name: str):
        function = getattr(self.metrics, name)

        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


if __name__ == "__main__":
    main()
