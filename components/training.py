"""Trainer: examples to a model, in a process of its own.

The component writes the columns that the model reads, hands a `Job` to `trainer.supervisor`, and
keeps what came back beside the model: ``result.json``, the predictions of the eval split with
their labels, and the features.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components import checkpoints, fingerprint, shares
from components.gate import DataVerdict
from components.model_columns import write_columns
from trainer import journal, supervisor
from trainer.settings import (
    AugmentSettings,
    CheckpointSettings,
    Features,
    Job,
    ModelSettings,
    MonitoringSettings,
    to_json,
    training_from_json,
)

COLUMNS = "columns"


@component
def Trainer(
    examples: InputArtifact[standard_artifacts.Examples],
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: InputArtifact[standard_artifacts.Schema],
    verdict: InputArtifact[DataVerdict],  # ruff: ignore[unused-function-argument]
    model: OutputArtifact[standard_artifacts.Model],
    model_run: OutputArtifact[standard_artifacts.ModelRun],
    settings: Parameter[str],
    fingerprint: Parameter[str],
) -> None:
    """Train the model that the settings describe on the examples."""
    run_fn(
        examples=examples.uri,
        statistics=statistics.uri,
        schema=schema.uri,
        model=model.uri,
        model_run=model_run.uri,
        settings=json.loads(settings),
        fingerprint=fingerprint,
    )


def run_fn(
    *,
    examples: str,
    statistics: str,
    schema: str,
    model: str,
    model_run: str,
    settings: dict[str, Any],
    fingerprint: str,
) -> None:
    """Train, and write the SavedModel under `model` and the training's record under `model_run`.

    Afterwards the checkpoints that were not used for longest are removed.

    Args:
        examples: place of the Examples artifact.
        statistics: place of the ExampleStatistics artifact.
        schema: place of the Schema artifact.
        model: place that the SavedModel is written to, in TFX's layout.
        model_run: place that the training's record is written to.
        settings: label, task, ignore, choice, model, training, checkpoint, checkpoints (a folder)
            and folder (what a model of one's own is imported from).
        fingerprint: what the training depends on; names its folder of checkpoints.

    Raises:
        TrainingError: when training could not be brought to its end.
    """
    state = Path(settings["checkpoints"]) / _checkpoint_key(fingerprint)
    record = Path(model_run)
    with checkpoints.in_use(state):
        described = write_columns(
            state / COLUMNS,
            examples=examples,
            statistics=statistics,
            schema=schema,
            settings=settings,
        )
        record.mkdir(parents=True, exist_ok=True)
        (record / "features.json").write_text(json.dumps(to_json(described)))
        shares.write(record / shares.FILE, state / COLUMNS / "train", described)
        export = Path(model) / "Format-Serving"
        job = _job(settings, described, state=state, export=export, lineage=_lineage(fingerprint))
        result = _train(job, record)
        shutil.copyfile(Path(job.eval) / "label.npy", record / "label.npy")
        _write_record(record, result, job.events)
        shutil.rmtree(state / COLUMNS)
    checkpoints.prune(state.parent)


def _job(
    settings: dict[str, Any], described: Features, *, state: Path, export: Path, lineage: str
) -> Job:
    return Job(
        model=ModelSettings(**settings["model"]),
        training=training_from_json(settings["training"]),
        checkpoint=CheckpointSettings(**settings["checkpoint"]),
        features=described,
        train=str(state / COLUMNS / "train"),
        eval=str(state / COLUMNS / "eval"),
        checkpoints=str(state),
        export=str(export),
        events=os.environ.get("HEADRACE_EVENTS", ""),
        result="",
        folder=settings.get("folder", ""),
        monitoring=MonitoringSettings(**settings.get("monitoring", {})),
        lineage=lineage,
        augment=AugmentSettings(**settings.get("augment", {})),
    )


def _train(job: Job, record: Path) -> dict[str, Any]:
    """Run the job in the waiting process of this run, or in a new one."""
    run_folder = os.environ.get("HEADRACE_RUN_DIR")
    if run_folder:
        return _run(job, Path(run_folder) / "training", record)
    with tempfile.TemporaryDirectory(prefix="headrace-training-") as folder:
        return _run(job, Path(folder), record)


def _run(job: Job, folder: Path, record: Path) -> dict[str, Any]:
    result = supervisor.run(job, folder, max_restarts=job.training.max_restarts)
    shutil.copyfile(result["predictions"], record / "predictions.npy")
    return result


def _write_record(record: Path, result: dict[str, Any], events: str) -> None:
    """Keep the result, with the events that its curves are drawn from."""
    kept = {"train_step", "evaluation"}
    told = [one for one in journal.read(events)[0] if one["event"] in kept] if events else []
    whole = {**result, "predictions": "predictions.npy", "events": told}
    (record / "result.json").write_text(json.dumps(whole))


def _checkpoint_key(whole: str) -> str:
    return fingerprint.of_state(json.loads(whole))


def _lineage(whole: str) -> str:
    """Return what of a fingerprint is the same on every machine: the files' places are not."""
    parts = json.loads(whole)
    return fingerprint.digest({
        name: parts.get(name) for name in ("code", "packages", "generation")
    })
