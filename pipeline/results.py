"""What a run came to: the contract's JSON object, from the nodes' own artifacts and the journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline import lines
from pipeline.cache import Outputs

Event = dict[str, Any]
RunOutputs = Mapping[str, Outputs]

TRAINING_FIELDS = (
    "steps",
    "examples_per_second",
    "peak_memory_bytes",
    "planned_memory_bytes",
    "process_memory_bytes",
    "micro_batch",
    "resumed_from_step",
    "skipped_steps",
)


def gather(outputs: RunOutputs, events: Iterable[Event]) -> dict[str, Any]:
    """Return the parts of the result that nodes made.

    Args:
        outputs: each finished node's outputs, cached ones included.
        events: the run's journal; what a node that did not finish had told already.
    """
    told = list(events)
    result: dict[str, Any] = {
        "examples": _json(outputs, "ExampleGen", "examples", "rows.json").get("examples")
        or _last(told, "data").get("examples"),
        "anomalies": _anomalies(outputs, told),
        "metrics": None,
        "baseline": None,
        "training": None,
        "model": None,
    }
    training = _json(outputs, "Trainer", "model_run", "result.json").get("training")
    training = training or _last(told, "training_done")
    if training:
        result["training"] = {name: training.get(name) for name in TRAINING_FIELDS}
        if "uploaded_step" in training:
            result["training"]["uploaded_step"] = training["uploaded_step"]
    evaluated = evaluation(outputs)
    result["metrics"] = evaluated.get("metrics")
    result["baseline"] = evaluated.get("baseline")
    pushed = outputs.get("Pusher", {}).get("pushed")
    result["model"] = pushed.properties.get("pushed_destination") if pushed else None
    return result


def why_not_pushed(outputs: RunOutputs, events: Iterable[Event]) -> str:
    """Return why a push that was asked for added no version, in words; empty where it did.

    Args:
        outputs: each finished node's outputs, cached ones included.
        events: the run's journal.
    """
    pushed = outputs.get("Pusher", {}).get("pushed")
    if pushed is None or pushed.properties.get("pushed_destination"):
        return ""
    if told := _last(list(events), "not_pushed"):
        return lines.not_pushed(told)
    blessing = outputs.get("Evaluator", {}).get("blessing")
    kept = blessing.properties if blessing else {}
    return lines.not_pushed({
        "reason": kept.get("blessing_message"),
        "remedy": kept.get("blessing_remedy"),
    })


def evaluation(outputs: RunOutputs) -> Event:
    """Return what the Evaluator wrote; nothing where it did not come to its end."""
    return _json(outputs, "Evaluator", "evaluation", "evaluation.json")


def data_facts(outputs: RunOutputs) -> Event:
    """Return what ExampleGen told of the files, as it stands beside its examples."""
    return _json(outputs, "ExampleGen", "examples", "rows.json")


def task(outputs: RunOutputs) -> str | None:
    """Return the task that was trained for; None when nothing was."""
    return _json(outputs, "Trainer", "model_run", "features.json").get("label", {}).get("task")


def split_statistics(outputs: RunOutputs) -> dict[str, Path]:
    """Return the statistics file of each split of a run; empty when there are none."""
    statistics = outputs.get("StatisticsGen", {}).get("statistics")
    if statistics is None:
        return {}
    found = {
        path.parent.name.removeprefix("Split-"): path
        for path in Path(statistics.uri).glob("Split-*/FeatureStats.pb")
    }
    # What the model learns from comes first: the others are compared with it.
    return dict(sorted(found.items(), key=lambda one: (one[0] != "train", one[0])))


def drift(outputs: RunOutputs, folder: Path) -> dict[str, Any]:
    """Return what the gate says of drift and skew: from its artifact, or from the run's folder."""
    if found := _json(outputs, "DataGate", "verdict", "drift.json"):
        return found
    path = folder / "drift.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def history(outputs: RunOutputs, events: Iterable[Event]) -> list[Event]:
    """Return the training's own events: this run's, or those kept beside a cached model."""
    told = [event for event in events if event["event"] in {"train_step", "evaluation"}]
    return told or list(_json(outputs, "Trainer", "model_run", "result.json").get("events", []))


def _anomalies(outputs: RunOutputs, events: list[Event]) -> list[dict[str, Any]]:
    verdict = outputs.get("DataGate", {}).get("verdict")
    if verdict is not None and (Path(verdict.uri) / "anomalies.json").is_file():
        return json.loads((Path(verdict.uri) / "anomalies.json").read_text())
    return [
        {name: value for name, value in event.items() if name not in {"event", "time"}}
        for event in events
        if event["event"] == "anomaly"
    ]


def _json(outputs: RunOutputs, node: str, output: str, file: str) -> dict[str, Any]:
    found = outputs.get(node, {}).get(output)
    if found is None or not (Path(found.uri) / file).is_file():
        return {}
    return json.loads((Path(found.uri) / file).read_text())


def _last(events: list[Event], kind: str) -> Event:
    return next((event for event in reversed(events) if event["event"] == kind), {})
