"""What each lever of a language model saves and costs, on one process.

    uv run python bench/levers.py [--rounds 5] [--only recompute]

- recompute: 12 blocks, width 256, 256 tokens, batch 8, the loss chunked so that it is the blocks
  which count. Activations are the peak of a step, less the state and the gradients.
- token_loss: the loss and its gradients alone, of 16,384 tokens of width 256, at 257 and at 8,192
  tokens in the vocabulary. Memory is the peak, less what is there before and less the gradients.
- accumulation: one step of 16 micro-batches against 16 steps of one micro-batch.
- together: micro-batches, recompute, chunked attention and chunked loss against none of them, on
  the source of Python's standard library, the model of `headrace example stdlib-lm`. Memory is the
  peak of a step, all of it; the losses of 200 steps are compared.

Variants are in one process and take turns; medians of wall time and of processor time, float32.
Memory is that of TensorFlow's allocator. One JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from shared import language

LAYERS = 12
SHAPE = {"layers": LAYERS, "width": 256, "heads": 4, "tokens": 256, "rows": 8}
LOSS_TOKENS, LOSS_WIDTH = 16_384, 256
PARTS = 16
STDLIB = {"layers": 4, "width": 128, "heads": 4, "tokens": 256, "rows": 16}
CURVE = 200
"""Steps whose losses are compared."""
CHUNKED = {"attention": "chunked", "token_loss": "chunked"}


def timed(
    runs: Mapping[str, Callable[[int], object]], *, rounds: int, steps: int
) -> dict[str, dict[str, float]]:
    """Return the median seconds of a run by variant; the variants take turns.

    Args:
        runs: each does its work once, given a number.
        rounds: turns of each.
        steps: runs a turn.
    """
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            wall, cpu = time.perf_counter(), language.processor_seconds()
            for number in range(steps):
                runs[name](number)
            took[name].append((
                (time.perf_counter() - wall) / steps,
                (language.processor_seconds() - cpu) / steps,
            ))
    return {
        name: {
            "seconds": statistics.median(one[0] for one in found),
            "processor_seconds": statistics.median(one[1] for one in found),
        }
        for name, found in took.items()
    }


def compared(name: str, against: str, memory: Mapping[str, int], times: Any) -> dict[str, Any]:
    """Return what the second variant saves and costs beside the first, and print it."""
    share = memory[name] / memory[against]
    ratios = {kind: times[name][kind] / times[against][kind] for kind in times[name]}
    print(f"  {name}: {memory[name] / 2**20:.1f} of {memory[against] / 2**20:.1f} MiB "
          f"(1/{1 / share:.1f}), time {ratios['seconds']:.2f}, processor time "
          f"{ratios['processor_seconds']:.2f}", flush=True)  # fmt: skip
    return {"memory_share": share, "bytes": dict(memory), "time_ratio": ratios["seconds"],
            "processor_time_ratio": ratios["processor_seconds"]}  # fmt: skip


def recompute(rounds: int) -> dict[str, Any]:
    batch = language.batch_of(language.drawn(SHAPE["rows"], SHAPE["tokens"]))
    runs, memory = {}, {}
    for name, blocks in (("plain", 0), ("recomputed", LAYERS)):
        made = language.trained(
            **SHAPE,
            techniques={"micro_batch": SHAPE["rows"], "recompute": blocks, "token_loss": "chunked"},
        )
        made.update(batch, 0)
        memory[name] = made.peak_bytes(batch, 1) - made.held_bytes - made.weight_bytes
        runs[name] = lambda number, made=made: made.update(batch, number)
    return compared("recomputed", "plain", memory, timed(runs, rounds=rounds, steps=3))


def token_loss(rounds: int) -> dict[str, Any]:
    import tensorflow as tf

    from trainer.order import in_program_order, keep_graphs
    from trainer.token_loss import pick_chunk, plain_token_loss_sum, token_loss_sum

    keep_graphs()
    found = {}
    for vocabulary in (257, 8192):
        hidden = tf.random.stateless_normal([LOSS_TOKENS, LOSS_WIDTH], [1, 2])
        kernel = tf.random.stateless_normal([LOSS_WIDTH, vocabulary], [1, 3]) / LOSS_WIDTH**0.5
        labels = tf.random.stateless_uniform([LOSS_TOKENS], [1, 4], 0, vocabulary, tf.int32)
        weights = tf.ones([LOSS_TOKENS])

        def chunked(*one: Any, chunk: int = pick_chunk(vocabulary)) -> tf.Tensor:
            return token_loss_sum(*one, chunk=chunk)

        def gradients_of(loss_sum: Any) -> Callable[..., Any]:
            def gradients(*one: tf.Tensor) -> list[tf.Tensor]:
                with tf.GradientTape() as tape:
                    tape.watch(one[:2])
                    loss = loss_sum(*one)
                return [loss, *tape.gradient(loss, one[:2])]

            return tf.function(in_program_order(gradients), autograph=False)

        given, runs, memory = (hidden, kernel, labels, weights), {}, {}
        results = 4 * LOSS_WIDTH * (LOSS_TOKENS + vocabulary)
        for name, loss_sum in (("plain", plain_token_loss_sum), ("chunked", chunked)):
            run = gradients_of(loss_sum)
            run(*given)
            before = tf.config.experimental.get_memory_info("CPU:0")["current"]
            tf.config.experimental.reset_memory_stats("CPU:0")
            run(*given)
            peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
            memory[name] = peak - before - results
            runs[name] = lambda _, run=run, given=given: run(*given)[0].numpy()
        print(f"  {vocabulary} tokens in the vocabulary:")
        found[str(vocabulary)] = compared(
            "chunked", "plain", memory, timed(runs, rounds=rounds, steps=3)
        )
    return found


def accumulation(rounds: int) -> dict[str, Any]:
    shape = {"layers": 4, "width": 256, "heads": 4, "tokens": 256}
    windows = language.drawn(2 * PARTS, 256)
    whole = language.batch_of(windows)
    parts = [language.batch_of(windows[one : one + 2]) for one in range(0, 2 * PARTS, 2)]
    at_once = language.trained(**shape, rows=2 * PARTS, techniques={"micro_batch": 2})
    single = language.trained(**shape, rows=2, techniques={"micro_batch": 2})

    def one_by_one(number: int) -> None:
        for part in parts:
            single.update(part, number)

    runs = {"steps": one_by_one, "micro_batches": lambda number: at_once.update(whole, number)}
    for run in runs.values():
        run(0)
    memory = {
        "steps": single.peak_bytes(parts[0], 1),
        "micro_batches": at_once.peak_bytes(whole, 1),
    }
    times = timed(runs, rounds=rounds, steps=1)
    return compared("micro_batches", "steps", memory, times)


def together(rounds: int) -> dict[str, Any]:
    rows, tokens = STDLIB["rows"], STDLIB["tokens"]
    text = language.source_text(CURVE * rows, tokens)
    batches = [language.batch_of(text[one * rows : (one + 1) * rows]) for one in range(CURVE)]
    levers = {"micro_batch": 4, "recompute": STDLIB["layers"], **CHUNKED}
    runs, memory, losses = {}, {}, {}
    for name, techniques in (("plain", {"micro_batch": rows}), ("levers", levers)):
        made = language.trained(
            **STDLIB, techniques=techniques, learning_rate=2e-3, warmup_steps=60
        )
        losses[name] = [made.update(batch, number) for number, batch in enumerate(batches)]
        memory[name] = made.peak_bytes(batches[0], CURVE)
        runs[name] = lambda number, made=made: made.update(batches[number], number)
    difference = max(
        abs(one - other) for one, other in zip(losses["plain"], losses["levers"], strict=True)
    )
    times = timed(runs, rounds=rounds, steps=3)
    found = compared("levers", "plain", memory, times)
    ends = {name: statistics.fmean(curve[-20:]) for name, curve in losses.items()}
    print(f"  greatest difference of a loss in {CURVE} steps {difference:.1e} nats; "
          f"last losses {ends['plain']:.4f} and {ends['levers']:.4f}")  # fmt: skip
    return found | {"loss_difference": difference, "first_loss": losses["plain"][0],
                    "last_losses": ends}  # fmt: skip


def main() -> None:
    measures = {one.__name__: one for one in (recompute, token_loss, accumulation, together)}
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=measures)
    options = parser.parse_args()
    language.prepare()
    import tensorflow as tf

    found = {}
    for name, measure in measures.items():
        if options.only in {None, name}:
            print(f"{name}:", flush=True)
            found[name] = measure(options.rounds)
            gc.collect()
    print(json.dumps({
        "bench": "levers", **found, "cores": os.cpu_count(),
        "machine": platform.processor() or platform.machine(), "tensorflow": version("tensorflow"),
        "devices": len(tf.config.list_physical_devices()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
