"""Evaluator: metrics of the eval split beside the trivial baseline's, and the blessing.

A model is blessed when its loss is strictly below the loss of a model that knows no column: one
that always answers with the class frequencies, or the mean, of the train split, and it is not
worse than the last pushed model on the same rows (`incumbent`). A loss that is
not a finite number never is. Predictions that are NaN or infinite are no verdict but a failure:
training ends with exit 4 on them itself, so here they mean that the files are not its own.
"""

# TFX reads the annotations of a component as objects: no `from __future__ import annotations`.
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components import diagnostics, incumbent, resampling, slices, statistics
from components.verdict import count
from trainer.errors import TrainingError
from trainer.journal import append
from trainer.settings import LabelFeature

FEW_UPDATES = 500
"""Weight updates below which more of them are the first thing to try."""


@dataclass(frozen=True)
class Evaluation:
    """What the eval split says of a model.

    Attributes:
        metrics, baseline: by the same names; None where a metric is not defined, such as the AUC
            of one class.
        blessed: whether the model may be pushed.
        reason: why, in one sentence.
        remedy: what may help, in one sentence; empty for a blessed model.
        notes: why a metric is not defined, one sentence each.
        intervals: by metric, bounds of the bootstrap on the eval split; None where there are none.
        details: what `diagnostics.of` shows of the task.
        slices: of `slices.metrics`.
        incumbent: `incumbent.Incumbent.facts`; None where no model was pushed before, or it
            cannot be compared, which a note says.
        classes: of the label, in the order of the probabilities; none of a quantity.
    """

    metrics: Mapping[str, float | None]
    baseline: Mapping[str, float | None]
    blessed: bool
    reason: str
    remedy: str
    notes: tuple[str, ...]
    intervals: Mapping[str, resampling.Interval | None] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    slices: Sequence[Mapping[str, Any]] = ()
    incumbent: Mapping[str, Any] | None = None
    classes: Sequence[str] = ()


def evaluate(
    run: Path,
    *,
    examples: str = "",
    columns: Sequence[str] = (),
    models: Path | None = None,
    margin: float = 0.0,
) -> Evaluation:
    """Judge the predictions that a training left in the folder `run`.

    Args:
        run: holds `result.json` (whose `predictions` names the file of them, relative to `run`),
            `label.npy` (int32 class ids or float64 values, [N]) and `features.json`.
        examples: place of the Examples artifact that was trained on, where there are columns.
        columns: those whose values cut the eval split into slices.
        models: folder of the pushed versions; None: compared with none.
        margin: share of the last pushed model's loss by which this one may be worse.

    Returns:
        Metrics, baseline and blessing.

    Raises:
        TrainingError: when a file is missing or damaged, predictions and labels differ in number,
            or (`NotFinite`) a prediction is NaN or infinite.
        SettingError: when a column of the slices is not there.
    """
    from trainer import evaluation

    predictions, label, feature, updates = _read_run(run)
    metrics = _defined(evaluation.metrics(predictions, label, label_feature=feature))
    baseline = _defined(evaluation.baseline(feature, label))
    blessed, reason = bless(metrics.get("loss"), baseline.get("loss"))
    helps = "" if blessed else what_helps(metrics.get("loss"), updates=updates)
    notes = evaluation.notes(label, label_feature=feature)
    last = None
    if models is not None and len(label):
        try:
            last = incumbent.compare(
                models,
                statistics.read_examples(examples, "eval"),
                predictions,
                label,
                label_feature=feature,
                margin=margin,
            )
        except incumbent.Incomparable as error:
            notes = [*notes, f"the last pushed model was not compared: {error}"]
    if last is not None and blessed:
        blessed, helps = not last.is_worse, incumbent.REMEDY if last.is_worse else ""
        reason = last.reason if last.is_worse else f"{reason}; {last.reason}"
    return Evaluation(
        metrics,
        baseline,
        blessed,
        reason,
        helps,
        tuple(notes),
        intervals=resampling.intervals(predictions, label, label_feature=feature),
        details=diagnostics.of(predictions, label, feature),
        slices=_slices(examples, columns, predictions, label, feature) if columns else (),
        incumbent=last.facts() if last else None,
        classes=feature.classes,
    )


def _slices(
    examples: str,
    columns: Sequence[str],
    predictions: np.ndarray,
    label: np.ndarray,
    feature: LabelFeature,
) -> list[dict[str, Any]]:
    convert = {"int": int, "float": float, "string": str.encode}[feature.kind]
    classes = [convert(one) for one in feature.classes] if feature.classes else None
    values = slices.read(statistics.read_examples(examples, "eval"), columns, feature.name, classes)
    return slices.metrics(values, predictions, label, label_feature=feature)


def _read_run(run: Path) -> tuple[np.ndarray, np.ndarray, LabelFeature, int | None]:
    """Return predictions, label, what the label is, and the weight updates that were made.

    Raises:
        TrainingError: when a file is missing or damaged, or the numbers of rows differ.
    """
    try:
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        predictions = np.load(run / result["predictions"], mmap_mode="r")
        label = np.load(run / "label.npy", mmap_mode="r")
        features = json.loads((run / "features.json").read_text(encoding="utf-8"))
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise TrainingError(
            f"what training left behind cannot be read: {error}",
            where=str(run),
            right="run the training again: headrace run --no-cache Trainer",
        ) from error
    if len(predictions) != len(label):
        raise TrainingError(
            "predictions and labels of the eval split differ in number",
            where=str(run),
            holds=f"{len(predictions)} predictions and {len(label)} labels",
            right="run the training again: headrace run --no-cache Trainer",
        )
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in features["label"].items()
    }
    training = result.get("training") or {}
    steps = training.get("steps")
    updates = None if steps is None else steps - (training.get("skipped_steps") or 0)
    return predictions, label, LabelFeature(**fields), updates


def _defined(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    # JSON knows no NaN, and a store would keep infinity as a number: not defined is None.
    numbers = {name: float(value) for name, value in metrics.items() if value is not None}
    return {
        name: numbers[name] if math.isfinite(numbers.get(name, math.nan)) else None
        for name in metrics
    }


def bless(loss: float | None, baseline: float | None) -> tuple[bool, str]:
    """Return whether a model with this eval loss may be pushed, and why, in one sentence."""
    if loss is None or not math.isfinite(loss):
        return False, "the model's loss on the eval split is not a finite number"
    if baseline is None or not math.isfinite(baseline):
        return False, "the baseline's loss on the eval split is not a finite number"
    # As many digits as the closing block has, unless the two would look alike.
    digits = 4 if f"{loss:.4g}" != f"{baseline:.4g}" or loss == baseline else 17
    is_below = "is below" if loss < baseline else "is not below"
    return (
        loss < baseline,
        f"loss {loss:.{digits}g} {is_below} the baseline's {baseline:.{digits}g}",
    )


def what_helps(loss: float | None, *, updates: int | None) -> str:
    """Return what may help a model that was not blessed.

    Args:
        loss: on the eval split; None or not finite: there is none to go by.
        updates: weight updates that training made; None: not known.
    """
    if loss is None or not math.isfinite(loss):
        return "look at the label in the eval split, or lower training.learning_rate"
    if updates is not None and updates < FEW_UPDATES:
        made = count(updates, "weight update")
        return f"training made {made}: raise training.epochs or lower training.global_batch"
    return "lower training.learning_rate, or add columns that say more about the label"


def write_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Write the evaluation as strict JSON, whole or not at all."""
    facts = {
        "metrics": dict(evaluation.metrics),
        "baseline": dict(evaluation.baseline),
        "blessed": evaluation.blessed,
        "reason": evaluation.reason,
        "remedy": evaluation.remedy,
        "notes": list(evaluation.notes),
        "intervals": dict(evaluation.intervals),
        "interval_share": resampling.SHARE,
        "last_pushed": evaluation.incumbent,
        "classes": list(evaluation.classes),
        **evaluation.details,
        "slices": list(evaluation.slices),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    incoming = path.with_name(f".{path.name}.incoming")
    incoming.write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(incoming, path)


def write_blessing(folder: Path, *, blessed: bool) -> None:
    """Write the empty file by whose name TFX tells a blessed model from another."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("BLESSED" if blessed else "NOT_BLESSED")).write_bytes(b"")


@component
def Evaluator(
    examples: InputArtifact[standard_artifacts.Examples],
    model: InputArtifact[standard_artifacts.Model],
    model_run: InputArtifact[standard_artifacts.ModelRun],
    evaluation: OutputArtifact[standard_artifacts.ModelEvaluation],
    blessing: OutputArtifact[standard_artifacts.ModelBlessing],
    settings: Parameter[str],
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument] - part of the cache key
) -> None:
    """Evaluate the trained model and say whether it may be pushed.

    Args:
        examples: the rows that it was evaluated on.
        model: the model that is judged.
        model_run: the folder that `evaluate` reads.
        evaluation: gets `evaluation.json`.
        blessing: gets the file `BLESSED` or `NOT_BLESSED`, and TFX's custom properties `blessed`,
            `blessing_message`, `current_model` and `current_model_id`, and our `blessing_remedy`.
        settings: JSON text of `slices`, columns that cut the eval split, `margin` and `models`,
            the folder of the pushed versions.
        fingerprint: JSON text of what a cached result depends on.
    """
    told = json.loads(settings)
    found = evaluate(
        Path(model_run.uri),
        examples=examples.uri,
        columns=told.get("slices", ()),
        models=Path(told["models"]) if told.get("models") else None,
        margin=told.get("margin", 0.0),
    )
    write_evaluation(found, Path(evaluation.uri) / "evaluation.json")
    write_blessing(Path(blessing.uri), blessed=found.blessed)
    blessing.set_int_custom_property("blessed", int(found.blessed))
    blessing.set_string_custom_property("blessing_message", found.reason)
    blessing.set_string_custom_property("blessing_remedy", found.remedy)
    blessing.set_string_custom_property("current_model", model.uri)
    blessing.set_int_custom_property("current_model_id", model.id)
    events = os.environ.get("HEADRACE_EVENTS", "")
    for note in found.notes:
        append(events, "warning", id="Evaluator", message=note)
    append(
        events,
        "metrics",
        metrics=dict(found.metrics),
        baseline=dict(found.baseline),
        blessed=found.blessed,
        intervals=dict(found.intervals),
        slices=[
            {name: one[name] for name in ("column", "value", "metrics")} for one in found.slices
        ],
    )
