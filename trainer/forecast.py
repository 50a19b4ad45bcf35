"""What a training would need, before a step is run: the table of `headrace plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainer import devices, planner
from trainer.candidates import Candidates, of_workers
from trainer.errors import MemoryExceeded, SettingError
from trainer.measuring import PLAIN, TOGETHER
from trainer.settings import Job, Techniques, TrainingSettings

FIRST_STEP_BYTES, OPERATION_BYTES = 24 * 2**20, 30 * 2**10
"""What running a step for the first time adds to a process: threads with their stacks, and for each
operation of its graphs kernels, and copies of the graph that are optimized and partitioned (a line
through what `bench/planner.py` measured, 64 to 431 MiB for 1,084 to 12,766 operations)."""


def forecast(candidates: Candidates) -> dict[str, Any]:
    """Return the plan, the peak of each lever alone, and what was passed over.

    Args:
        candidates: of the job; nothing of them is run.
    Returns: JSON values: ``limit_bytes``, ``choice`` (None where nothing fits, then ``error``),
        ``levers`` and ``passed_over``; each entry has ``settings``, ``peak_bytes``, ``terms``,
        ``relative_time`` (1 is the fastest) and ``fits``, the choice ``process_bytes`` too.
    """
    settings, shape = candidates.job.training, candidates.shape()
    share = 1 if devices.gpus() else shape.workers
    limit = planner.limit_bytes(settings, lambda: devices.free_bytes() // share)
    told: dict[str, Any] = {
        "limit_bytes": limit,
        "global_batch": settings.global_batch,
        "precision": candidates.policy,
        "workers": shape.workers,
        "is_gpu": shape.is_gpu,
        "choice": None,
        "error": None,
    }
    try:
        plan = planner.plan(settings, shape, predict=candidates.predict, free_bytes=lambda: limit)
        told["choice"] = _entry("plan", plan.techniques, candidates, shape, limit) | {
            "process_bytes": process_bytes(candidates, plan)
        }
        told["passed_over"] = [
            _entry(planner.describe(one.techniques), one.techniques, candidates, shape, limit)
            for one in plan.tried
            if not one.fits
        ]
    except (SettingError, MemoryExceeded) as error:
        told["error"] = error.facts()
        told["passed_over"] = []
    told["levers"] = [
        _entry(name, one, candidates, shape, limit)
        for name, one in levers(settings, shape)
    ]  # fmt: skip
    return told


def process_bytes(candidates: Candidates, plan: planner.Plan) -> int:
    """Return the resident memory that a process will reach which has planned, and now trains so.

    On a GPU the plan's peak is not part of it.
    """
    peak = 0 if devices.gpus() else plan.prediction.total_bytes - candidates.framework_bytes
    first = FIRST_STEP_BYTES + OPERATION_BYTES * plan.prediction.operations
    return devices.process_bytes() + peak + first


def levers(settings: TrainingSettings, shape: planner.Shape) -> Iterator[tuple[str, Techniques]]:
    """Give the training without any technique, with each alone, and with all of them.

    Args:
        settings: what is set stays set; the rest is plain in the first.
        shape: of the model.

    Yields:
        The name of a lever, and the techniques with it.
    """
    plain = replace(
        planner.fastest(settings, shape), recompute=0, attention="plain", token_loss="plain",
        shard="none",
    )  # fmt: skip
    small = max(1, min(shape.rows, shape.fills_cores))
    changes: dict[str, dict[str, Any]] = {"micro_batch": {"micro_batch": small}}
    if shape.blocks:
        changes["recompute"] = {"recompute": shape.blocks}
    if shape.has_attention:
        changes["attention"] = {"attention": "chunked"}
    if shape.has_token_loss:
        changes["token_loss"] = {"token_loss": "chunked"}
    if shape.workers > 1:
        for level in ("optimizer", "gradients", "parameters"):
            changes[f"shard {level}"] = {"shard": level}
    yield PLAIN, plain
    together: dict[str, Any] = {}
    for name, change in changes.items():
        yield name, replace(plain, **change)
        together |= change
    yield TOGETHER, replace(plain, **together)


def _entry(
    name: str, techniques: Techniques, candidates: Candidates, shape: planner.Shape, limit: int
) -> dict[str, Any]:
    prediction = candidates.predict(techniques)
    return {
        "name": name,
        "settings": dataclasses.asdict(techniques),
        "peak_bytes": prediction.total_bytes,
        "terms": dict(prediction.terms),
        "relative_time": round(shape.cost(techniques), 3),
        "fits": prediction.total_bytes <= limit,
    }


def of_job(job: Job) -> dict[str, Any]:
    """Return the forecast of a job."""
    from trainer.loop import Run

    count = job.training.workers
    return forecast(Run(job, replicas=of_workers(count) if count > 1 else None).candidates)
