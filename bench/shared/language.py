"""Training steps of a byte-level language model, for the scripts that measure them."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 257
"""Bytes, and the end of a document."""


def prepare() -> None:
    """Make trainer importable, TensorFlow's allocator countable and TensorFlow quiet."""
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))


def processor_seconds() -> float:
    """Return the processor time of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drawn(rows: int, tokens: int) -> Any:
    """Return random windows, int32 [rows, tokens + 1]."""
    import numpy as np

    random = np.random.default_rng(1)
    return random.integers(0, VOCABULARY, (rows, tokens + 1)).astype(np.int32)


def source_text(rows: int, tokens: int) -> Any:
    """Return windows of the source of Python's standard library, int32 [rows, tokens + 1]."""
    import numpy as np

    place, needed, found = Path(os.__file__).parent, rows * (tokens + 1), b""
    for path in sorted(place.glob("*.py")):
        found += path.read_bytes()
        if len(found) >= needed:
            break
    whole = np.frombuffer(found[:needed], np.uint8).reshape(rows, tokens + 1)
    return np.random.default_rng(1).permutation(whole).astype(np.int32)


def batch_of(windows: Any) -> dict[str, Any]:
    """Return what a step takes, of windows int32 [rows, tokens + 1]."""
    import tensorflow as tf

    rows, width = windows.shape
    return {
        "tokens": tf.constant(windows),
        "lengths": tf.fill([rows], width - 1),
        "weight": tf.ones([rows]),
    }


@dataclass(frozen=True)
class Trained:
    """A model and its step.

    Attributes:
        step: `trainer.step.Step`.
        state: `trainer.state.TrainState`.
        weight_bytes: of the weights, float32; of the gradients too.
        held_bytes: of TensorFlow's allocator, by weights and optimizer.
    """

    step: Any
    state: Any
    weight_bytes: int
    held_bytes: int

    def update(self, batch: Mapping[str, Any], number: int) -> float:
        """Do one step; return its mean loss, nats a token."""
        import tensorflow as tf

        outcome = self.step.whole(batch, tf.constant(number))
        return float(outcome.loss) / float(outcome.examples)

    def peak_bytes(self, batch: Mapping[str, Any], number: int) -> int:
        """Return the allocator's peak in a step, other models' state left out."""
        import tensorflow as tf

        memory = tf.config.experimental
        before = memory.get_memory_info("CPU:0")["current"]
        memory.reset_memory_stats("CPU:0")
        self.update(batch, number)
        return memory.get_memory_info("CPU:0")["peak"] - before + self.held_bytes


def trained(
    *,
    layers: int,
    width: int,
    heads: int,
    tokens: int,
    rows: int,
    techniques: Mapping[str, Any],
    replicas: Any = None,
    **settings: Any,
) -> Trained:
    """Build a model with techniques (micro_batch is given) and its step for batches of rows.

    Args:
        layers: blocks.
        width: numbers a token.
        heads: of attention.
        tokens: of a window.
        rows: of a global batch.
        techniques: of `trainer.settings.Techniques`.
        replicas: who takes part; None: this process alone.
        settings: of `trainer.settings.TrainingSettings`.
    """
    import numpy as np
    import tensorflow as tf

    from trainer.collectives import Channel
    from trainer.models import causal_lm
    from trainer.settings import (
        Features,
        LabelFeature,
        ModelSettings,
        Techniques,
        TextFeature,
        TrainingSettings,
    )
    from trainer.shard import Parameters, Sharding
    from trainer.state import TrainState
    from trainer.step import make_step
    from trainer.strategy import Replicas

    memory = tf.config.experimental
    before = memory.get_memory_info("CPU:0")["current"]
    label = LabelFeature("text", "causal-lm", "string")
    features = Features((), (), label, TextFeature("text", tokens))
    shape = ModelSettings("causal-lm", layers=layers, width=width, heads=heads, sequence=tokens)
    chosen = Techniques(**techniques)
    training = TrainingSettings(**{"global_batch": rows, "learning_rate": 1e-4, **settings})
    replicas, parameters = replicas or Replicas(), None
    if chosen.shard in {"gradients", "parameters"}:
        parameters = Parameters(Sharding(chosen.shard, Channel(replicas.workers)))
    built = causal_lm.build(
        shape, features, chosen, policy="float32", seed=1, parameters=parameters
    )
    state = TrainState(
        built.model, training, total_steps=10_000, policy="float32", techniques=chosen,
        workers=replicas.workers, parameters=parameters,
    )  # fmt: skip
    state.join(replicas.control)
    step = make_step(state, built.sums, settings=training, techniques=chosen, replicas=replicas)
    held = memory.get_memory_info("CPU:0")["current"] - before
    return Trained(step, state, sum(4 * int(np.prod(one.shape)) for one in state.weights), held)
