"""What a run came to: the contract's JSON object, from the nodes' own artifacts and the journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Uris = Mapping[str, Mapping[str, str]]

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


def gather(uris: Uris, events: Iterable[Event]) -> dict[str, Any]:
    """Return the parts of the result that nodes made.

    Args:
        uris: each finished node's outputs, cached ones included.
        events: the run's journal; what a node that did not finish had told already.
    """
    told = list(events)
    result: dict[str, Any] = {
        "examples": _json(uris, "ExampleGen", "examples", "rows.json").get("examples")
        or _last(told, "data").get("examples"),
        "anomalies": _anomalies(uris, told),
        "metrics": None,
        "baseline": None,
        "training": None,
        "model": None,
    }
    training = _json(uris, "Trainer", "model_run", "result.json").get("training")
    training = training or _last(told, "training_done")
    if training:
        result["training"] = {name: training.get(name) for name in TRAINING_FIELDS}
    evaluation = _json(uris, "Evaluator", "evaluation", "evaluation.json")
    result["metrics"] = evaluation.get("metrics")
    result["baseline"] = evaluation.get("baseline")
    result["model"] = _json(uris, "Pusher", "pushed", "pushed.json").get("path")
    return result


def split_statistics(uris: Uris) -> dict[str, Path]:
    """Return the statistics file of each split of a run; empty when there are none."""
    folder = uris.get("StatisticsGen", {}).get("statistics")
    if folder is None:
        return {}
    return {
        path.parent.name.removeprefix("Split-"): path
        for path in sorted(Path(folder).glob("Split-*/FeatureStats.pb"))
    }


def history(uris: Uris, events: Iterable[Event]) -> list[Event]:
    """Return the training's own events: this run's, or those kept beside a cached model."""
    told = [event for event in events if event["event"] in {"train_step", "evaluation"}]
    return told or list(_json(uris, "Trainer", "model_run", "result.json").get("events", []))


def _anomalies(uris: Uris, events: list[Event]) -> list[dict[str, Any]]:
    path = Path(uris.get("DataGate", {}).get("verdict", "")) / "anomalies.json"
    if "DataGate" in uris and path.is_file():
        return json.loads(path.read_text())
    return [
        {name: value for name, value in event.items() if name not in {"event", "time"}}
        for event in events
        if event["event"] == "anomaly"
    ]


def _json(uris: Uris, node: str, output: str, file: str) -> dict[str, Any]:
    folder = uris.get(node, {}).get(output)
    if folder is None or not (Path(folder) / file).is_file():
        return {}
    return json.loads((Path(folder) / file).read_text())


def _last(events: list[Event], kind: str) -> Event:
    return next((event for event in reversed(events) if event["event"] == kind), {})
