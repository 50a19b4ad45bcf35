"""`runs` and `runs diff`: this pipeline's runs, best first, and why one is not another."""

from __future__ import annotations

import datetime
import difflib
import json
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from components.tracking_names import without_credentials
from pipeline import differences, lines, run_numbers, tracked_runs
from pipeline.run_numbers import Unlisted
from pipeline.tracked_runs import TrackedRun
from trainer.errors import InputError

DEFAULT_PORT = 5000
HIGHER_IS_BETTER = {
    "auc": True, "bits_per_byte": False, "accuracy": True, "rmse": False, "loss": False,
}  # fmt: skip
"""What runs are ranked by, the first that they have, unless the tag ``headrace.task`` says it."""

_TASK_METRIC = {
    "binary": "auc",
    "multiclass": "accuracy",
    "regression": "rmse",
    "causal-lm": "bits_per_byte",
}
_MOST_COMPARED = 20
_SHORT_ID = 8
_MOST_UNLISTED = 10


class Config(Protocol):
    """What is read of a configuration (`pipeline.config.PipelineConfig`)."""

    @property
    def name(self) -> str:
        """The pipeline's name, which is the experiment's."""
        ...

    @property
    def tracking_uri(self) -> str:
        """Where the runs are."""
        ...

    @property
    def folder(self) -> Path:
        """Where the pipeline writes: the journals of its runs are in ``logs/``."""
        ...


def runs(config: Config) -> dict[str, Any]:
    """Return this pipeline's runs, best first.

    Returns: ``pipeline``, ``tracking_uri``, ``metric`` that ranks them ("" when none has one),
        ``runs`` and ``compare_url`` of the best ones ("" when there are fewer than two). A run:
        ``run``, ``run_id``, ``status``, ``started`` (UTC), ``seconds``, ``metrics``, ``baseline``,
        ``settings`` (those that differ between the runs), ``error``, ``url``. Runs that finished
        come first, those without the metric after them, then those that go on, then the others.
        ``unlisted``: the other numbers that runs of this folder had, with ``status`` and ``why``.

    Raises:
        InputError: there is no store or no run yet.
    """
    found, unlisted = _found(config)
    metric = _metric(found)
    ranked = sorted(found, key=lambda run: _rank(run, metric))
    differing = _differing(ranked)
    return {
        "pipeline": config.name,
        "tracking_uri": without_credentials(config.tracking_uri),
        "metric": metric,
        "runs": [_told(config, run, differing) for run in ranked],
        "unlisted": [{"run": one.number, "status": one.status, "why": one.why} for one in unlisted],
        "compare_url": compare_url(config, ranked[:_MOST_COMPARED]),
    }


def _found(config: Config) -> tuple[list[TrackedRun], list[Unlisted]]:
    found = tracked_runs.read(config.tracking_uri, config.name)
    if not found:
        raise InputError(
            f"the pipeline {config.name} has no tracked run yet",
            where=without_credentials(config.tracking_uri),
            right="run it first: headrace run, with this configuration",
        )
    return run_numbers.number(found, run_numbers.kept(Path(config.folder)))


def _metric(found: Iterable[TrackedRun]) -> str:
    """Return what finished runs are ranked by: the newest one's task decides, or what they have."""
    finished = [run for run in found if run.status == "FINISHED"]
    task = finished[0].tags.get("headrace.task", "") if finished else ""
    for name in (_TASK_METRIC.get(task, ""), *HIGHER_IS_BETTER):
        if any(name in run.metrics for run in finished):
            return name
    return ""


def _rank(run: TrackedRun, metric: str) -> tuple[int, float, int]:
    if run.status != "FINISHED":
        return (2 if run.status == "RUNNING" else 3, 0.0, -run.started)
    if metric not in run.metrics:
        return (1, 0.0, -run.started)
    value = run.metrics[metric]
    return (0, -value if HIGHER_IS_BETTER[metric] else value, -run.started)


def _differing(found: Sequence[TrackedRun]) -> list[str]:
    names = sorted({name for run in found for name in run.params})
    return [
        name
        for name in names
        if not name.startswith("resolved.") and len({run.params.get(name) for run in found}) > 1
    ]


def _told(config: Config, run: TrackedRun, differing: Iterable[str]) -> dict[str, Any]:
    plain = {name: value for name, value in run.metrics.items() if "/" not in name}
    started = datetime.datetime.fromtimestamp(run.started / 1000, tz=datetime.UTC)
    return {
        "run": run.name,
        "run_id": run.run_id,
        "status": _status(run),
        "started": started.isoformat(timespec="seconds"),
        "seconds": (run.ended - run.started) / 1000 if run.ended >= run.started else None,
        "metrics": plain,
        "baseline": {
            name.removeprefix("baseline/"): value
            for name, value in run.metrics.items()
            if name.startswith("baseline/")
        },
        "settings": {name: run.params[name] for name in differing if name in run.params},
        "error": run.tags.get("headrace.error", ""),
        "url": f"{_server(config)}/#/experiments/{run.experiment_id}/runs/{run.run_id}",
    }


def _status(run: TrackedRun) -> str:
    """Return how a run ended, in the words of `headrace run`; MLflow's where it has none."""
    return run.tags.get("headrace.status", run.status.lower())


def _server(config: Config) -> str:
    uri = without_credentials(config.tracking_uri).rstrip("/")
    return uri if uri.startswith("http") else f"http://127.0.0.1:{DEFAULT_PORT}"


def compare_url(config: Config, compared: Sequence[TrackedRun]) -> str:
    """Return the page that compares runs; of a sqlite store, as `headrace ui` serves it."""
    if len(compared) < 2:
        return ""
    ids = _json_argument([run.run_id for run in compared])
    experiments = _json_argument(sorted({run.experiment_id for run in compared}))
    return f"{_server(config)}/#/compare-runs?runs={ids}&experiments={experiments}"


def _json_argument(value: list[str]) -> str:
    return urllib.parse.quote(json.dumps(value, separators=(",", ":")), safe="")


def find(
    found: Sequence[TrackedRun], text: str, *, unlisted: Sequence[Unlisted] = ()
) -> TrackedRun:
    """Return the run that a person means.

    Args:
        found: the runs, newest first.
        unlisted: runs that another one stands for, or none.
        text: an MLflow run id, a beginning of one (4 characters or more) that fits one run, the
            run's number or name, ``latest`` or ``best``.

    Raises:
        InputError: none fits, or several do; the nearest are named.
    """
    for one in unlisted:
        if one.number == text:
            return _standing_for(one, found)
    metric = _metric(found)
    ranked = [run for run in found if _rank(run, metric)[0] == 0]
    if text == "latest":
        return found[0]
    if text == "best" and ranked:
        return min(ranked, key=lambda run: _rank(run, metric))
    matches = (
        [run for run in found if text == run.run_id],
        [run for run in found if text == run.name],
        [run for run in found if len(text) >= 4 and run.run_id.startswith(text)],
    )
    fitting = next((match for match in matches if match), [])
    if len(fitting) == 1:
        return fitting[0]
    names = {name: run for run in reversed(found) for name in (run.run_id, run.name)}
    near = [names[name] for name in difflib.get_close_matches(text, names, n=3, cutoff=0.5)]
    shown = fitting or near or list(found)
    raise InputError(
        f"{len(fitting)} runs fit" if fitting else "no such run",
        where="RUN",
        holds=text,
        right="the nearest are " + ", ".join(_handle(run) for run in shown[:5]),
    )


def _standing_for(one: Unlisted, found: Sequence[TrackedRun]) -> TrackedRun:
    for run in found:
        if run.run_id == one.run_id:
            return run
    raise InputError(
        f"this run {one.why}, so there is nothing to compare; it is {one.status}",
        where="RUN",
        holds=one.number,
        right="take one that `headrace runs` lists",
    )


def _handle(run: TrackedRun) -> str:
    return f"{run.name} ({run.run_id[:_SHORT_ID]})"


def diff(config: Config, run_a: str, run_b: str) -> dict[str, Any]:
    """Return why run `run_b` is not run `run_a`.

    Returns: ``a`` and ``b`` (``run``, the number that the training is listed by; run_id; status;
        ``note``: why that is not the number asked for, or ""), the parts that
        `differences.between` lists, and ``compare_url``.

    Raises:
        InputError: there is no store yet, or a run is not known.
    """
    found, unlisted = _found(config)
    a, b = (find(found, one, unlisted=unlisted) for one in (run_a, run_b))
    notes = {one.number: f"run {one.number} {one.why}" for one in unlisted}
    fetch_a, fetch_b = (
        lambda name, run=run: tracked_runs.artifact(config.tracking_uri, run, name)
        for run in (a, b)
    )
    return {
        **{
            side: {
                "run": one.name,
                "run_id": one.run_id,
                "status": _status(one),
                "note": notes.get(asked, ""),
            }
            for side, one, asked in (("a", a, run_a), ("b", b, run_b))
        },
        **differences.between(a, b, fetch_a=fetch_a, fetch_b=fetch_b),
        "compare_url": compare_url(config, [a, b]) if a is not b else "",
    }


def run_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what `runs` says, as lines: one a run, and where MLflow compares them."""
    metric = result["metric"]
    rows = [["run", "MLflow", "status", metric or "", "baseline", "time", "what differs"]]
    for run in result["runs"]:
        settings = ", ".join(f"{name} {value}" for name, value in run["settings"].items())
        rows.append([
            run["run"],
            run["run_id"][:_SHORT_ID],
            run["status"],
            lines.figure(run["metrics"].get(metric, "")),
            lines.figure(run["baseline"].get(metric, "")),
            "" if run["seconds"] is None else lines.duration(run["seconds"]),
            settings or run["error"],
        ])
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    text = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[6]])
        for row in rows
    ]
    others = result["unlisted"]
    if others:
        text += ["", "not in the list:"]
        text += [
            f"  run {one['run']} ({one['status']}) {one['why']}" for one in others[-_MOST_UNLISTED:]
        ]
        if len(others) > _MOST_UNLISTED:
            text.append(f"  and {len(others) - _MOST_UNLISTED} older ones")
    if result["compare_url"]:
        text += ["", f"compare: {result['compare_url']}"]
        if result["tracking_uri"].startswith("sqlite"):
            text.append("(served by: headrace ui)")
    return [line.rstrip() for line in text]


def diff_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what `runs diff` says, as lines: part by part, what differs."""
    a, b = result["a"], result["b"]
    text = [
        f"run {a['run']} ({a['run_id'][:_SHORT_ID]}) -> run {b['run']} ({b['run_id'][:_SHORT_ID]})"
    ]
    text += [one["note"] for one in (a, b) if one["note"]]
    for part, holds in result.items():
        if part in {"a", "b", "compare_url"}:
            continue
        if not holds:
            text.append(f"{part}: the same")
            continue
        text.append(f"{part}:")
        if isinstance(holds, list):
            text += [_moved(one) for one in holds[:10]]
            text += [f"  and {len(holds) - 10} more"] if len(holds) > 10 else []
        else:
            text += [_changed(name, one) for name, one in holds.items()]
    return text + ([f"compare: {result['compare_url']}"] if result["compare_url"] else [])


def _moved(one: Mapping[str, Any]) -> str:
    a, b = lines.figure(one["a"]), lines.figure(one["b"])
    return f"  {one['feature']} ({one['split']}): {one['what']} {a} -> {b}"


def _changed(name: str, one: Mapping[str, Any]) -> str:
    a, b = (
        "none" if one[side] is None else _short(lines.figure(_whole(one[side]))) for side in "ab"
    )
    change = _whole(one.get("change", 0))
    return f"  {name}: {a} -> {b}" + (
        f" ({change:{'+,' if isinstance(change, int) else '+.4g'}})" if change else ""
    )


def _whole(value: Any) -> Any:
    """Return a float that is a whole number as one: MLflow keeps bytes as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."
