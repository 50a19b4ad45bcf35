"""MemoryPlanner: what training would need, worked out instead of training.

It stands where the Trainer stands in a run: the same columns, the same job, the same waiting
process, which traces the step and runs none.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components.gate import DataVerdict
from components.model_columns import write_columns
from trainer import supervisor
from trainer.settings import CheckpointSettings, Job, ModelSettings, training_from_json

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
        settings: as the Trainer's; ``purpose`` is ``plan`` or ``measure``.
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
            purpose=settings["purpose"],
        )
        waiting = os.environ.get("HEADRACE_RUN_DIR")
        at = Path(waiting) / "training" if waiting else folder / "worker"
        return supervisor.run(job, at, max_restarts=0)["forecast"]
