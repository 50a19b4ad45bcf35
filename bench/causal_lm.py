"""Training a language model: our step against Keras's `fit` and PyTorch, tokens a second.

    uv run python bench/causal_lm.py [--rounds 7] [--steps 6] [--threads 2]

6 layers, width 256, 4 heads, 256 tokens, batch 8, 257 tokens in the vocabulary, feed-forwards four
times as wide (ours relu squared, theirs relu), AdamW, gradients clipped to norm 1, float32. Keras's
model is of its own layers, compiled as `fit` does by itself (XLA); PyTorch's is eager, with fused
projections, its own attention and fused AdamW; it is brought by uv into an environment of its own.
Each variant is a process that waits for its turn: the turns alternate, and medians are compared, of
wall time and of processor time, which other work on the machine disturbs less. Also printed: the
share of the processor's rate of large matrix products that our step reaches. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from shared import language

LAYERS, WIDTH, HEADS, TOKENS, ROWS = 6, 256, 4, 256, 8
VOCABULARY = language.VOCABULARY
VARIANTS = ("ours", "keras", "torch", "products")
PRODUCT = 2048
"""Rows and columns of the matrices that the processor's rate is measured with."""

Train = Callable[[int], object]
"""Does so many steps, and waits for the last."""


def step_flops() -> float:
    """Return the operations of the matrix products of one step: a backward pass is two forwards."""
    by_token = LAYERS * (24 * WIDTH**2 + 4 * TOKENS * WIDTH) + 2 * WIDTH * VOCABULARY
    return 3.0 * by_token * ROWS * TOKENS


def ours(threads: int) -> Train:
    import tensorflow as tf

    limit_threads(threads)
    made = language.trained(
        layers=LAYERS, width=WIDTH, heads=HEADS, tokens=TOKENS, rows=ROWS,
        techniques={"micro_batch": ROWS},
    )  # fmt: skip
    batch = language.batch_of(language.drawn(ROWS, TOKENS))

    def train(steps: int) -> object:
        for number in range(steps):
            outcome = made.step.whole(batch, tf.constant(number))
        return outcome.loss.numpy()

    return train


def keras(threads: int) -> Train:
    import keras
    import numpy as np
    from keras import layers

    limit_threads(threads)
    inputs = keras.Input((TOKENS,), dtype="int32")
    places = layers.Embedding(TOKENS, WIDTH)(keras.ops.arange(TOKENS))
    x = layers.Embedding(VOCABULARY, WIDTH)(inputs) + places
    for _ in range(LAYERS):
        normed = layers.LayerNormalization()(x)
        attend = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        x += attend(normed, normed, use_causal_mask=True)
        fed = layers.Dense(4 * WIDTH, activation="relu")(layers.LayerNormalization()(x))
        x += layers.Dense(WIDTH)(fed)
    model = keras.Model(inputs, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))
    model.compile(
        keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def train(steps: int) -> object:
        tokens = np.tile(language.drawn(ROWS, TOKENS), (steps, 1))
        return model.fit(
            tokens[:, :-1], tokens[:, 1:], batch_size=ROWS, epochs=1, shuffle=False, verbose=0
        )

    return train


def torch(threads: int) -> Train:
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            self.split, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.feed = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)
            )

        def forward(self, x):
            apart = self.split(self.norms[0](x)).reshape(ROWS, TOKENS, 3, HEADS, -1)
            query, key, value = apart.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(ROWS, TOKENS, WIDTH))
            return x + self.feed(self.norms[1](x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = (nn.Embedding(one, WIDTH) for one in (VOCABULARY, TOKENS))
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places.weight
            return self.head(self.norm(self.blocks(x)))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    tokens = torch.from_numpy(language.drawn(ROWS, TOKENS)).long()

    def train(steps: int) -> object:
        for _ in range(steps):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    return train


def products(threads: int) -> Train:
    import tensorflow as tf

    limit_threads(threads)
    one = tf.random.stateless_normal([PRODUCT, PRODUCT], [1, 2])

    @tf.function
    def product(one: tf.Tensor) -> tf.Tensor:
        return tf.matmul(one, one)

    def train(steps: int) -> object:
        for _ in range(steps):
            found = product(one)
        return found[0, 0].numpy()

    return train


def limit_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def child(variant: str, threads: int) -> None:
    """Take turns: read a number of steps, print the seconds and processor seconds of each."""
    train = {"ours": ours, "keras": keras, "torch": torch, "products": products}[variant](threads)
    train(2)
    print(json.dumps({"ready": variant}), flush=True)
    for line in sys.stdin:
        steps = int(line)
        wall, cpu = time.perf_counter(), language.processor_seconds()
        train(steps)
        took = {"wall": (time.perf_counter() - wall) / steps,
                "cpu": (language.processor_seconds() - cpu) / steps}  # fmt: skip
        print(json.dumps(took), flush=True)


def start(variant: str, threads: int) -> subprocess.Popen:
    python = [sys.executable]
    if variant == "torch":
        python = ["uv", "run", "--quiet", "--no-project", "--with", "torch", "--with", "numpy",
                  "python"]  # fmt: skip
    environment = {
        **os.environ,
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
    }
    return subprocess.Popen(
        [*python, __file__, "--child", variant, "--threads", str(threads)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def measure(rounds: int, steps: int, threads: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of a step by variant."""
    running = {variant: start(variant, threads) for variant in VARIANTS}
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    try:
        for one in running.values():
            one.stdout.readline()
        for turn in range(rounds):
            order = VARIANTS if turn % 2 == 0 else VARIANTS[::-1]
            for variant in order:
                print(steps, file=running[variant].stdin, flush=True)
                found[variant].append(json.loads(running[variant].stdout.readline()))
    finally:
        for one in running.values():
            one.stdin.close()
            one.wait()
    return {
        variant: {kind: statistics.median(one[kind] for one in times) for kind in ("wall", "cpu")}
        for variant, times in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=VARIANTS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.threads)
        return
    seconds = measure(options.rounds, options.steps, options.threads)
    rate = {kind: 2 * PRODUCT**3 / seconds["products"][kind] for kind in ("wall", "cpu")}
    for variant in ("ours", "keras", "torch"):
        wall, cpu = (seconds[variant][kind] for kind in ("wall", "cpu"))
        print(
            f"{variant:6} {ROWS * TOKENS / wall:6.0f} tokens/s, {cpu:.3f} processor seconds a "
            f"step, {step_flops() / wall / rate['wall']:.0%} of the rate of matrix products "
            f"({step_flops() / cpu / rate['cpu']:.0%} by processor time)"
        )
    better = {kind: min(seconds[one][kind] for one in ("keras", "torch")) for kind in rate}
    ratios = {kind: better[kind] / seconds["ours"][kind] for kind in rate}
    print(f"ours, against the better of both: {ratios['wall']:.2f} times the tokens a second, "
          f"{ratios['cpu']:.2f} by processor time")  # fmt: skip
    print(json.dumps({
        "bench": "causal_lm", "seconds": seconds, "ratio": ratios["wall"],
        "ratio_by_processor_time": ratios["cpu"], "product_flops_per_second": rate["wall"],
        "share_of_products": step_flops() / seconds["ours"]["wall"] / rate["wall"],
        "threads": options.threads, "machine": platform.processor() or platform.machine(),
        "tensorflow": version("tensorflow"), "keras": version("keras"),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
