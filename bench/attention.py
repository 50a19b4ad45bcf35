"""Chunked attention against the plain one: memory and time, forward and backward.

    uv run python bench/attention.py [--tokens 8192] [--rounds 3]

One sequence, 2 heads of 32, float32, full and causal; then 32,768 tokens with chunked attention
alone, and its gradients' error against plain attention in float64 at 1,000 tokens. Memory is the
peak of TensorFlow's allocator in a call, less what is there before. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from importlib.metadata import version
from typing import Any

from shared import language

HEADS, DEPTH, LONG, SHORT = 2, 32, 32_768, 1_000


def call_of(attend: Any, causal: bool) -> Any:
    import tensorflow as tf

    @tf.function(autograph=False)
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            out = attend(query, key, value, causal=causal)
            loss = tf.reduce_sum(tf.square(out))
        return [out, *tape.gradient(loss, [query, key, value])]

    return run


def drawn(tokens: int, dtype: Any) -> list[Any]:
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(1)
    found = [random.normal(size=(1, HEADS, tokens, DEPTH)) for _ in range(3)]
    return [tf.constant(found[0] / DEPTH**0.5, dtype), *(tf.constant(x, dtype) for x in found[1:])]


def peak_of(run: Any, tensors: list[Any]) -> int:
    import tensorflow as tf

    run(*tensors)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    run(*tensors)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before


def seconds_of(run: Any, tensors: list[Any]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    run(*tensors)[0].numpy()
    return time.perf_counter() - wall, time.process_time() - processor


def compare(tokens: int, rounds: int, *, causal: bool) -> dict[str, float]:
    import tensorflow as tf

    from trainer.attention import attention
    from trainer.chunked_attention import chunked_attention

    runs = {"plain": call_of(attention, causal), "chunked": call_of(chunked_attention, causal)}
    tensors = drawn(tokens, tf.float32)
    peaks = {name: peak_of(run, tensors) for name, run in runs.items()}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            took[name].append(seconds_of(run, tensors))
    wall, processor = (
        {name: statistics.median(one[kind] for one in found) for name, found in took.items()}
        for kind in (0, 1)
    )
    memory = peaks["plain"] / peaks["chunked"]
    print(
        f"{tokens} tokens, {'causal' if causal else 'full'}: memory 1/{memory:.0f} "
        f"({peaks['chunked'] / 2**20:.0f} of {peaks['plain'] / 2**20:.0f} MiB), "
        f"time {wall['chunked'] / wall['plain']:.2f}, "
        f"processor time {processor['chunked'] / processor['plain']:.2f}",
        flush=True,
    )
    return {
        "memory_ratio": memory,
        "time_ratio": wall["chunked"] / wall["plain"],
        "processor_time_ratio": processor["chunked"] / processor["plain"],
    }


def error_of() -> float:
    """Return the largest error of values and gradients, of their largest entry."""
    import numpy as np
    import tensorflow as tf

    from trainer.attention import attention
    from trainer.chunked_attention import chunked_attention

    errors = []
    for causal in (False, True):
        exact = call_of(attention, causal)(*drawn(SHORT, tf.float64))
        found = call_of(chunked_attention, causal)(*drawn(SHORT, tf.float32))
        for one, other in zip(found, exact, strict=True):
            errors.append(np.abs(one - other.numpy()).max() / np.abs(other).max())
    return float(max(errors))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    language.prepare()
    import tensorflow as tf

    from trainer.chunked_attention import chunked_attention

    found = {
        name: compare(options.tokens, options.rounds, causal=name == "causal")
        for name in ("full", "causal")
    }
    run, tensors = call_of(chunked_attention, True), drawn(LONG, tf.float32)
    peak = peak_of(run, tensors)
    seconds = seconds_of(run, tensors)[0]
    error = error_of()
    print(f"{LONG} tokens, causal, chunked: {peak / 2**20:.0f} MiB, {seconds:.1f} s; largest error "
          f"against float64 at {SHORT} tokens {error:.1e}")  # fmt: skip
    print(json.dumps({
        "bench": "attention", **found, "long_peak_bytes": peak, "long_seconds": seconds,
        "error": error, "tensorflow": version("tensorflow"),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
