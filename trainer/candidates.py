"""What could be trained: models with their traced steps, one a choice of techniques.

The planner asks for the predicted peak of one after another. Each is built in a graph of its own,
where variables take no memory; the one that is chosen is then built for good.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from trainer import devices, planner
from trainer import strategy as replicated
from trainer.batches import AHEAD, Batches
from trainer.cluster import Workers
from trainer.collectives import Channel
from trainer.memory import Prediction, predict_peak, tensor_bytes
from trainer.models import kinds
from trainer.models.built import Built
from trainer.settings import Job, Techniques
from trainer.shard import Parameters, Sharding
from trainer.state import TrainState, set_variables
from trainer.step import Step, make_step
from trainer.strategy import Replicas


@dataclass(frozen=True)
class Candidate:
    """A model with its state and step for one choice of techniques."""

    built: Built
    state: TrainState
    step: Step


@dataclass(frozen=True)
class Candidates:
    """All that could be trained for a job; each is built when it is asked for.

    Attributes:
        job: what to train, on what.
        batches: of the train split.
        replicas: who takes part.
        policy: float32, mixed_float16 or mixed_bfloat16.
        total_steps: that the schedule of the learning rate is over.
        predicted: what was predicted so far, since each prediction is a trace.
        framework_bytes: what the allocator held before.
    """

    job: Job
    batches: Batches
    replicas: Replicas
    policy: str
    total_steps: int
    predicted: dict[Techniques, Prediction] = field(default_factory=dict)
    framework_bytes: int = field(default_factory=devices.current_bytes)

    @property
    def by_halves(self) -> bool:
        """Whether a step is done in two halves, between which its memory is looked at.

        Where nothing can be refused, on a CPU without a limit, it is done whole, which is faster.
        """
        limit = self.job.training.memory_limit
        return limit != "auto" or bool(devices.gpus()) or self.replicas.workers.count > 1

    def choose(self, free_bytes: Callable[[], int] = devices.free_bytes) -> planner.Plan:
        """Return what fits into memory and is cheapest in time.

        Args:
            free_bytes: asked when ``memory_limit`` is ``auto``.

        Raises:
            MemoryExceeded: when nothing fits the memory that is free.
        """
        return planner.plan(
            self.job.training, self.shape(), predict=self.predict, free_bytes=free_bytes
        )

    def shape(self) -> planner.Shape:
        """Return what the planner must know about the model."""
        with _passing_graph():
            built = self._build(Techniques(1), None)
        kind = self.job.model.kind
        return planner.Shape(
            rows=self._local_rows(),
            tokens=built.tokens,
            width=max(built.width, 1),
            blocks=built.blocks,
            workers=self.replicas.workers.count,
            has_attention=built.attends,
            has_token_loss=kind == "causal-lm",
            is_gpu=bool(devices.gpus()),
        )

    def predict(self, techniques: Techniques) -> Prediction:
        """Return the predicted peak of one choice; nothing is run, and no variable has a value."""
        if techniques not in self.predicted:
            self.predicted[techniques] = self._predict(techniques)
        return self.predicted[techniques]

    def _predict(self, techniques: Techniques) -> Prediction:
        example = self._example
        with _passing_graph():
            held = devices.current_bytes()
            # Tracing needs to know how many workers there are, and none of them.
            alone = Replicas(workers=replace(self.replicas.workers))
            made = self._make(techniques, alone)
            arguments = (example, tf.TensorSpec([], tf.int32))
            if self.by_halves:
                sums = made.step.sums.get_concrete_function(*arguments)
                given = _specs(sums.structured_outputs)
                parts = [sums, made.step.finish.get_concrete_function(given)]
            else:
                parts = [made.step.whole.get_concrete_function(*arguments)]
            # A graph holds its constants; the one that is trained with will hold the same.
            traced = max(0, devices.current_bytes() - held)
            batch = [tensor_bytes(one.shape, one.dtype) for one in arguments[0].values()]
            return predict_peak(
                parts, batch, state=made.state.sizes(), copies=AHEAD + 2,
                framework=self.framework_bytes + traced,
            )  # fmt: skip

    def build(self, techniques: Techniques) -> Candidate:
        """Build the model and its step, to be trained."""
        with self.replicas.scope():
            return self._make(techniques, self.replicas)

    def whole(self, arrays: Mapping[str, np.ndarray]) -> Built:
        """Return the model of these weights, by slot, with no other worker and no technique."""
        built = self._build(Techniques(1), None)
        set_variables(built.model, arrays)
        return built

    def again(self, candidate: Candidate, techniques: Techniques) -> Candidate:
        """Return the same model and state with a step for another micro-batch."""
        with self.replicas.scope():
            return replace(candidate, step=self._step(candidate.built, candidate.state, techniques,
                                                      self.replicas))  # fmt: skip

    def _make(self, techniques: Techniques, replicas: Replicas) -> Candidate:
        parameters = None
        if techniques.shard in {"gradients", "parameters"}:
            parameters = Parameters(Sharding(techniques.shard, Channel(replicas.workers)))
        built = self._build(techniques, parameters)
        state = TrainState(
            built.model,
            self.job.training,
            total_steps=self.total_steps,
            policy=self.policy,
            techniques=techniques,
            workers=replicas.workers,
            parameters=parameters,
        )
        return Candidate(built, state, self._step(built, state, techniques, replicas))

    def _step(
        self, built: Built, state: TrainState, techniques: Techniques, replicas: Replicas
    ) -> Step:
        return make_step(
            state,
            built.sums,
            settings=self.job.training,
            techniques=techniques,
            replicas=replicas,
        )

    def _build(self, techniques: Techniques, parameters: Parameters | None) -> Built:
        job = self.job
        return kinds.build(
            job.model, job.features, techniques,
            policy=self.policy, seed=job.training.seed, parameters=parameters,
        )  # fmt: skip

    def _local_rows(self) -> int:
        return replicated.local_rows(self.replicas, self.job.training.global_batch)

    @cached_property
    def _example(self) -> dict[str, tf.TensorSpec]:
        """What a replica's share of a batch looks like."""
        rows = self._local_rows()
        return {
            name: tf.TensorSpec([rows, *value.shape[1:]], value.dtype, name=name)
            for name, value in self.batches.at(0).items()
        }


@contextmanager
def _passing_graph() -> Generator[None]:
    """Trace into a graph that is gone afterwards.

    TensorFlow registers each gradient that `tf.custom_gradient` wraps in a graph, by a name of its
    own, and for good: its closure keeps the graph, and 256 bytes for each constant in it.
    """
    registered = ops.gradient_registry._registry
    before = set(registered)
    try:
        with tf.Graph().as_default():
            yield
    finally:
        for name in registered.keys() - before:
            del registered[name]
        gc.collect()


def _specs(tensors: Any) -> Any:
    return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), tensors)


def of_workers(count: int) -> Replicas:
    """Return replicas that stand for `count` workers where a step is traced and never run."""
    return Replicas(workers=Workers(count=count))
