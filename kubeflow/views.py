"""What KFP's dashboard shows of a node: report, numbers, ROC curve, confusion matrix."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubeflow.parameters import property_text

MOST_CLASSES = 50
"""A confusion matrix of more is not shown."""
CURVE_POINTS = 100


def write(
    spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path
) -> dict[str, dict[str, Any]]:
    """Write the views of a node that has run, and return their metadata by KFP's name."""
    made: dict[str, dict[str, Any]] = {}
    if "report" in spec["views"]:
        _report(spec, given, Path(given["view_report"]["path"]))
        made["view_report"] = {}
    if "metrics" in spec["views"]:
        evaluation = _json(_out(given, "evaluation") / "evaluation.json")
        # A metric that is not defined stays null here, and is a text in what KFP is told.
        Path(given["view_metrics"]["path"]).write_text(json.dumps(evaluation))
        made["view_metrics"] = numbers(evaluation)
    if "classification" in spec["views"]:
        found = _classification(spec, given)
        Path(given["view_classification"]["path"]).write_text(json.dumps(found))
        made["view_classification"] = found
    del scratch
    return made


def numbers(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that are numbers; the others as texts, since JSON has no NaN."""
    said: dict[str, Any] = {}
    for prefix, kind in (("", "metrics"), ("baseline_", "baseline")):
        for name, value in (evaluation.get(kind) or {}).items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            said[prefix + name] = value if is_number else "undefined"
    return said


def _report(spec: Mapping[str, Any], given: Mapping[str, Any], path: Path) -> None:
    """Write the data validation report of a node that has statistics and a schema."""
    from components import report

    places = _places(spec, given)
    statistics = places.get("statistics")
    if statistics is None:
        path.write_text("<!doctype html><title>report</title><p>no statistics</p>")
        return
    found = sorted(statistics.glob("Split-*/FeatureStats.pb"), reverse=True)
    splits = {one.parent.name.removeprefix("Split-"): one for one in found}
    verdict = places.get("verdict")
    anomalies = _json(verdict / "anomalies.json") if verdict else []
    facts, own = spec["facts"], property_text(spec, "fingerprint")
    schema = places.get("schema")
    report.write_report(
        path,
        title=spec["pipeline"],
        statistics=splits,
        anomalies=anomalies or [],
        schema=schema / "schema.pbtxt" if schema else None,
        label=facts.get("label", ""),
        ignored=facts.get("ignored", []),
        history=[],
        metrics={},
        baseline={},
        facts={"status": "succeeded", "settings": json.loads(own)["settings"] if own else {}},
    )


def _places(spec: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Path]:
    """Return where inputs and outputs are, by output key."""
    found = {key: Path(given[name]["path"]) for name, (_, key) in spec["inputs"].items()}
    return found | {
        key: Path(given[f"out_{name}"]["path"]) for name, key in spec["outputs"].items()
    }


def _classification(spec: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ROC curve of two classes or the confusion matrix of some; nothing of others."""
    run = _places(spec, given).get("model_run")
    if run is None or not (run / "predictions.npy").is_file():
        return {}
    import numpy as np

    label = _json(run / "features.json")["label"]
    classes = label["classes"]
    if label["task"] not in {"binary", "multiclass"} or len(classes) > MOST_CLASSES:
        return {}
    truth = np.load(run / "label.npy").astype(int)
    predictions = np.load(run / "predictions.npy")
    scores = predictions.reshape(len(truth), -1)
    if label["task"] == "binary":
        # One logit, or one a class: what counts is the order.
        score = scores[:, -1] - (scores[:, 0] if scores.shape[1] == 2 else 0.0)
        chosen = (score > 0).astype(int)
        curve = {"confidenceMetrics": roc(score, truth)}
    else:
        chosen, curve = scores.argmax(axis=1), {}
    matrix = np.zeros((len(classes), len(classes)), int)
    np.add.at(matrix, (truth, chosen), 1)
    return {
        **curve,
        "confusionMatrix": {
            "annotationSpecs": [{"displayName": name} for name in classes],
            "rows": [{"row": row.tolist()} for row in matrix],
        },
    }


def roc(score: Any, truth: Any) -> list[dict[str, float]]:
    """Return points of the ROC curve as KFP has them; no threshold of them is infinite.

    Args:
        score: float [N], higher for class 1.
        truth: 0 or 1 [N].
    """
    import numpy as np

    positives, negatives = int(truth.sum()), int((1 - truth).sum())
    if not positives or not negatives or not np.isfinite(score).all():
        return []
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], truth[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    kept = last[np.unique(np.linspace(0, len(last) - 1, min(CURVE_POINTS, len(last))).astype(int))]
    recall = np.cumsum(hits)[kept] / positives
    fallout = np.cumsum(1 - hits)[kept] / negatives
    return [
        {
            "confidenceThreshold": float(ranked[at]),
            "recall": float(up),
            "falsePositiveRate": float(across),
        }
        for at, up, across in zip(kept, recall, fallout, strict=True)
    ]


def _out(given: Mapping[str, Any], name: str) -> Path:
    return Path(given[f"out_{name}"]["path"])


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
