"""The planner's error: predicted against measured peak of TensorFlow's allocator.

    uv run python bench/planner.py [--only causal-lm] [--take 70]

Tabular, text and language models and two of a person's own, over sizes, batches, sequences,
precisions and techniques. Each configuration is trained for three steps in a process of its own,
forked from one that imported TensorFlow. Every other one has a memory limit, so that its step is
done in two halves. One JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shared import language

STEPS = 3
CATEGORIES, NUMBERS = 4, 6

OWN = """
import keras
from keras import layers


def build(features, label):
    inputs = {name: one.input() for name, one in features.items()}
    x = layers.Concatenate()([x for x in inputs.values() if x.dtype == "float32"])
    x = layers.Reshape((-1, 1))(x)
    for width in (32, 64, 64):
        x = layers.Conv1D(width, 3, padding="same", activation="relu")(x)
        x = layers.LayerNormalization()(x)
    x = layers.Dense(128, activation="gelu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(label.logits)(x))


def transformer(features, label):
    inputs = {name: one.input() for name, one in features.items()}
    (name, text), = features.items()
    places = layers.Embedding(text.shape[0], 64)(keras.ops.arange(text.shape[0]))
    x = layers.Embedding(text.size, 64)(inputs[name]) + places
    for _ in range(3):
        attend = layers.MultiHeadAttention(4, 16)
        x = layers.LayerNormalization()(x + attend(x, x))
        fed = layers.Dense(64)(layers.Dense(256, activation="relu")(x))
        x = layers.LayerNormalization()(x + fed)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(label.logits)(x))
"""


def configurations() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield a kind, the model's settings and those of training."""
    for layers, width, batch in itertools.product((2, 4), (32, 96), (64, 1024)):
        shape = {"layers": layers, "width": width}
        yield "tabular", shape, {"global_batch": batch}
        yield "tabular", shape, {"global_batch": batch, "micro_batch": batch // 4}
        yield "tabular", shape, {"global_batch": batch, "recompute": True}
    yield "tabular", {"layers": 3, "width": 64}, {"global_batch": 256, "precision": "mixed_float16"}
    yield (
        "tabular",
        {"layers": 3, "width": 64},
        {"global_batch": 256, "precision": "mixed_bfloat16"},
    )
    for sequence, batch in itertools.product((64, 256), (16, 64)):
        shape = {"layers": 2, "width": 64, "sequence": sequence}
        yield "text", shape, {"global_batch": batch}
        yield "text", shape, {"global_batch": batch, "micro_batch": batch // 4}
        yield "text", shape, {"global_batch": batch, "recompute": True}
        yield "text", shape, {"global_batch": batch, "attention": "chunked"}
    for layers, width, sequence in itertools.product((2, 6), (64, 128), (128, 512)):
        shape = {"layers": layers, "width": width, "sequence": sequence}
        yield "causal-lm", shape, {"global_batch": 8}
        yield "causal-lm", shape, {"global_batch": 8, "micro_batch": 2}
        yield "causal-lm", shape, {"global_batch": 8, "recompute": True, "token_loss": "chunked"}
        yield "causal-lm", shape, {"global_batch": 8, "attention": "chunked", "micro_batch": 4,
                                   "recompute": True, "token_loss": "chunked"}  # fmt: skip
    for batch in (128, 1024):
        yield "bench_own_model:build", {}, {"global_batch": batch}
        yield "bench_own_model:build", {}, {"global_batch": batch, "micro_batch": batch // 4}
        yield "bench_own_model:build", {}, {"global_batch": batch, "recompute": True}
    for sequence, batch in ((64, 64), (256, 16)):
        own = "bench_own_model:transformer", {"sequence": sequence}
        yield *own, {"global_batch": batch}
        yield *own, {"global_batch": batch, "micro_batch": batch // 4}
        yield *own, {"global_batch": batch, "recompute": True}


class Drawn:
    """Batches of random rows, as `trainer.batches.Batches` gives them."""

    def __init__(self, features: Any, rows: int) -> None:
        import numpy as np

        random, text = np.random.default_rng(1), features.text
        self.batch = {
            "number_values": random.normal(size=(rows, len(features.numbers))),
            "number_present": random.uniform(size=(rows, len(features.numbers))) < 0.9,
            "category_ids": random.integers(0, 9, (rows, len(features.categories)), np.int32),
            "weight": np.ones(rows, np.float32),
        }
        is_language = features.label.task == "causal-lm"
        if text:
            size = (rows, text.sequence + is_language)
            self.batch["tokens"] = random.integers(0, 256, size, np.int32)
            self.batch["lengths"] = np.full(rows, text.sequence, np.int32)
        if not is_language:
            self.batch["label"] = random.integers(0, 2, rows, np.int32)
        if is_language:
            for name in ("number_values", "number_present", "category_ids"):
                del self.batch[name]

    def at(self, _: int) -> dict[str, Any]:
        """Return the batch of any step."""
        return {name: one.copy() for name, one in self.batch.items()}


def features_of(kind: str, model: dict[str, Any]) -> Any:
    from trainer.settings import (
        CategoryFeature,
        Features,
        LabelFeature,
        NumberFeature,
        TextFeature,
    )

    if kind == "causal-lm":
        label = LabelFeature("text", "causal-lm", "string")
        return Features((), (), label, TextFeature("text", model["sequence"]))
    label = LabelFeature("late", "binary", "int", ("0", "1"), (0.5, 0.5))
    if kind in {"text", "bench_own_model:transformer"}:
        return Features((), (), label, TextFeature("text", model["sequence"]))
    edges = tuple(float(one) for one in range(12))
    numbers = tuple(NumberFeature(f"n{i}", "float", edges, 1.0, 1.0) for i in range(NUMBERS))
    words = tuple(f"w{i}" for i in range(40))
    categories = tuple(CategoryFeature(f"c{i}", words) for i in range(CATEGORIES))
    return Features(numbers, categories, label)


def measure(kind: str, model: dict[str, Any], training: dict[str, Any]) -> dict[str, int]:
    """Train; return the predicted and the measured peak, and the growth of the process."""
    import tensorflow as tf

    from trainer import devices, precision
    from trainer import strategy as replicated
    from trainer.batches import ahead
    from trainer.candidates import Candidates
    from trainer.forecast import process_bytes
    from trainer.settings import CheckpointSettings, Job, ModelSettings, TrainingSettings
    from trainer.step import attempt
    from trainer.strategy import Replicas

    features = features_of(kind, model)
    settings = TrainingSettings(epochs=1, **training)
    job = Job(ModelSettings(kind, heads=4, **model), settings, CheckpointSettings(), features,
              "", "", "", "", "", "")  # fmt: skip
    batches = Drawn(features, settings.global_batch)
    before = devices.process_peak_bytes()
    candidates = Candidates(
        job, batches, Replicas(), policy=precision.resolve(settings.precision, has_gpu=False),
        total_steps=STEPS,
    )  # fmt: skip
    plan = candidates.choose()
    process = process_bytes(candidates, plan)
    devices.reset_peak()
    candidate = candidates.build(plan.techniques)
    shares = ahead(replicated.share(candidates.replicas, batches.at(one)) for one in range(STEPS))
    for number, batch in enumerate(shares):
        at = tf.constant(number)
        if candidates.by_halves:
            attempt(candidate.step, batch, at, is_too_much=lambda: False)
        else:
            candidate.step.whole(batch, at)
    return {
        "predicted": plan.prediction.total_bytes,
        "measured": devices.peak_bytes(),
        "process": devices.process_peak_bytes() - before,
        "process_predicted": process - before,
    }


def in_child(folder: Path, number: int, case: tuple[str, dict, dict]) -> dict[str, int]:
    child = os.fork()
    if not child:
        code = 1
        try:
            (folder / str(number)).write_text(json.dumps(measure(*case)))
            code = 0
        except BaseException:  # ruff: ignore[blind-except] - told, and the parent ends
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{case} ended with {os.waitstatus_to_exitcode(status)}")
    return json.loads((folder / str(number)).read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--take", type=int, default=1000)
    options = parser.parse_args()
    language.prepare()
    import tensorflow as tf

    # Imported before the forks, and no operation run: a fork would not have its threads.
    from trainer import candidates, devices, forecast, step  # ruff: ignore[unused-import]

    cases = [
        (kind, model, training | ({"memory_limit": "64GiB"} if number % 2 else {}))
        for number, (kind, model, training) in enumerate(configurations())
        if options.only in kind
    ][: options.take]
    errors, of_process, worst = [], [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "bench_own_model.py").write_text(OWN)
        sys.path.insert(0, place)
        for number, case in enumerate(cases):
            found = in_child(folder, number, case)
            error = found["predicted"] / found["measured"] - 1
            errors.append(error)
            of_process.append(found["process_predicted"] / found["process"] - 1)
            worst.append((abs(error), error, case))
            print(
                f"{error:+7.1%}  measured {found['measured'] / 2**20:8.2f} MiB  process "
                f"{found['process'] / 2**20:6.0f} MiB {of_process[-1]:+7.1%}  "
                f"{case[0]} {case[1]} {case[2]}",
                flush=True,
            )
    sizes = sorted(abs(one) for one in errors)
    print(f"{len(cases)} configurations: median error {statistics.median(sizes):.1%}, worst "
          f"{sizes[-1]:.1%}, above 12 % in {sum(one > 0.12 for one in sizes)}")  # fmt: skip
    processes = statistics.median(abs(one) for one in of_process)
    print(f"process memory above the imports: median error {processes:.1%}, "
          f"{min(of_process):+.1%} to {max(of_process):+.1%}")  # fmt: skip
    print(json.dumps({
        "bench": "planner", "configurations": len(cases),
        "median_error": statistics.median(sizes), "worst_error": sizes[-1],
        "process_median_error": processes, "least": min(errors), "greatest": max(errors),
        "worst_case": max(worst)[1:],
        "tensorflow": version("tensorflow"), "devices": len(tf.config.list_physical_devices()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
