"""Training from first step to last: epochs, evaluation, early stop, checkpoints, events.

A step is one global batch, counted from 1 over all epochs; steps whose gradients were not finite
count too, as skipped ones, since their rows have been used. The state after step s depends on
the settings, the data and s alone, so a run that was killed ends with the weights of one that
was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import (
    augment,
    checkpoint,
    devices,
    evaluation,
    identity,
    monitoring,
    precision,
)
from trainer import strategy as replicated
from trainer.batches import Batches, Columns, ahead
from trainer.candidates import Candidates
from trainer.checkpoint import Writers
from trainer.errors import CheckpointError, SettingError
from trainer.fitting import Fitted
from trainer.keeping import Keeping
from trainer.models.built import Built
from trainer.progress import Progress, Recent, Skips
from trainer.settings import Job
from trainer.step import Outcome
from trainer.strategy import Replicas
from trainer.voice import Voice

UPLOAD_SECONDS = 60.0
"""How long a training that is done waits for its last checkpoint's copy."""
LEAVE_UPLOAD_SECONDS = 5.0
"""The same when it was asked to end."""


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
        built: the model, with the weights to be used.
        predictions: of the eval split with them, as `evaluation.predict` gives them.
        facts: those of the event ``training_done``.
        history: one entry an evaluation: step, epoch, train_loss, and the metrics.
        metrics: what Prometheus is shown, until it is closed; None: nothing.
    """

    built: Built
    predictions: np.ndarray
    facts: dict[str, Any]
    history: list[dict[str, Any]]
    metrics: monitoring.Metrics | None = None


def train(
    job: Job, *, stop: Callable[[], int] = lambda: 0, beat: Callable[[float], None] = lambda _: None
) -> Trained:
    """Train from the last good checkpoint, or from the start, to the end.

    Args:
        job: what to train, on what, and where its checkpoints and events go.
        stop: asked after each step; a signal's number ends training once its state is saved.
        beat: told that this process lives: the seconds of the step that it has done, or 0 before
            something of which nobody knows how long it takes.

    Raises:
        Interrupted: when `stop` said so.
        NotFinite: when the loss or the gradients stay NaN or infinite.
        SettingError: when the checkpoints went further than the settings now ask for.
        CheckpointError: when one cannot be written.
        MemoryExceeded: when nothing fits the memory that is free.
        InputError: when a worker has other code, settings or data than the others.
    """
    run = Run(job, beat=beat)
    run.compare()
    run.voice.show()
    run.fitted.choose()
    run.restore()
    run.announce()
    devices.reset_peak()
    if not run.is_complete:
        run.go_on(stop)
    return run.finish()


class Run:
    """One process's share of a training: its parts, and how far it is."""

    def __init__(
        self,
        job: Job,
        *,
        replicas: Replicas | None = None,
        beat: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.job = job
        self.beat = beat
        self.settings = job.training
        self.replicas = replicas or replicated.choose()
        self.columns = Columns.open(job.train, job.features)
        self.eval_columns = Columns.open(job.eval, job.features)
        self.batches = Batches(
            self.columns,
            seed=self.settings.seed,
            global_batch=self.settings.global_batch,
            augment=augment.augmenter(job, self.columns.text),
            draw=augment.mover(job),
            own=replicated.own_rows(self.replicas, self.settings.global_batch),
        )
        self.policy = precision.resolve(self.settings.precision, has_gpu=bool(devices.gpus()))
        self.total_steps = self.settings.steps or (
            self.settings.epochs * self.batches.steps_per_epoch
        )
        self.candidates = Candidates(
            job, self.batches, self.replicas, policy=self.policy, total_steps=self.total_steps
        )
        self.progress = Progress()
        self.start_step = 0
        self.saved_step = 0
        self.is_warm = False
        self.recent = Recent()
        self.voice = Voice(job, self.replicas.workers)
        self.fitted = Fitted(job, self.candidates, self.replicas, voice=self.voice, beat=beat)
        self.keeping = Keeping(job, self.replicas, tell=self.voice.tell, warn=self.voice.warn)

    def compare(self) -> None:
        """Make sure that all workers train the same, before any of them begins.

        Raises:
            InputError: naming one that would not.
        """
        workers = self.replicas.workers
        if workers.count == 1:
            return
        mine = tf.constant(identity.numbers(identity.of_job(self.job)), tf.int64)
        told = self.replicas.control.joined(mine).numpy().reshape(workers.count, -1)
        identity.check_same(told.tolist(), workers)

    # Where it stands

    @property
    def is_complete(self) -> bool:
        """Whether no step is left to do."""
        return self.progress.step >= self.total_steps or self.progress.stopped_early

    def restore(self) -> None:
        """Go back to the newest whole checkpoint, if there is one."""
        found = self.keeping.restore(self.fitted.state.template())
        if found is None:
            return
        self._check_same(found)
        self.fitted.state.load(found.arrays)
        self.progress = Progress(**found.facts["progress"])
        self.start_step = self.saved_step = self.progress.step
        learnt = int(found.facts.get("micro_batch", self.fitted.techniques.micro_batch))
        if learnt < self.fitted.techniques.micro_batch:
            # Memory ran out with a larger one, in the process that saved this.
            self.fitted.take(learnt)
        self.voice.tell(
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
        """Have a checkpoint of this step written, unless there is one."""
        if self.saved_step == self.progress.step:
            return
        self.saved_step = self.progress.step
        state, writers = self.fitted.state, self.keeping.writers
        if not state.sharding.cuts_optimizer:
            writers = Writers()
        is_gathered = writers.count < state.sharding.workers and state.sharding.cuts_optimizer
        if not self.voice.leads and writers.count == 1:
            # All workers give their parts; none but the one that writes holds the whole of them.
            for _ in state.each_array() if is_gathered else ():
                pass
            return
        parts = state.arrays() if is_gathered else state.parts()
        facts = {
            "of": self._identity(),
            "progress": dataclasses.asdict(self.progress),  # a copy, of the history too
            "micro_batch": self.fitted.techniques.micro_batch,
        }
        step, best = self.progress.step, self.progress.best_step
        self.keeping.begin(parts, facts, step=step, best=best, writers=writers)

    # The beginning

    def announce(self) -> None:
        """Say what is about to happen."""
        self.skips = Skips(is_scaled=self.fitted.state.is_scaled)
        settings, techniques = self.settings, self.fitted.techniques
        per_epoch = self.batches.steps_per_epoch
        if self.voice.metrics:
            self.voice.metrics.begin(
                steps=self.total_steps, done=self.start_step, tokens=self.fitted.built.tokens,
                every_steps=self.job.checkpoint.every_steps, scaled=self.fitted.state.is_scaled,
            )  # fmt: skip
            self.voice.metrics.set("headrace_eval_loss_rises", self.progress.rises)
            if uploads := self.keeping.uploads:
                self.voice.metrics.ask("headrace_upload_lag_seconds", uploads.lag_seconds)
                self.voice.metrics.ask("headrace_upload_failures", lambda: uploads.failures)
        self.voice.tell(
            "training_started",
            steps=self.total_steps, steps_per_epoch=per_epoch,
            epochs=-(-self.total_steps // per_epoch), start_step=self.start_step,
            global_batch=settings.global_batch,
            accumulation_steps=self.fitted.accumulation_steps,
            precision=self.policy, workers=self.replicas.workers.count,
            **dataclasses.asdict(techniques),
            planned_memory_bytes=self.fitted.prediction.total_bytes,
            plan=self.fitted.prediction.terms,
            parameters=int(sum(np.prod(shape) for shape in self.fitted.state.shapes)),
            device=", ".join(devices.compute_devices()),
        )  # fmt: skip
        if self.policy != "float32" and not devices.gpus():
            self.voice.warn(f"training.precision = {self.policy} is slower than float32 on a CPU")
        accumulated = (
            self.fitted.built.accumulation_notes if self.fitted.accumulation_steps > 1 else ()
        )
        for note in (
            *self.fitted.built.notes,
            *accumulated,
            *evaluation.notes(self.eval_columns.label, label_feature=self.job.features.label),
        ):
            self.voice.warn(note)

    # The steps

    def go_on(self, stop: Callable[[], int]) -> None:
        """Do the steps that are left.

        Raises:
            Interrupted: when `stop` names a signal; the state is saved first.
        """
        steps = range(self.progress.step, self.total_steps)
        batches = ahead(replicated.share(self.replicas, self.batches.at(one)) for one in steps)
        waits = time.monotonic()
        try:
            for batch in batches:
                self.one_step(batch, waiting_seconds=time.monotonic() - waits)
                if number := self.asked_to_stop(stop):
                    self.save()
                    self.keeping.finish(upload_seconds=LEAVE_UPLOAD_SECONDS)
                    self.voice.stop_showing()
                    raise Interrupted(number)
                if self.is_complete:
                    return
                waits = time.monotonic()
        finally:
            batches.close()
            if sys.exc_info()[0]:
                # The process may end at once: what was begun is finished first.
                with contextlib.suppress(CheckpointError):
                    self.keeping.wait(hurries=True)

    def asked_to_stop(self, stop: Callable[[], int]) -> int:
        """Return the signal that asked any worker to end; 0: none did."""
        if self.replicas.workers.count == 1:
            return stop()
        # The slowest and the fastest travel along: another collective would cost milliseconds.
        own = self.fitted.own_seconds
        most = self.replicas.control.largest(tf.constant([float(stop()), own, -own])).numpy()
        if self.voice.metrics and most[2] < 0:
            self.voice.metrics.set("headrace_straggler_ratio", float(most[1] / -most[2]))
        return int(most[0])

    def one_step(self, batch: dict[str, Any], *, waiting_seconds: float = 0.0) -> None:
        """Do one step and what is due after it.

        Args:
            batch: this worker's share.
            waiting_seconds: for which it was waited for.
        """
        self.keeping.check()
        started = time.monotonic()
        outcome = Outcome(
            *(one.numpy().item() for one in self.fitted.update(batch, self.progress.step))
        )
        seconds = time.monotonic() - started
        if self.voice.metrics:
            self.voice.metrics.step(waiting_seconds=waiting_seconds, computing_seconds=seconds)
        usual_seconds = seconds if self.is_warm else 0.0
        self._count(outcome, seconds)
        self._check_finite(outcome, batch)
        progress = self.progress
        is_last = progress.step == self.total_steps
        ends_epoch = is_last or progress.step % self.batches.steps_per_epoch == 0
        if ends_epoch or self.recent.is_due():
            self._report(outcome, ends_epoch=ends_epoch)
        if ends_epoch:
            self.beat(0.0)
            self.evaluate()
        if (
            self.is_complete
            or progress.step % self.job.checkpoint.every_steps == 0
            or progress.best_step == progress.step
        ):
            self.beat(0.0)
            self.save()
        self.beat(usual_seconds)

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
        if replicated.replicas(self.replicas) > 1 or "number_values" not in batch:
            return []
        broken = ~np.isfinite(np.asarray(batch["number_values"])).all(axis=0)
        return [one.name for one, is_so in zip(self.job.features.numbers, broken, strict=True)
                if is_so]  # fmt: skip

    def _report(self, outcome: Outcome, *, ends_epoch: bool) -> None:
        facts = self.recent.take()
        if ends_epoch:
            facts["epoch_loss"] = self._epoch_loss()
        self.voice.tell(
            "train_step",
            step=self.progress.step, epoch=self.epoch,
            learning_rate=outcome.learning_rate, gradient_norm=outcome.gradient_norm,
            loss_scale=outcome.loss_scale, skipped_steps=outcome.skipped_steps, **facts,
        )  # fmt: skip

    def _epoch_loss(self) -> float:
        return self.progress.epoch_loss / max(self.progress.epoch_examples, 1.0)

    # Evaluation and the end

    def evaluate(self) -> None:
        """Evaluate, and note whether it is the best so far and whether to stop early."""
        self.predictions = self.fitted.predict(self.eval_columns)
        label = self.job.features.label
        metrics = evaluation.metrics(self.predictions, self.eval_columns.label, label_feature=label)
        place = {"step": self.progress.step, "epoch": self.epoch}
        self.progress.note_evaluation(
            {**place, "train_loss": self._epoch_loss(), **metrics},
            after_rises=self.settings.early_stop.after_rises,
        )
        self.progress.epoch_loss = self.progress.epoch_examples = 0.0
        if self.voice.metrics:
            self.voice.metrics.set("headrace_eval_loss_rises", self.progress.rises)
        self.voice.tell("evaluation", **place, **metrics)
        self.recent.restart()

    def finish(self) -> Trained:
        """Return what came out; after an early stop, with the weights of the best evaluation."""
        self.beat(0.0)
        self.keeping.finish(upload_seconds=UPLOAD_SECONDS)
        progress = self.progress
        is_fresh = progress.step > self.start_step
        if progress.stopped_early:
            self.voice.warn(progress.early_stop(self.total_steps))
            is_fresh = not self._use_best() and is_fresh
        predictions = self.predictions if is_fresh else self.fitted.predict(self.eval_columns)
        facts = {
            "steps": progress.step,
            "examples_per_second": progress.examples / max(progress.seconds, 1e-9),
            "peak_memory_bytes": devices.peak_bytes(),
            "planned_memory_bytes": self.fitted.prediction.total_bytes,
            "process_memory_bytes": devices.process_peak_bytes(),
            "micro_batch": self.fitted.techniques.micro_batch,
            "resumed_from_step": self.start_step,
            "skipped_steps": int(self.fitted.state.loss_scale.skipped_steps.numpy()),
            "stopped_early": progress.stopped_early,
            "best_step": progress.best_step,
            "best_epoch": progress.best_epoch,
        }
        if self.keeping.uploads:
            facts["uploaded_step"] = self.keeping.uploads.uploaded_step
        self.voice.tell("training_done", **facts)
        return Trained(
            self.fitted.whole(is_wanted=self.voice.leads),
            predictions,
            facts,
            progress.history,
            self.voice.metrics,
        )

    def _use_best(self) -> bool:
        """Load the weights of the best evaluation; tell whether that changed them."""
        best = self.progress.best_step
        if not best or best == self.progress.step:
            return False
        path = Path(self.job.checkpoints) / f"step-{best:08d}"
        self.fitted.state.load_weights(checkpoint.load(path, self.fitted.state.template()).arrays)
        return True
