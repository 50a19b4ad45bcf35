"""What each lever saves and costs, measured: some steps of training in a process of its own.

`rows` says what is to be measured, from the forecast of the same job; `of_job` is what each of
those processes does. The rows of a batch, its seeds and the weights at the start are the same in
all, so a difference of their losses is the lever's own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer.settings import Job, TrainingSettings

LOCAL_WORKERS = 2
"""Processes that ZeRO is measured with, where the configuration has one."""
SAVES = 0.02
"""Share of a peak below which a difference is no saving: chunks of the allocator, not a lever."""
PLAIN, TOGETHER = "plain", "all together"
"""Names of the first and the last lever of a forecast."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: of the lever, or of those added up so far.
        training: its settings.
        against: name of the row that it is compared with; empty: it is compared with none.
    """

    name: str
    training: TrainingSettings
    against: str


def rows(settings: TrainingSettings, forecast: Mapping[str, Any], *, steps: int) -> Iterator[Row]:
    """Give the plain training, each lever alone, then one after another added up.

    Args:
        settings: what is set besides.
        forecast: of the same job, as `trainer.forecast.forecast` gives it.
        steps: how many each of them does.

    Yields:
        The rows, each after the one that it is compared with.
    """
    known = {one["name"]: one["settings"] for one in forecast["levers"]}
    base = replace(settings, steps=steps, memory_limit="auto", max_restarts=0)
    plain = _with(base, known.pop(PLAIN))
    known.pop(TOGETHER)
    yield Row(PLAIN, plain, "")
    half = "mixed_float16" if forecast["is_gpu"] else "mixed_bfloat16"
    levers = {name: _with(base, one) for name, one in known.items()}
    levers = {name: one for name, one in levers.items() if one != plain}
    if forecast["precision"] == "float32":
        levers[f"precision {half}"] = replace(plain, precision=half)
    if forecast["is_gpu"] and settings.workers == 1:
        levers["offload cpu"] = replace(plain, offload="cpu")
    for name, one in levers.items():
        yield Row(name, one, PLAIN)
    yield from _added_up(plain, levers)
    if settings.workers == 1:
        yield from _on_workers(plain)


def _added_up(plain: TrainingSettings, levers: Mapping[str, TrainingSettings]) -> Iterator[Row]:
    """Give the levers that do not change what is computed, one after another.

    Yields:
        A row for each after the first, with those before it.
    """
    together, names = plain, []
    for name, one in levers.items():
        if name.startswith(("precision", "shard")):
            continue
        changed = {key: value for key, value in vars(one).items() if value != getattr(plain, key)}
        together = replace(together, **changed)
        names.append(name)
        if len(names) > 1:
            before = " + ".join(names[:-1])
            yield Row(" + ".join(names), together, before)


def _on_workers(plain: TrainingSettings) -> Iterator[Row]:
    """Give ZeRO's levels, and the workers without any.

    Yields:
        The rows, that without any first.
    """
    share = -(-plain.global_batch // LOCAL_WORKERS)
    several = replace(plain, workers=LOCAL_WORKERS, micro_batch=min(int(plain.micro_batch), share))
    first = f"{LOCAL_WORKERS} workers"
    yield Row(first, several, "")
    for level in ("optimizer", "gradients", "parameters"):
        yield Row(f"{first}, shard {level}", replace(several, shard=level), first)


def _with(base: TrainingSettings, techniques: Mapping[str, Any]) -> TrainingSettings:
    return replace(base, **{**techniques, "recompute": techniques["recompute"] > 0})


def compared(found: Mapping[str, Any], other: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a row says of the one that it is compared with.

    Args:
        found: what `of_job` returned for it.
        other: the same of the other; None: there is none, or it could not be measured.

    Returns: ``peak_share`` and ``time_ratio`` of the other's, ``loss_difference`` (the greatest
        over all steps) and ``saves``; None where there is nothing to compare with.
    """
    if other is None:
        return dict.fromkeys(("peak_share", "time_ratio", "loss_difference", "saves"))
    share = found["peak_bytes"] / max(other["peak_bytes"], 1)
    pairs = zip(found["losses"], other["losses"], strict=True)
    return {
        "peak_share": share,
        "time_ratio": found["step_seconds"] / other["step_seconds"],
        "loss_difference": max(abs(one - two) for one, two in pairs),
        "saves": share <= 1 - SAVES,
    }


def of_job(job: Job, *, beat: Callable[[float], None]) -> dict[str, Any]:
    """Do the job's steps, and nothing else of a training; return what they took.

    Returns: JSON values: ``planned_bytes`` and ``peak_bytes`` of TensorFlow's allocator,
        ``process_bytes`` (resident), ``step_seconds`` (median, without the first),
        ``examples_per_second``, ``tokens_per_second`` (None but for texts) and ``losses``, the
        mean over each step's examples.

    Raises:
        MemoryExceeded: when nothing fits the memory that is free.
    """
    from trainer import devices
    from trainer import strategy as replicated
    from trainer.batches import ahead
    from trainer.loop import Run

    run = Run(job, beat=beat)
    run.compare()
    run.fitted.choose()
    devices.reset_peak()
    seconds, losses = [], []
    for batch in ahead(
        replicated.share(run.replicas, run.batches.at(one)) for one in range(run.total_steps)
    ):
        began = time.monotonic()
        outcome = run.fitted.update(batch, len(losses))
        losses.append(float(outcome.loss) / max(float(outcome.examples), 1.0))
        seconds.append(time.monotonic() - began)
        beat(seconds[-1] if len(seconds) > 1 else 0.0)
    usual = statistics.median(seconds[1:] or seconds)
    examples = job.training.global_batch / usual
    tokens = run.fitted.built.tokens if job.features.text else None
    return {
        "planned_bytes": run.fitted.prediction.total_bytes,
        "peak_bytes": devices.peak_bytes(),
        "process_bytes": devices.process_peak_bytes(),
        "step_seconds": usual,
        "examples_per_second": examples,
        "tokens_per_second": examples * tokens if tokens else None,
        "losses": losses,
    }
