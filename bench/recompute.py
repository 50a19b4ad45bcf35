"""Recomputation: what a training step's activations take, and its time, without and with it.

    uv run python bench/recompute.py [--rounds 7] [--steps 3]

A language model of 12 blocks, width 256, 4 heads, 256 tokens, batch 8, float32, its loss taken a
chunk of tokens at a time, so that it is the blocks which count. Both variants are in one process
and take turns; medians of wall time and of processor time. The activations are the peak of
TensorFlow's allocator in a step, less what is there before it and less the gradients. One JSON
line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

LAYERS, WIDTH, HEADS, TOKENS, ROWS = 12, 256, 4, 256, 8


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def step_of(blocks: int):
    """Return a step that recomputes so many blocks, and the bytes of its gradients."""
    import numpy as np
    import tensorflow as tf

    from trainer.models import causal_lm
    from trainer.settings import (
        Features,
        LabelFeature,
        ModelSettings,
        Techniques,
        TextFeature,
        TrainingSettings,
    )
    from trainer.state import TrainState
    from trainer.step import make_step
    from trainer.strategy import Replicas

    features = Features(
        (), (), LabelFeature("text", "causal-lm", "string"), TextFeature("text", TOKENS)
    )
    shape = ModelSettings("causal-lm", layers=LAYERS, width=WIDTH, heads=HEADS, sequence=TOKENS)
    techniques = Techniques(ROWS, recompute=blocks, token_loss="chunked")
    settings = TrainingSettings(global_batch=ROWS, learning_rate=1e-4)
    built = causal_lm.build(shape, features, techniques, policy="float32", seed=1)
    state = TrainState(built.model, settings, total_steps=10_000, policy="float32")
    step = make_step(
        state, built.sums, settings=settings, techniques=techniques, replicas=Replicas()
    )
    tokens = np.random.default_rng(1).integers(0, 257, (ROWS, TOKENS + 1)).astype(np.int32)
    batch = {
        "tokens": tf.constant(tokens),
        "lengths": tf.fill([ROWS], TOKENS),
        "weight": tf.ones([ROWS]),
    }
    gradients = sum(4 * int(np.prod(one.shape)) for one in state.weights)
    return lambda number: step.whole(batch, tf.constant(number)).loss.numpy(), gradients


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import tensorflow as tf

    variants = {"plain": step_of(0), "recomputed": step_of(LAYERS)}
    memory, losses = {}, {}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for name, (step, gradients) in variants.items():
        step(0)
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        losses[name] = float(step(1))
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        memory[name] = peak - before - gradients
    for turn in range(options.rounds):
        for name in list(variants)[:: 1 if turn % 2 == 0 else -1]:
            wall, cpu = time.perf_counter(), processor_seconds()
            for number in range(options.steps):
                variants[name][0](number)
            seconds[name].append((
                (time.perf_counter() - wall) / options.steps,
                (processor_seconds() - cpu) / options.steps,
            ))
    wall, cpu = ({name: statistics.median(one[kind] for one in took)
                  for name, took in seconds.items()} for kind in (0, 1))  # fmt: skip
    for name, size in memory.items():
        print(f"{name:10} activations {size / 2**20:6.0f} MiB, {wall[name]:.3f} s a step, "
              f"{cpu[name]:.3f} processor seconds, loss {losses[name]:.4f}")  # fmt: skip
    shares = [table["recomputed"] / table["plain"] for table in (memory, wall, cpu)]
    print(f"recomputed, of plain: activations 1/{1 / shares[0]:.1f}, time {shares[1]:.2f}, "
          f"processor time {shares[2]:.2f}")  # fmt: skip
    print(json.dumps({
        "bench": "recompute", "activation_bytes": memory, "wall_seconds": wall,
        "processor_seconds": cpu, "activation_share": shares[0], "time_ratio": shares[1],
        "processor_time_ratio": shares[2], "losses": losses,
        "machine": platform.processor() or platform.machine(), "tensorflow": version("tensorflow"),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
