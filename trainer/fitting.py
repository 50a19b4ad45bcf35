"""What is trained: settings that fit into memory, and the model, state and step made by them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import devices, evaluation, offload, planner
from trainer import strategy as replicated
from trainer.accumulation import accumulation_steps
from trainer.batches import Columns
from trainer.candidates import Candidate, Candidates
from trainer.errors import MemoryExceeded
from trainer.models.built import Built
from trainer.settings import Job
from trainer.state import MODEL_SLOTS
from trainer.step import Outcome, attempt
from trainer.strategy import Replicas
from trainer.voice import Voice


class Fitted:
    """What fits into memory and is cheapest in time, and what is made by it; smaller in need.

    Attributes:
        own_seconds: of the last step, without the wait for other workers.
        plan, prediction, techniques: what was chosen, and what memory it was said to take.
        built, state, step: of this process.
    """

    def __init__(
        self,
        job: Job,
        candidates: Candidates,
        replicas: Replicas,
        *,
        voice: Voice,
        beat: Callable[[float], None],
    ) -> None:
        self._job, self._settings = job, job.training
        self._candidates, self._replicas = candidates, replicas
        self._voice, self._beat = voice, beat
        self._began = self.own_seconds = 0.0

    def choose(self) -> None:
        """Take what fits into memory and is cheapest in time.

        Raises:
            MemoryExceeded: when nothing fits the memory that is free.
            SettingError: when nothing fits the limit that was set, or a technique cannot be had.
        """
        offload.check(self._settings.offload, has_gpu=bool(devices.gpus()))
        self.plan = self._candidates.choose(self._free_bytes)
        self.prediction = self.plan.prediction
        self.techniques = self.plan.techniques
        candidate = self._candidates.build(self.techniques)
        self.built, self.state, self.step = candidate.built, candidate.state, candidate.step
        self.state.join(self._replicas.control)

    def _free_bytes(self) -> int:
        """Return what each worker may take: those of one host share its memory, and all agree."""
        workers = self._replicas.workers
        share = 1 if devices.gpus() else workers.on_this_host
        least = self._replicas.control.smallest(
            tf.constant(devices.free_bytes() // share, tf.int64)
        )
        return int(least.numpy())

    def shrink(self, step: int) -> None:
        """Take a smaller micro-batch, the global batch unchanged; on all workers at once.

        Args:
            step: done so far.

        Raises:
            MemoryExceeded: when it holds one example already.
        """
        before = self.techniques.micro_batch
        if before == 1:
            raise MemoryExceeded(
                f"memory ran out at step {step + 1} with one example at a time "
                f"({planner.describe(self.techniques)})",
                where="training.memory_limit", holds=f'"{self._settings.memory_limit}"',
                right="recompute, attention and token_loss as auto, shard over more workers, "
                "or a smaller model",
            )  # fmt: skip
        self.take(before // 2 if before > 2 else 1)
        self._voice.tell("micro_batch", step=step, before=before, now=self.techniques.micro_batch)
        self._voice.warn(
            f"memory ran out at step {step + 1}: the micro-batch goes from {before} "
            f"to {self.techniques.micro_batch}, the global batch stays"
        )
        devices.reset_peak()

    def take(self, micro_batch: int) -> None:
        """Go on with another micro-batch."""
        self.techniques = dataclasses.replace(self.techniques, micro_batch=micro_batch)
        candidate = Candidate(self.built, self.state, self.step)
        self.step = self._candidates.again(candidate, self.techniques).step

    @cached_property
    def predictor(self) -> evaluation.Predictor:
        """The traced predictions, so that each evaluation does not trace them anew."""
        predict = evaluation.predictor(self.built, self._job.features)

        def alive(inputs: Mapping[str, Any]) -> tf.Tensor:
            self._beat(0.0)
            return predict(inputs)

        return alive

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches that a replica goes through for one update."""
        rows = replicated.local_rows(self._replicas, self._settings.global_batch)
        return accumulation_steps(rows, self.techniques.micro_batch)

    def update(self, batch: dict[str, Any], step: int) -> Outcome:
        """Change the state by one batch, with smaller micro-batches where memory runs out.

        Args:
            batch: this worker's share.
            step: done so far.

        Raises:
            MemoryExceeded: when one example is too much.
        """
        self._began = time.monotonic()
        number = tf.constant(step, tf.int32)
        if not self._candidates.by_halves:
            return self.step.whole(batch, number)
        while (done := attempt(self.step, batch, number, is_too_much=self.is_too_much)) is None:
            self.shrink(step)
        return done

    def is_too_much(self) -> bool:
        """Tell, once this worker's own part of a step is done, whether the limit was passed."""
        self.own_seconds = time.monotonic() - self._began
        is_set = self._settings.memory_limit != "auto"
        return is_set and devices.peak_bytes() > self.plan.limit_bytes

    def predict(self, columns: Columns) -> np.ndarray:
        """Return the predictions of the whole eval split."""
        # No more rows at once than in training, so that evaluation is never what needs most.
        return evaluation.predict(
            self.built, columns, self._job.features,
            batch=self.techniques.micro_batch, run=self.predictor,
        )  # fmt: skip

    def whole(self, *, is_wanted: bool) -> Built:
        """Return the model as one process can run it; every worker takes part in gathering it.

        Args:
            is_wanted: whether this process uses it.
        """
        if not self.state.are_gathered:
            return self.built
        slots = [
            (name, one) for name, one in self.state.each_array() if name.startswith(MODEL_SLOTS)
        ]
        return self._candidates.whole(dict(slots)) if is_wanted else self.built
