"""What the gate says of drift and skew: against the last data that passed, and of the two splits.

Data that were refused never become the baseline: only a gate that let them pass ends well, and
only executions that ended well are looked at (`pipeline.baseline`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from components import checks, drift, text_choice
from components.checks import Split
from components.drift import Distance, Thresholds
from components.split import differs_by_design
from components.verdict import Anomaly

FILE = "drift.json"
NONE = "no data of this pipeline passed the gate before these, so there is no baseline for drift"
SHOWN = 5


@dataclass
class Comparison:
    """What was compared.

    Attributes:
        run: whose train split the baseline is; empty: there is none.
        statistics: file of its statistics; empty: there is none.
        said: about the baseline, one line each.
        found: the distances.
        anomalies: those that are too far.
    """

    run: str = ""
    statistics: str = ""
    said: list[str] = field(default_factory=list)
    found: list[Distance] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return what ``drift.json`` holds."""
        return {
            "baseline": self.run or None,
            "statistics": self.statistics or None,
            "said": self.said,
            "distances": [one.facts() for one in self.found],
        }


def compare(
    splits: Sequence[Split], schema: schema_pb2.Schema, settings: Mapping[str, Any]
) -> Comparison:
    """Compare train with the baseline's train, and eval with train.

    Args:
        splits: of these data, train first.
        schema: whose comparators hold thresholds of single columns.
        settings: the gate's: ``drift`` and ``skew`` (threshold, thresholds), ``baseline`` (place of
            the statistics, run) or None, ignore, label, task, split.
    """
    result = Comparison()
    ignored = {*settings["ignore"], *differs_by_design(settings["split"])}
    train = splits[0]
    columns = [
        name
        for name, one in train.columns.items()
        if name not in ignored and one.type in checks.KINDS and train.kind(name) != "image"
    ]
    measure = functools.partial(_measure, columns, schema, settings)
    if "drift" in settings and settings["drift"]["baseline"] != "none":
        _against_baseline(result, train, measure, settings)
    if "skew" in settings and len(splits) > 1 and not text_choice.is_language_model(settings):
        found, _ = measure(splits[1], train, "skew")
        result.found += found
        result.anomalies += drift.beyond(found, split=splits[1].name, other="the train split")
    return result


def _against_baseline(
    result: Comparison, train: Split, measure: Any, settings: Mapping[str, Any]
) -> None:
    baseline = settings.get("baseline")
    if not baseline:
        result.said.append(NONE)
        return
    result.run, place = baseline["run"], Path(baseline["statistics"])
    file = place / "Split-train" / "FeatureStats.pb"
    if not file.is_file():
        result.said.append(f"the statistics of run {result.run}, the baseline, are gone: {place}")
        return
    result.statistics = str(file)
    found, not_compared = measure(train, Split.read(place, "train"), "drift")
    if not_compared:
        more = len(not_compared) - SHOWN
        result.said.append(
            f"the baseline, run {result.run}, has another schema: "
            + ", ".join(not_compared[:SHOWN])
            + (f" and {more:,} more" if more > 0 else "")
        )
    result.found += found
    other = f"the train split of run {result.run}, the last that passed"
    result.anomalies += drift.beyond(found, split=train.name, other=other)


def _measure(
    columns: Sequence[str],
    schema: schema_pb2.Schema,
    settings: Mapping[str, Any],
    now: Split,
    before: Split,
    what: str,
) -> tuple[list[Distance], list[str]]:
    """Return the distances of these columns, and what cannot be compared."""
    there = [name for name in columns if name in now.columns]
    both, not_compared = drift.comparable(now, before, there)
    told = settings[what]
    thresholds = Thresholds(
        told["threshold"], told["thresholds"], schema,
        "drift_comparator" if what == "drift" else "skew_comparator",
    )  # fmt: skip
    label = settings["label"]
    is_label = label in both
    is_classes = is_label and all(
        checks.is_classification(one, label, task=settings["task"]) for one in (now, before)
    )
    if is_classes and what == "drift":
        both.remove(label)
    found = drift.distances(
        now, before, both, thresholds, kind="DRIFT" if what == "drift" else "SKEW",
        classes=label if is_classes and what == "skew" else "",
    )  # fmt: skip
    if is_classes and what == "drift":
        found += drift.distances(
            now, before, [label], thresholds, kind="LABEL_SHIFT", classes=label
        )
    return found, not_compared
