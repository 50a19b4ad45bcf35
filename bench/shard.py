"""What ZeRO 1, 2 and 3 save and cost on local workers: `python bench/shard.py`.

A byte-level language model of 3.4 million weights and short windows, so that weights, gradients and
moments are most of the memory. For two and three workers, each a process of this machine, the
levels alternate in the same processes; memory is that of TensorFlow's own allocator on worker 0,
in MiB: `held` by the state all the time, and the `peak` of a step of two micro-batches beyond that.
Beside them the time of a step against that with shard none (the workers share the cores of this
machine, and talk through its loopback), and the greatest difference of a weight after ten steps
from those of one process that does all of it.

Prints one JSON line.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time

from shared import language

LEVELS = ("none", "optimizer", "gradients", "parameters")
WORKERS = (2, 3)
ROUNDS, STEPS = 2, 10
SEQUENCE, ROWS_A_WORKER = 32, 4


def main() -> None:
    from trainer import cluster

    found = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    for workers in WORKERS:
        addresses = cluster.free_addresses(workers)
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "worker"],
                env={**os.environ, cluster.VARIABLE: cluster.describe(addresses, rank),
                     "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path[1:]]),
                     "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CPU_ALLOCATOR_USE_BFC": "true"},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(workers)
        ]  # fmt: skip
        told = started[0].communicate()[0]
        for one in started:
            if one.wait():
                raise SystemExit(f"a worker of {workers} ended with {one.returncode}")
        found |= json.loads(told)
    print(json.dumps(found))


def worker() -> None:
    import tensorflow as tf

    from trainer import strategy as replicated

    replicas = replicated.choose()
    workers = replicas.workers.count
    rows = ROWS_A_WORKER * workers
    alone = made(replicated.Replicas(), "none", rows)
    for number in range(STEPS):
        step(alone, replicated.Replicas(), rows, number)
    right = alone.state.arrays()
    del alone
    seconds: dict[str, list[float]] = {level: [] for level in LEVELS}
    found = {}
    for _ in range(ROUNDS):
        for level in LEVELS:
            found[level] = measure(replicas, level, rows, right, seconds[level])
    for level, one in found.items():
        middle = statistics.median(seconds[level])
        one["step_ratio"] = round(middle / statistics.median(seconds["none"]), 2)
        one["step_seconds"] = round(middle, 3)
    if replicas.workers.rank == 0:
        print(json.dumps({"tensorflow": tf.__version__, f"workers_{workers}": found}))


def measure(replicas, level: str, rows: int, right: dict, seconds: list[float]) -> dict:
    import numpy as np
    import tensorflow as tf

    def info(kind: str) -> float:
        return tf.config.experimental.get_memory_info("CPU:0")[kind] / 2**20

    gc.collect()
    before = info("current")
    trained = made(replicas, level, rows)
    held = info("current") - before
    step(trained, replicas, rows, 0)
    tf.config.experimental.reset_memory_stats("CPU:0")
    for number in range(1, STEPS):
        started = time.perf_counter()
        step(trained, replicas, rows, number)
        seconds.append(time.perf_counter() - started)
    peak = info("peak") - before - held
    arrays = trained.state.arrays()
    worst = max(
        float(np.abs(arrays[name] - right[name]).max())
        for name in right
        if name.startswith("weight/")
    )
    return {"held": round(held, 1), "peak": round(peak, 1), "worst_difference": worst}


def made(replicas, level: str, rows: int) -> language.Trained:
    """Return a model with its state and step, for one level."""
    micro = ROWS_A_WORKER // 2 if replicas.workers.count > 1 else rows
    return language.trained(
        layers=4, width=256, heads=4, tokens=SEQUENCE, rows=rows, replicas=replicas,
        techniques={"micro_batch": micro, "recompute": 4, "shard": level}, schedule="constant",
    )  # fmt: skip


def step(trained: language.Trained, replicas, rows: int, number: int) -> None:
    """Do one step, and wait for it."""
    import numpy as np
    import tensorflow as tf

    from trainer import strategy as replicated

    random = np.random.default_rng(number)
    batch = {
        "tokens": random.integers(0, 256, (rows, SEQUENCE + 1)).astype(np.int32),
        "lengths": np.full(rows, SEQUENCE, np.int32),
        "weight": np.ones(rows, np.float32),
    }
    float(trained.step.whole(replicated.share(replicas, batch), tf.constant(number)).loss)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
