"""What commands say, as plain lines: the same facts on a terminal, in a file and in a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainer.settings import UNITS

WORDS = {"ran": "done", "not_run": "not run"}
"""States as a person reads them, where the journal and JSON have another word."""


def plain(text: object) -> str:
    """Return a text on one line without control characters, which data may hold."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text)
    )


def figure(value: Any) -> str:
    """Return a number with four significant digits; whole numbers with all of theirs."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def size(value: Any) -> str:
    """Return a number of bytes with its unit: ``812 MB``."""
    if not isinstance(value, int | float):
        return "not measured"
    for unit in ("TB", "GB", "MB", "KB"):
        if value >= UNITS[unit]:
            return f"{value / UNITS[unit]:.3g} {unit}"
    return f"{int(value)} B"


def duration(seconds: float) -> str:
    """Return a time as a person reads it: ``3.1 s``, ``4 min 05 s``, ``2 h 03 min``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def node(name: str, state: str, seconds: float | None, why: str = "") -> str:
    """Return a node's line: name, state, time and why it ran or was cached."""
    time = "" if seconds is None else duration(seconds)
    return plain(f"{name:<16} {WORDS.get(state, state):<8} {time:>10}  {why}".rstrip())


def training_plan(event: Mapping[str, Any]) -> str:
    """Return what training is about to do, from its first event."""
    micro, steps = event.get("micro_batch"), event.get("accumulation_steps")
    return plain(
        f"{figure(event.get('steps'))} steps, {figure(event.get('epochs'))} epochs, "
        f"global batch {figure(event.get('global_batch'))} ({figure(steps)} x {figure(micro)}), "
        f"{event.get('precision')}, planned memory {size(event.get('planned_memory_bytes'))}"
    )


def training_step(event: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Return where training stands: step, loss, speed and the time that is left."""
    step, steps = event.get("step") or 0, plan.get("steps") or 0
    text = f"step {figure(step)} of {figure(steps)}, loss {figure(event.get('loss'))}"
    if event.get("examples_per_second"):
        text += f", {event['examples_per_second']:,.0f} examples/s"
    if event.get("updates_per_second") and steps > step:
        text += f", {duration((steps - step) / event['updates_per_second'])} left"
    if event.get("skipped_steps"):
        text += f", {figure(event['skipped_steps'])} skipped"
    return plain(text)


def evaluation(event: Mapping[str, Any]) -> str:
    """Return what an evaluation found, at which step."""
    skipped = {"event", "time", "step", "epoch", "id"}
    values = [f"{name} {figure(one)}" for name, one in event.items() if name not in skipped]
    return plain(f"epoch {figure(event.get('epoch'))}, evaluated: " + ", ".join(values))


def closing(result: Mapping[str, Any]) -> list[str]:
    """Return the block that ends a run, from the contract's JSON object."""
    run = f", run {result['run_id']}" if result.get("run_id") else ""
    lines = ["", f"{result['pipeline']}: {result['status']} in {duration(result['seconds'])}{run}"]
    lines += _examples(result.get("examples") or {})
    lines += _metrics(result.get("metrics") or {}, result.get("baseline") or {})
    lines += _anomalies(result.get("anomalies") or [])
    lines += _memory(result.get("training") or {})
    lines += [f"  {name:<10} {result[name]}" for name in ("report", "model") if result.get(name)]
    tracked = result.get("mlflow") or {}
    if tracked:
        lines.append(
            f"  {'MLflow':<10} run {tracked.get('run_id')} of {tracked.get('experiment')}, "
            f"{tracked.get('tracking_uri')}"
        )
    return [plain(line) for line in lines]


def findings(found: Iterable[Mapping[str, Any]], environment: Mapping[str, Any]) -> list[str]:
    """Return what `check` found, errors first."""
    lines = [f"{name:<10} {value}" for name, value in environment.items()]
    told = sorted(found, key=lambda one: one["severity"])
    lines += [f"{one['severity']:<10} {one['where']}: {one['message']}" for one in told]
    if not any(one["severity"] == "error" for one in told):
        lines.append("nothing found that would stop a run")
    return [plain(line) for line in lines]


def _examples(examples: Mapping[str, int]) -> list[str]:
    if not examples:
        return []
    return ["  examples   " + ", ".join(f"{name} {count:,}" for name, count in examples.items())]


def _metrics(metrics: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    if not metrics:
        return []
    width = max(10, *(len(name) for name in metrics))
    lines = [f"  {'':<{width}} {'model':>10} {'baseline':>10}"]
    for name, value in metrics.items():
        beside = figure(baseline[name]) if name in baseline else ""
        lines.append(f"  {name:<{width}} {figure(value):>10} {beside:>10}".rstrip())
    return lines


def _anomalies(anomalies: Iterable[Mapping[str, Any]]) -> list[str]:
    lines: list[str] = []
    for one in anomalies:
        split = f" in {one['split']}" if one.get("split") else ""
        rows = f", {one['rows']:,} rows" if one.get("rows") else ""
        lines.append(f"  {one['severity']:<10} {one['feature']}: {one['kind']}{split}{rows}")
        lines.append(f"  {'':<10} {one['message']}")
        if one.get("where"):
            lines.append(f"  {'':<10} at {', '.join(str(place) for place in one['where'])}")
        if one.get("what_to_do"):
            lines.append(f"  {'':<10} {one['what_to_do']}")
    return lines


def _memory(training: Mapping[str, Any]) -> list[str]:
    if not training:
        return []
    measured = training.get("peak_memory_bytes")
    planned = training.get("planned_memory_bytes")
    line = f"  memory     measured {size(measured)}, planned {size(planned)}"
    if measured and planned:
        line += f" ({(planned - measured) / measured:+.1%})"
    process = training.get("process_memory_bytes")
    return [line + f"; the whole process {size(process)}"]
