"""What could be trained: models with their traced steps, one a choice of micro_batch and recompute.

The planner asks for the predicted peak of one after another; the first that fits is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from trainer import devices, losses, planner
from trainer import strategy as replicated
from trainer.batches import AHEAD, Batches
from trainer.memory import Prediction, predict_peak
from trainer.models import tabular
from trainer.settings import Job
from trainer.step import TrainState, Update, make_step

MODELS = {"tabular": tabular.build}
"""By `ModelSettings.kind`."""


@dataclass(frozen=True)
class Candidate:
    """A model with its state and step for one choice of micro_batch and recompute."""

    state: TrainState
    update: Update
    prediction: Prediction


@dataclass(frozen=True)
class Candidates:
    """All that could be trained for a job; each is built when it is asked for.

    Attributes:
        job: what to train, on what.
        batches: of the train split.
        strategy: in whose scope everything is made.
        policy: float32, mixed_float16 or mixed_bfloat16.
        total_steps: that the schedule of the learning rate is over.
    """

    job: Job
    batches: Batches
    strategy: tf.distribute.Strategy
    policy: str
    total_steps: int

    def choose(self) -> tuple[planner.Plan, Candidate]:
        """Return what fits into memory and is cheapest in time, and its traced step.

        Raises:
            MemoryExceeded: when nothing fits the memory that is free.
        """
        made: dict[tuple[int, bool], Candidate] = {}

        def predict(micro_batch: int, recompute: bool) -> Prediction:
            key = (micro_batch, recompute)
            # The last one is kept alone: the models of those that do not fit are not needed.
            made.clear()
            made[key] = self.build(micro_batch, recompute=recompute)
            return made[key].prediction

        settings = self.job.training
        rows = replicated.local_rows(self.strategy, settings.global_batch)
        plan = planner.plan(settings, rows=rows, predict=predict, free_bytes=devices.free_bytes)
        key = (plan.micro_batch, plan.recompute)
        return plan, made.get(key) or self.build(plan.micro_batch, recompute=plan.recompute)

    def build(self, micro_batch: int, *, recompute: bool) -> Candidate:
        """Build the model and trace its step; nothing is run."""
        job = self.job
        model = MODELS[job.model.kind](
            job.model, job.features,
            policy=self.policy, recompute=recompute, seed=job.training.seed,
        )  # fmt: skip
        state = TrainState(model, job.training, total_steps=self.total_steps, policy=self.policy)
        update = make_step(
            state,
            partial(losses.example_losses, label_feature=job.features.label),
            settings=job.training, micro_batch=micro_batch, strategy=self.strategy,
        )  # fmt: skip
        example = replicated.share(self.strategy, self.batches.at(0))
        prediction = predict_peak(
            update,
            (example, tf.constant(0, tf.int32)),
            state=state.sizes(),
            copies=AHEAD + 2,
            replicas=replicated.replicas(self.strategy),
        )
        return Candidate(state, update, prediction)
