"""Training from first step to last: epochs, evaluation, early stop, checkpoints, events.

A step is one global batch, counted from 1 over all epochs; steps whose gradients were not finite
count too, as skipped ones, since their rows have been used. The state after step s depends on
the settings, the data and s alone, so a run that was killed ends with the weights of one that
was not.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import checkpoint, devices, evaluation, journal, planner, precision
from trainer import strategy as replicated
from trainer.accumulation import accumulation_steps
from trainer.batches import Batches, Columns, ahead
from trainer.candidates import Candidate, Candidates
from trainer.errors import CheckpointError, SettingError
from trainer.progress import Progress, Recent, Skips
from trainer.settings import Job
from trainer.step import Outcome


class Interrupted(Exception):
    """Training was asked to end, and has saved its state.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        model: with the weights to be used.
        predictions: of the eval split with them, as `evaluation.predict` gives them.
        facts: those of the event ``training_done``.
        history: one entry an evaluation: step, epoch, train_loss, and the metrics.
    """

    model: keras.Model
    predictions: np.ndarray
    facts: dict[str, Any]
    history: list[dict[str, Any]]


def train(job: Job, *, stop: Callable[[], int] = lambda: 0) -> Trained:
    """Train from the last good checkpoint, or from the start, to the end.

    Args:
        job: what to train, on what, and where its checkpoints and events go.
        stop: asked after each step; a signal's number ends training once its state is saved.

    Raises:
        Interrupted: when `stop` said so.
        NotFinite: when the loss or the gradients stay NaN or infinite.
        SettingError: when the checkpoints went further than the settings now ask for.
        CheckpointError: when one cannot be written.
        MemoryExceeded: when nothing fits the memory that is free.
    """
    run = Run(job)
    with run.strategy.scope():
        run.use(*run.candidates.choose())
    run.restore()
    run.announce()
    devices.reset_peak()
    if not run.is_complete:
        run.go_on(stop)
    return run.finish()


class Run:
    """One process's share of a training: its parts, and how far it is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.training
        self.strategy = replicated.choose()
        self.columns = Columns.open(job.train, job.features)
        self.eval_columns = Columns.open(job.eval, job.features)
        self.batches = Batches(
            self.columns, seed=self.settings.seed, global_batch=self.settings.global_batch
        )
        self.policy = precision.resolve(self.settings.precision, has_gpu=bool(devices.gpus()))
        self.total_steps = self.settings.steps or (
            self.settings.epochs * self.batches.steps_per_epoch
        )
        self.candidates = Candidates(
            job, self.batches, self.strategy, policy=self.policy, total_steps=self.total_steps
        )
        self.progress = Progress()
        self.start_step = 0
        self.saved_step = 0
        self.is_warm = False
        self.recent = Recent()

    # What is trained

    def use(self, plan: planner.Plan, candidate: Candidate) -> None:
        """Take what was chosen."""
        self.plan = plan
        self.state, self.update = candidate.state, candidate.update
        self.skips = Skips(is_scaled=candidate.state.is_scaled)
        self.prediction = candidate.prediction

    @cached_property
    def predictor(self) -> evaluation.Predictor:
        """The traced predictions, so that each evaluation does not trace them anew."""
        return evaluation.predictor(self.state.model, self.job.features)

    # Where it stands

    @property
    def is_complete(self) -> bool:
        """Whether no step is left to do."""
        return self.progress.step >= self.total_steps or self.progress.stopped_early

    def restore(self) -> None:
        """Go back to the newest whole checkpoint, if there is one."""
        found = checkpoint.restore(self.job.checkpoints, self.state.arrays(), warn=self.warn)
        if found is None:
            return
        self._check_same(found)
        self.state.load(found.arrays)
        self.progress = Progress(**found.facts["progress"])
        self.start_step = self.saved_step = self.progress.step
        self.tell(
            "resumed",
            step=self.start_step, epoch=self.epoch, path=str(found.path), steps=self.total_steps,
        )  # fmt: skip

    def _check_same(self, found: checkpoint.Checkpoint) -> None:
        if found.facts["of"] != self._identity():
            raise CheckpointError(
                "the checkpoints are of another training", where=str(found.path),
                holds=str(found.facts["of"]), right=f"{self._identity()}, or another folder",
            )  # fmt: skip
        if found.step > self.total_steps:
            name = "steps" if self.settings.steps else "epochs"
            per = 1 if self.settings.steps else self.batches.steps_per_epoch
            raise SettingError(
                f"training has gone further already: {found.step} steps are done",
                where=f"training.{name}", holds=str(getattr(self.settings, name)),
                right=f"{-(-found.step // per)} or more, or remove {found.path.parent}",
            )  # fmt: skip

    def _identity(self) -> dict[str, int]:
        """Return what decides which rows a step reads."""
        return {
            "rows": self.columns.rows,
            "global_batch": self.settings.global_batch,
            "seed": self.settings.seed,
        }

    def save(self) -> None:
        """Write a checkpoint of this step, unless there is one."""
        if self.saved_step == self.progress.step:
            return
        started = time.monotonic()
        path = checkpoint.save(
            self.job.checkpoints,
            self.state.arrays(),
            {"of": self._identity(), "progress": dataclasses.asdict(self.progress)},
            step=self.progress.step,
            keep=self.job.checkpoint.keep,
            best_step=self.progress.best_step or None,
        )
        self.saved_step = self.progress.step
        seconds = time.monotonic() - started
        self.tell("checkpoint", step=self.saved_step, path=str(path), seconds=seconds)

    # What it says

    def tell(self, event: str, **facts: Any) -> None:
        """Add an event to the run's journal."""
        journal.append(self.job.events, event, **facts)

    def warn(self, message: str) -> None:
        """Say something that the person should know, once."""
        self.tell("warning", id="Trainer", message=message)

    def announce(self) -> None:
        """Say what is about to happen."""
        settings, plan = self.settings, self.plan
        per_epoch = self.batches.steps_per_epoch
        self.tell(
            "training_started",
            steps=self.total_steps, steps_per_epoch=per_epoch,
            epochs=-(-self.total_steps // per_epoch), start_step=self.start_step,
            global_batch=settings.global_batch, micro_batch=plan.micro_batch,
            accumulation_steps=accumulation_steps(
                replicated.local_rows(self.strategy, settings.global_batch), plan.micro_batch
            ),
            precision=self.policy, recompute=plan.recompute,
            planned_memory_bytes=self.prediction.total_bytes, plan=self.prediction.terms,
            parameters=int(sum(np.prod(one.shape) for one in self.state.weights)),
            device=", ".join(devices.compute_devices()),
        )  # fmt: skip
        if self.policy != "float32" and not devices.gpus():
            self.warn(f"training.precision = {self.policy} is slower than float32 on a CPU")
        for note in evaluation.notes(
            self.eval_columns.label, label_feature=self.job.features.label
        ):
            self.warn(note)

    # The steps

    def go_on(self, stop: Callable[[], int]) -> None:
        """Do the steps that are left.

        Raises:
            Interrupted: when `stop` names a signal; the state is saved first.
        """
        steps = range(self.progress.step, self.total_steps)
        batches = ahead(replicated.share(self.strategy, self.batches.at(one)) for one in steps)
        try:
            for batch in batches:
                self.one_step(batch)
                if number := stop():
                    self.save()
                    raise Interrupted(number)
                if self.is_complete:
                    return
        finally:
            batches.close()

    def one_step(self, batch: dict[str, Any]) -> None:
        """Do one step and what is due after it."""
        started = time.monotonic()
        outcome = self.update(batch, tf.constant(self.progress.step, tf.int32))
        outcome = Outcome(*(one.numpy().item() for one in outcome))
        self._count(outcome, time.monotonic() - started)
        self._check_finite(outcome, batch)
        progress = self.progress
        is_last = progress.step == self.total_steps
        ends_epoch = is_last or progress.step % self.batches.steps_per_epoch == 0
        if ends_epoch or self.recent.is_due():
            self._report(outcome, ends_epoch=ends_epoch)
        if ends_epoch:
            self.evaluate()
        if (
            self.is_complete
            or progress.step % self.job.checkpoint.every_steps == 0
            or progress.best_step == progress.step
        ):
            self.save()

    @property
    def epoch(self) -> int:
        """The epoch of the last step, from 1."""
        return -(-self.progress.step // self.batches.steps_per_epoch)

    def _count(self, outcome: Outcome, seconds: float) -> None:
        progress = self.progress
        progress.step += 1
        progress.epoch_loss += outcome.loss
        progress.epoch_examples += outcome.examples
        self.recent.add(outcome)
        if self.is_warm:
            progress.seconds += seconds
            progress.examples += outcome.examples
        self.is_warm = True

    def _check_finite(self, outcome: Outcome, batch: dict[str, Any]) -> None:
        """Stop when steps are skipped one after another and no smaller scale can mend it."""
        is_last = self.progress.step == self.total_steps
        self.skips.check(
            outcome, self.progress.step, is_last=is_last,
            columns=lambda: self._columns_not_finite(batch),
        )  # fmt: skip

    def _columns_not_finite(self, batch: dict[str, Any]) -> list[str]:
        if replicated.replicas(self.strategy) > 1 or "number_values" not in batch:
            return []
        broken = ~np.isfinite(np.asarray(batch["number_values"])).all(axis=0)
        return [one.name for one, is_so in zip(self.job.features.numbers, broken, strict=True)
                if is_so]  # fmt: skip

    def _report(self, outcome: Outcome, *, ends_epoch: bool) -> None:
        facts = self.recent.take()
        if ends_epoch:
            facts["epoch_loss"] = self._epoch_loss()
        self.tell(
            "train_step",
            step=self.progress.step, epoch=self.epoch,
            learning_rate=outcome.learning_rate, gradient_norm=outcome.gradient_norm,
            loss_scale=outcome.loss_scale, skipped_steps=outcome.skipped_steps, **facts,
        )  # fmt: skip

    def _epoch_loss(self) -> float:
        return self.progress.epoch_loss / max(self.progress.epoch_examples, 1.0)

    # Evaluation and the end

    def predict(self) -> np.ndarray:
        """Return the predictions of the whole eval split."""
        # No more rows at once than in training, so that evaluation is never what needs most.
        return evaluation.predict(
            self.state.model, self.eval_columns, self.job.features,
            batch=self.plan.micro_batch, run=self.predictor,
        )  # fmt: skip

    def evaluate(self) -> None:
        """Evaluate, and note whether it is the best so far and whether to stop early."""
        self.predictions = self.predict()
        label = self.job.features.label
        metrics = evaluation.metrics(self.predictions, self.eval_columns.label, label_feature=label)
        place = {"step": self.progress.step, "epoch": self.epoch}
        self.progress.note_evaluation(
            {**place, "train_loss": self._epoch_loss(), **metrics},
            after_rises=self.settings.early_stop.after_rises,
        )
        self.progress.epoch_loss = self.progress.epoch_examples = 0.0
        self.tell("evaluation", **place, **metrics)
        self.recent.restart()

    def finish(self) -> Trained:
        """Return what came out; after an early stop, with the weights of the best evaluation."""
        progress = self.progress
        is_fresh = progress.step > self.start_step
        if progress.stopped_early:
            self.warn(progress.early_stop(self.total_steps))
            is_fresh = not self._use_best() and is_fresh
        predictions = self.predictions if is_fresh else self.predict()
        facts = {
            "steps": progress.step,
            "examples_per_second": progress.examples / max(progress.seconds, 1e-9),
            "peak_memory_bytes": devices.peak_bytes(),
            "planned_memory_bytes": self.prediction.total_bytes,
            "process_memory_bytes": devices.process_peak_bytes(),
            "micro_batch": self.plan.micro_batch,
            "resumed_from_step": self.start_step,
            "skipped_steps": int(self.state.loss_scale.skipped_steps.numpy()),
            "stopped_early": progress.stopped_early,
            "best_step": progress.best_step,
            "best_epoch": progress.best_epoch,
        }
        self.tell("training_done", **facts)
        return Trained(self.state.model, predictions, facts, progress.history)

    def _use_best(self) -> bool:
        """Load the weights of the best evaluation; tell whether that changed them."""
        best = self.progress.best_step
        if not best or best == self.progress.step:
            return False
        path = Path(self.job.checkpoints) / f"step-{best:08d}"
        self.state.load_weights(checkpoint.load(path, self.state.arrays()).arrays)
        return True
