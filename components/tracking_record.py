"""What of a run's journal MLflow is told, as plain values: no MLflow here, only names and numbers.

The names that MLflow stores, and the events that they come from:

    train/loss, learning_rate, gradient_norm, ...         by step, from ``train_step``
    eval/<metric>                                         by step, from ``evaluation``
    <metric>, baseline/<metric>                           at the end, from ``metrics``
    interval/<metric>/low and high                        the same
    slice/<column>/<value>/<metric>                       the same
    peak_memory_bytes, planned_memory_bytes, ...          at the end, from ``training_done``
    resolved.<key>                                        parameters, from ``training_started``
    data.*, anomalies.*, nonfinite_<metric>, headrace.*   tags
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from components.tracking_names import (
    PARAMETER_LIMIT,
    TAG_LIMIT,
    plain_text,
    shortened,
    stored_name,
    without_credentials,
)
from trainer.errors import from_facts

_MLFLOW_STATUS = {"succeeded": "FINISHED", "interrupted": "KILLED"}
_NO_FACTS = {"type": "", "what": "", "where": "", "holds": "", "right": ""}
_STEP_METRICS = {"loss": "train/loss"}
_NOT_METRICS = {"event", "time", "step", "epoch"}
_RESOLVED = (
    "global_batch", "micro_batch", "accumulation_steps", "precision", "recompute", "parameters",
    "device", "steps",
)  # fmt: skip
_DONE = {
    "examples_per_second": "mean_examples_per_second",
    "peak_memory_bytes": "peak_memory_bytes",
    "planned_memory_bytes": "planned_memory_bytes",
    "process_memory_bytes": "process_memory_bytes",
    "skipped_steps": "skipped_steps",
    "resumed_from_step": "resumed_from_step",
}


SESSIONS = "headrace.sessions"
"""Tag of an MLflow run: the sessions (`session_of`) that wrote to it, oldest first."""


def session_of(first_event: Mapping[str, Any]) -> str:
    """Return the name of one run of ``headrace run``: a digest of its journal's first event.

    It holds the time, so the same run number elsewhere is another session.
    """
    return hashlib.sha256(json.dumps(first_event, sort_keys=True).encode()).hexdigest()[:12]


class Point(NamedTuple):
    """One finite number at one step.

    Attributes:
        name: as MLflow stores it.
        value: finite.
        step: applied weight updates.
        time: milliseconds since the epoch.
        is_final: told once at the end; a later different value at the same step replaces it.
    """

    name: str
    value: float
    step: int
    time: int
    is_final: bool = False


@dataclass
class Record:
    """What the events so far say, and is not stored yet.

    Attributes:
        points: in the journal's order; emptied by whoever stores them, as params and tags are.
        params, tags: by stored name; values within MLflow's limits.
        warnings: for the person, each said once.
        nonfinite: tag ``nonfinite_<metric>`` to the number of its values that are not finite.
        documents: artifact name to text.
        files: artifact name to path; logged if it exists at the end.
        step: the greatest step seen.
        started, latest: milliseconds since the epoch of the first and last event; 0 before it.
        ended: the ``run_ended`` event.
        error: the ``error`` event.
        pushed: folder of the pushed model; empty: none was.
        registered: its address in the registry, once it has one.
    """

    points: list[Point] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    nonfinite: Counter[str] = field(default_factory=Counter)
    documents: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    step: int = 0
    started: int = 0
    latest: int = 0
    ended: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    pushed: str = ""
    registered: str = ""
    _long_values: dict[str, str] = field(default_factory=dict)
    _mapped_names: dict[str, str] = field(default_factory=dict)
    _anomalies: Counter[str] = field(default_factory=Counter)

    def take_spec(self, spec: Mapping[str, Any]) -> None:
        """Add the parameters, tags and artifacts that the runner knew from the start."""
        for name, value in spec.get("params", {}).items():
            self.add_param(name, value)
        for name, value in spec.get("tags", {}).items():
            self.add_tag(name, value)
        if spec.get("config_text"):
            self.documents["pipeline.toml"] = without_credentials(spec["config_text"])
        self.files.update(spec.get("artifacts", {}))

    def take(self, event: Mapping[str, Any]) -> None:
        """Add one event of the journal; kinds that say nothing to MLflow are passed over."""
        self.latest = _milliseconds(event)
        self.started = self.started or self.latest
        take = getattr(self, f"_take_{event['event']}", None)
        if take is not None:
            take(event)

    def add_param(self, name: str, value: Any) -> None:
        """Add a parameter; too long a value is cut, and kept whole in ``long_values.json``."""
        self._add(self.params, name, value, limit=PARAMETER_LIMIT)

    def add_tag(self, name: str, value: Any) -> None:
        """Add a tag; too long a value is cut, and kept whole in ``long_values.json``."""
        self._add(self.tags, name, value, limit=TAG_LIMIT)

    def _add(self, kept: dict[str, str], name: str, value: Any, *, limit: int) -> None:
        text = plain_text(value)
        kept[self._name(name)] = shortened(text, limit)
        if len(text) > limit:
            self._long_values[name] = text
            self.documents["long_values.json"] = json.dumps(self._long_values, indent=1)
            self.warnings.append(
                f"{name} holds {len(text)} characters, MLflow takes {limit}: it is cut there, and"
                " whole in the artifact long_values.json"
            )

    def _name(self, name: str) -> str:
        stored = stored_name(name)
        if stored != name and name not in self._mapped_names:
            if not self._mapped_names:
                self.warnings.append(
                    f"MLflow does not take the name {plain_text(name)!r}: it is stored as"
                    f" {stored!r}; this and other such names are in the artifact stored_names.json"
                )
            self._mapped_names[name] = stored
            names = {plain_text(one): two for one, two in self._mapped_names.items()}
            self.documents["stored_names.json"] = json.dumps(names, indent=1, ensure_ascii=False)
        return stored

    def _point(
        self, event: Mapping[str, Any], name: str, value: Any, *, is_final: bool = False
    ) -> None:
        step = int(event.get("step", self.step))
        self.step = max(self.step, step)
        number = _number(value)
        if number is not None:
            stored = self._name(name)
            self.points.append(Point(stored, number, step, _milliseconds(event), is_final))
        elif _is_undefined(value):
            tag = self._name(f"nonfinite_{name}")
            self.nonfinite[tag] += 1
            if self.nonfinite[tag] == 1:
                self.warnings.append(
                    f"{name} was {'undefined' if value is None else value} at step {step}: it is"
                    f" not stored, but counted in the tag {tag}"
                )

    def _take_train_step(self, event: Mapping[str, Any]) -> None:
        for name, value in event.items():
            if name not in _NOT_METRICS:
                self._point(event, _STEP_METRICS.get(name, name), value)

    def _take_evaluation(self, event: Mapping[str, Any]) -> None:
        for name, value in _flat(event):
            if name not in _NOT_METRICS:
                self._point(event, f"eval/{name}", value)

    def _take_checkpoint(self, event: Mapping[str, Any]) -> None:
        self._point(event, "checkpoint_seconds", event.get("seconds"))

    def _take_training_started(self, event: Mapping[str, Any]) -> None:
        self.step = max(self.step, int(event.get("start_step") or 0))
        for name in _RESOLVED:
            if name in event:
                self.add_param(f"resolved.{name}", event[name])

    def _take_training_done(self, event: Mapping[str, Any]) -> None:
        self.step = max(self.step, int(event.get("steps") or 0))
        for name, stored in _DONE.items():
            if name in event:
                self._point(event, stored, event[name], is_final=True)
        self.add_tag("headrace.stopped_early", event.get("stopped_early", False))

    def _take_metrics(self, event: Mapping[str, Any]) -> None:
        for name, value in _flat(event.get("metrics") or {}):
            self._point(event, name, value, is_final=True)
        for name, value in _flat(event.get("baseline") or {}):
            self._point(event, f"baseline/{name}", value, is_final=True)
        for name, bounds in (event.get("intervals") or {}).items():
            for side, value in zip(("low", "high"), bounds or (), strict=False):
                self._point(event, f"interval/{name}/{side}", value, is_final=True)
        for one in event.get("slices") or ():
            for name, value in one["metrics"].items():
                # One of a slice is often not defined, as the AUC of rows of one class.
                if value is not None:
                    slice_name = f"slice/{one['column']}/{one['value']}/{name}"
                    self._point(event, slice_name, value, is_final=True)
        self.add_tag("headrace.blessed", event.get("blessed", False))

    def _take_data(self, event: Mapping[str, Any]) -> None:
        facts = {name: value for name, value in event.items() if name not in _NOT_METRICS}
        self.documents["data.json"] = plain_text(json.dumps(facts, indent=1))
        for name, value in _flat(facts):
            if not isinstance(value, list):
                self.add_tag(f"data.{name.replace('/', '.')}", value)

    def _take_anomaly(self, event: Mapping[str, Any]) -> None:
        self._anomalies[str(event.get("severity"))] += 1
        for severity, count in self._anomalies.items():
            self.add_tag(f"anomalies.{severity}", count)

    def _take_pushed(self, event: Mapping[str, Any]) -> None:
        self.pushed = str(event.get("path", ""))
        self.add_tag("headrace.model", self.pushed)

    def _take_report(self, event: Mapping[str, Any]) -> None:
        self.files["report.html"] = str(event.get("path", ""))

    def _take_artifacts(self, event: Mapping[str, Any]) -> None:
        self.files.update(event.get("paths", {}))
        for name, value in event.get("tags", {}).items():
            self.add_tag(name, value)

    def _take_error(self, event: Mapping[str, Any]) -> None:
        self.error = dict(event)

    def _take_run_ended(self, event: Mapping[str, Any]) -> None:
        self.ended = dict(event)

    def end(self) -> tuple[str, int]:
        """Add the tags that say how the run ended; it was killed when no event says how.

        Returns: MLflow's status (FINISHED, FAILED or KILLED) and the end in milliseconds.
        """
        status = "failed" if self.error else "interrupted"
        message = "the run's process was gone before it said how the run ended"
        if self.ended:
            status, message = self.ended["status"], ""
            self.add_tag("headrace.exit_code", self.ended.get("exit_code", ""))
        if self.error:
            message = str(from_facts({**_NO_FACTS, **self.error.get("facts", {})}))
        self.add_tag("headrace.status", status)
        # Said even when empty: it overwrites what an earlier session of the same MLflow run left.
        self.add_tag("headrace.error", message)
        return _MLFLOW_STATUS.get(status, "FAILED"), self.latest


def _milliseconds(event: Mapping[str, Any]) -> int:
    return int(event["time"] * 1000)


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_undefined(value: Any) -> bool:
    # The journal writes what is not finite as these texts.
    return value is None or str(value) in {"nan", "inf", "-inf"} or isinstance(value, int)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
