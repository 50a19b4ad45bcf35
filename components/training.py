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

import numpy as np
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components import checkpoints, features, fingerprint, statistics
from components.features import Column
from components.gate import DataVerdict
from trainer import journal, supervisor
from trainer.errors import SettingError
from trainer.settings import (
    CheckpointSettings,
    Features,
    Job,
    LabelFeature,
    ModelSettings,
    to_json,
    training_from_json,
)

KINDS: dict[str, features.Kind] = {"INT": "int", "FLOAT": "float", "BYTES": "string"}
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
        settings: label, task, ignore, model, training, checkpoint and checkpoints (a folder).
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
        job = _job(settings, described, state=state, export=Path(model) / "Format-Serving")
        result = _train(job, record)
        shutil.copyfile(Path(job.eval) / "label.npy", record / "label.npy")
        _write_record(record, result, job.events)
        shutil.rmtree(state / COLUMNS)
    checkpoints.prune(state.parent)


def _job(settings: dict[str, Any], described: Features, *, state: Path, export: Path) -> Job:
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
    return fingerprint.digest(json.loads(whole))


def write_columns(
    folder: Path, *, examples: str, statistics: str, schema: str, settings: dict[str, Any]
) -> Features:
    """Write the column files of both splits under `folder`, and describe them.

    Args:
        folder: gets ``train/`` and ``eval/``.
        examples: place of the Examples artifact.
        statistics: place of the ExampleStatistics artifact.
        schema: place of the Schema artifact.
        settings: label, task and ignore.

    Raises:
        SettingError: when no column is left to learn from, or the task does not fit the label.
    """
    shutil.rmtree(folder, ignore_errors=True)
    train = _read_statistics(Path(statistics), "train")
    chosen = choose_columns(
        Path(schema) / "schema.pbtxt", settings["ignore"], several=_hold_several(train)
    )
    top_values, rows = _top_values(train), int(train.num_examples)
    eval_rows = int(_read_statistics(Path(statistics), "eval").num_examples)
    label_name = settings["label"]
    _write_split(folder / "train", examples, "train", columns=chosen, rows=rows, label=label_name)
    values, _ = features.read_values(folder / "train", label_name)
    kind = next(one.kind for one in chosen if one.name == label_name)
    label = features.label_feature(label_name, kind, values, task=settings["task"])
    described = features.features_of(
        folder / "train", chosen, label, top_values=top_values, rows=rows
    )
    if not described.numbers and not described.categories:
        raise SettingError(
            "no column is left to learn from: each is ignored, empty or constant",
            where="data.ignore",
            holds=json.dumps(settings["ignore"]),
            right="leave at least one column out of it",
        )
    classes = None if label.task == "regression" else _typed(label.classes, kind)
    _write_split(
        folder / "eval",
        examples,
        "eval",
        columns=chosen,
        rows=eval_rows,
        label=label_name,
        keep=classes,
    )
    for split in ("train", "eval"):
        _write_label(folder / split, label)
    return described


def _typed(classes: tuple[str, ...], kind: features.Kind) -> list[Any]:
    convert = {"int": int, "float": float, "string": str.encode}[kind]
    return [convert(value) for value in classes]


def _write_split(
    folder: Path,
    examples: str,
    split: str,
    *,
    columns: list[Column],
    rows: int,
    label: str,
    keep: list[Any] | None = None,
) -> None:
    """Write the columns of one split's rows that have a label which can be used."""
    writer = features.SplitWriter(folder, columns, rows=rows)
    for batch in statistics.read_examples(examples, split):
        writer.add(features.keep_rows(batch, label, keep))
    writer.close()


def choose_columns(schema: Path, ignore: list[str], *, several: frozenset[str]) -> list[Column]:
    """Return the schema's columns that are not ignored, the label among them, by name.

    A column that holds several values in a row is left out, and said so.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    parsed = text_format.Parse(schema.read_text(), schema_pb2.Schema())
    chosen = []
    for feature in sorted(parsed.feature, key=lambda one: one.name):
        kind = KINDS.get(schema_pb2.FeatureType.Name(feature.type))
        if feature.name in ignore or kind is None:
            continue
        if feature.name in several:
            _warn(
                f"column {feature.name} holds several values in a row; the model does not read it"
            )
            continue
        chosen.append(Column(feature.name, kind))
    return chosen


def _warn(message: str) -> None:
    journal.append(os.environ.get("HEADRACE_EVENTS", ""), "warning", id="Trainer", message=message)


def _read_statistics(folder: Path, split: str) -> Any:
    """Return TFDV's statistics of one split (DatasetFeatureStatistics)."""
    from tensorflow_metadata.proto.v0 import statistics_pb2

    parsed = statistics_pb2.DatasetFeatureStatisticsList()
    parsed.ParseFromString((folder / f"Split-{split}" / "FeatureStats.pb").read_bytes())
    return parsed.datasets[0]


def _name(feature: Any) -> str:
    return feature.name or ".".join(feature.path.step)


def _hold_several(statistics: Any) -> frozenset[str]:
    """Return the columns that hold more than one value in some row."""
    return frozenset(
        _name(feature)
        for feature in statistics.features
        if getattr(feature, feature.WhichOneof("stats")).common_stats.max_num_values > 1
    )


def _top_values(statistics: Any) -> dict[str, dict[str, float]]:
    """Return TFDV's top values by text column, most frequent first."""
    return {
        _name(feature): {
            bucket.label: bucket.sample_count
            for bucket in feature.string_stats.rank_histogram.buckets
        }
        for feature in statistics.features
        if feature.HasField("string_stats")
    }


def _write_label(folder: Path, label: LabelFeature) -> None:
    values, _ = features.read_values(folder, label.name)
    np.save(folder / "label.npy", features.class_ids(label, np.asarray(values)))
