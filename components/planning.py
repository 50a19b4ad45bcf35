"""MemoryPlanner: what training would need, worked out instead of training.

It stands where the Trainer stands in a run: the same columns, the same job, the same waiting
process, which traces the step and runs none.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components.gate import DataVerdict
from components.model_columns import write_columns
from trainer import journal, measuring, supervisor
from trainer.errors import MemoryExceeded, SettingError, TrainingError, WorkerLost
from trainer.settings import CheckpointSettings, Job, ModelSettings, to_json, training_from_json

PLAN = "plan.json"


@component
def MemoryPlanner(
    examples: InputArtifact[standard_artifacts.Examples],
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: InputArtifact[standard_artifacts.Schema],
    verdict: InputArtifact[DataVerdict],  # ruff: ignore[unused-function-argument]
    model_run: OutputArtifact[standard_artifacts.ModelRun],
    settings: Parameter[str],
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument]
) -> None:
    """Write what training would need under `model_run`, and into the run's folder."""
    told = plan(
        examples=examples.uri,
        statistics=statistics.uri,
        schema=schema.uri,
        settings=json.loads(settings),
    )
    record = Path(model_run.uri)
    record.mkdir(parents=True, exist_ok=True)
    (record / PLAN).write_text(json.dumps(told))
    run_folder = os.environ.get("HEADRACE_RUN_DIR")
    if run_folder:
        (Path(run_folder) / "forecast.json").write_text(json.dumps(told))


def plan(*, examples: str, statistics: str, schema: str, settings: dict[str, Any]) -> Any:
    """Return the forecast of the training that the settings describe.

    Args:
        examples: place of the Examples artifact.
        statistics: place of the ExampleStatistics artifact.
        schema: place of the Schema artifact.
        settings: as the Trainer's; ``purpose`` is ``plan``, or ``measure``, which measures it
            with ``measured_steps`` steps.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as place:
        folder = Path(place)
        described = write_columns(
            folder, examples=examples, statistics=statistics, schema=schema, settings=settings
        )
        job = Job(
            model=ModelSettings(**settings["model"]),
            training=training_from_json(settings["training"]),
            checkpoint=CheckpointSettings(**settings["checkpoint"]),
            features=described,
            train=str(folder / "train"),
            eval=str(folder / "eval"),
            checkpoints=str(folder / "checkpoints"),
            export="",
            events=os.environ.get("HEADRACE_EVENTS", ""),
            result="",
            folder=settings.get("folder", ""),
            purpose="plan",
        )
        waiting = os.environ.get("HEADRACE_RUN_DIR")
        at = Path(waiting) / "training" if waiting else folder / "worker"
        told = supervisor.run(job, at, max_restarts=0)["forecast"]
        if settings["purpose"] == "measure":
            told["measured"] = measure(job, told, at.parent, steps=settings["measured_steps"])
        # What the levers are chosen by, and no field of a plan.
        del told["is_gpu"]
        return told


def measure(
    job: Job, forecast: Mapping[str, Any], folder: Path, *, steps: int
) -> list[dict[str, Any]]:
    """Return the lever table: each row trained for some steps in processes of its own.

    Args:
        job: of the plan.
        forecast: the plan.
        folder: where the processes meet.
        steps: weight updates of each row.
    """
    table = list(measuring.rows(job.training, forecast, steps=steps))
    found: dict[str, dict[str, Any]] = {}
    told: list[dict[str, Any]] = []
    for number, row in enumerate(table):
        progress = {"id": "MemoryPlanner", "done": number, "total": len(table)}
        journal.append(job.events, "progress", **progress, unit=f"levers measured; now {row.name}")
        one = replace(job, training=row.training, purpose="measure")
        entry: dict[str, Any] = {
            "name": row.name,
            "against": row.against or None,
            "settings": to_json(row.training),
            "error": None,
        }
        try:
            found[row.name] = supervisor.run(
                one, folder / f"measuring-{number}", max_restarts=0
            )["measured"]  # fmt: skip
            entry |= found[row.name] | measuring.compared(found[row.name], found.get(row.against))
        except (SettingError, MemoryExceeded, WorkerLost, TrainingError) as error:
            # One that cannot be had here is a line of the table, and no end of it.
            entry["error"] = str(error)
        told.append(entry)
        journal.append(job.events, "measured", id="MemoryPlanner", entry=entry)
    return told
