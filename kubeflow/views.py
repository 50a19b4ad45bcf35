"""What KFP's dashboard shows of a node: report, numbers, ROC curve, confusion matrix."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubeflow.parameters import property_text

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
        Path(given["view_metrics"]["path"]).write_text(json.dumps(evaluation, allow_nan=False))
        made["view_metrics"] = numbers(evaluation)
    if "classification" in spec["views"]:
        found = _classification(spec, given)
        Path(given["view_classification"]["path"]).write_text(json.dumps(found, allow_nan=False))
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
    """Return what the evaluation says of classes, as KFP has it; nothing of other tasks.

    The confusion matrix is the evaluation's own, and two classes have a ROC curve beside it.
    """
    found = _json(_out(given, "evaluation") / "evaluation.json").get("confusion")
    if not found:
        return {}
    matrix = {
        "annotationSpecs": [{"displayName": name} for name in found["classes"]],
        "rows": [{"row": row} for row in found["rows"]],
    }
    return {**_curve(_places(spec, given).get("model_run")), "confusionMatrix": matrix}


def _curve(run: Path | None) -> dict[str, Any]:
    """Return the ROC curve of a training's predictions; nothing where there are not two classes."""
    if run is None or not (run / "predictions.npy").is_file():
        return {}
    if _json(run / "features.json")["label"]["task"] != "binary":
        return {}
    import numpy as np

    truth = np.load(run / "label.npy").astype(int)
    # The probability of the second class, as the evaluation reads it.
    probability = np.load(run / "predictions.npy").reshape(len(truth), -1)[:, 0]
    return {"confidenceMetrics": roc(probability, truth)}


def roc(score: Any, truth: Any) -> list[dict[str, float]]:
    """Return points of the ROC curve as KFP has them, from where nothing is taken for class 1.

    The threshold there is one above the highest score, since JSON has no infinite one.

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
            "confidenceThreshold": float(threshold),
            "recall": float(up),
            "falsePositiveRate": float(across),
        }
        for threshold, up, across in [
            (ranked[0] + 1.0, 0.0, 0.0),
            *zip(ranked[kept], recall, fallout, strict=True),
        ]
    ]


def _out(given: Mapping[str, Any], name: str) -> Path:
    return Path(given[f"out_{name}"]["path"])


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
