"""What commands say, as plain lines: the same facts on a terminal, in a file and in a test."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from components.verdict import count, passing_rule
from trainer.settings import UNITS

WORDS = {"ran": "done", "not_run": "not run"}
"""States as a person reads them, where the journal and JSON have another word."""

REFUSED, INTERRUPTED, NOT_PUSHED = "refused", "interrupted", "not pushed: "
"""How a node's `why` ends: of one that failed, how it did; of a push, why there was none."""

NOT_REACHED = "not reached"
"""How the `why` of a node begins that did not run."""

NODE_HANG, CLOSING_HANG, FINDING_HANG, ERROR_HANG = 38, 13, 11, 2
"""Columns that the further lines of a text are moved in by, where a terminal makes several."""


def plain(text: object) -> str:
    """Return a text on one line without control characters, which data may hold."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text)
    )


def wrapped(text: str, width: int, hang: int) -> list[str]:
    """Return a text in lines of at most `width` characters, words and paths kept whole.

    Args:
        text: one line.
        width: characters a line.
        hang: columns that the lines after the first are moved in by; few where `width` is small.
    """
    indent = " " * (hang if hang <= width // 2 else ERROR_HANG)
    return textwrap.wrap(
        text,
        max(width, 2 * len(indent)),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [text]


def joined(*parts: str) -> str:
    """Return the parts that say something, with semicolons between them."""
    return "; ".join(part for part in parts if part)


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
    word, why = outcome(state, why)
    return plain("".join([*node_head(name, word, seconds), why]).rstrip())


def node_head(name: str, word: str, seconds: float | None) -> tuple[str, str, str]:
    """Return the columns before a node's why: its name, the state's word and the time."""
    time = "" if seconds is None else duration(seconds)
    return f"{name:<16} ", word, f" {time:>{max(18 - len(word), 0)}}  "


def outcome(state: str, why: str) -> tuple[str, str]:
    """Return the word for a state, and `why` without what the word says.

    A node that the data gate's refusal or a person ended has the state ``failed`` in JSON; its
    `why` ends with how it ended.
    """
    if state == "failed":
        for word in (REFUSED, INTERRUPTED):
            if why == word or why.endswith(f"; {word}"):
                return word, why.removesuffix(word).removesuffix("; ")
    return WORDS.get(state, state), why


def not_pushed(event: Mapping[str, Any]) -> str:
    """Return why the model was not pushed and what to do, from the journal's event."""
    return NOT_PUSHED + joined(
        str(event.get("reason") or "it was not blessed"), str(event.get("remedy") or "")
    )


def resumed(step: Any, steps: Any) -> str:
    """Return where training goes on from a checkpoint."""
    return plain(f"resumed at step {figure(step)} of {figure(steps)}")


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


def measured(entry: Mapping[str, Any]) -> str:
    """Return what was measured of one lever."""
    if entry["error"]:
        return plain(f"{entry['name']}: {entry['error']}")
    return plain(
        f"{entry['name']}: {size(entry['peak_bytes'])}, planned {size(entry['planned_bytes'])}, "
        f"{duration(entry['step_seconds'])} a step"
    )


def closing(
    result: Mapping[str, Any],
    *,
    start_seconds: float | None = None,
    warnings: Iterable[str] = (),
) -> list[str]:
    """Return the block that ends a run.

    Args:
        result: the contract's JSON object.
        start_seconds: of its seconds, those before the first node; None: nothing had to start.
        warnings: what training said, such as that it stopped early.
    """
    lines = ["", _headline(result)]
    lines += _times(result, start_seconds)
    lines += _examples(result.get("examples") or {})
    lines += _metrics(result.get("metrics") or {}, result.get("baseline") or {})
    lines += _anomalies(result.get("anomalies") or [])
    lines += [f"  {'warning':<10} {one}" for one in warnings]
    lines += _training(result.get("training") or {})
    lines += [f"  {name:<10} {one}" for name, one in _places(result).items() if one]
    return [plain(line) for line in lines]


def _headline(result: Mapping[str, Any]) -> str:
    said = f"{result['pipeline']}: {result['status']} in {duration(result['seconds'])}"
    nodes = result.get("nodes") or []
    if nodes and all(one["state"] == "cached" for one in nodes):
        return f"{said}, nothing had changed since run {result.get('run_id')}"
    return f"{said}, run {result['run_id']}" if result.get("run_id") else said


def _times(result: Mapping[str, Any], start: float | None) -> list[str]:
    """Say what a run's seconds were, since those of the nodes are not all of them."""
    if start is None:
        return []
    parts = [f"{duration(start)} to start TFX and TensorFlow"]
    nodes = sum(one.get("seconds") or 0.0 for one in result.get("nodes") or [])
    rest = result["seconds"] - start - nodes
    if nodes:
        parts.append(f"{duration(nodes)} in the nodes")
    if rest >= 0.05:
        parts.append(f"{duration(rest)} for the report, MLflow and the rest")
    return ["  time       " + ", ".join(parts)]


def _places(result: Mapping[str, Any]) -> dict[str, Any]:
    tracked = result.get("mlflow") or {}
    run = f"run {tracked.get('run_id')} of {tracked.get('experiment')}"
    return {
        "report": result.get("report"),
        "model": result.get("model") or why_not_pushed(result),
        "registry": tracked.get("model"),
        "MLflow": f"{run}, {tracked.get('tracking_uri')}" if tracked else "",
    }


def why_not_pushed(result: Mapping[str, Any]) -> str:
    """Return what a result says of a model that was not pushed; empty where it was, or none was."""
    for one in result.get("nodes") or []:
        _, found, why = str(one.get("why") or "").partition(NOT_PUSHED)
        if one["id"] == "Pusher" and found:
            return found + why
    return ""


def error(result: Mapping[str, Any]) -> str:
    """Return the last line of a run that went wrong, after the closing block: told once.

    Of a refusal the block has said all; its one line for scripts is the result's ``error``.
    """
    stops = [one for one in result.get("anomalies") or [] if one["severity"] == "stop"]
    if result["status"] != "rejected" or not stops:
        return plain(result.get("error") or "")
    columns = len({one["feature"] for one in stops} - {""})
    found = count(len(stops), "anomaly", "anomalies")
    place = f" in {count(columns, 'column')}" if columns else ""
    report = " and in the report" if result.get("report") else ""
    return plain(f"the data gate refused the data: {found}{place}, told above{report}")


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
    """Return what the gate found, the splits of one anomaly together, its remedy once."""
    same: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in anomalies:
        key = (one["severity"], one["feature"], one["kind"], one.get("what_to_do") or "")
        same.setdefault(key, []).append(one)
    lines: list[str] = []
    for found in same.values():
        lines += [line for one in found for line in _anomaly(one)]
        first = found[0]
        rule = passing_rule(first["feature"], first["kind"]) if first["severity"] == "stop" else ""
        if todo := joined(first.get("what_to_do") or "", rule):
            lines.append(f"  {'':<10} {todo}")
    return lines


def _anomaly(one: Mapping[str, Any]) -> list[str]:
    split = f" in {one['split']}" if one.get("split") else ""
    rows = f", {count(one['rows'], 'row')}" if one.get("rows") else ""
    lines = [
        f"  {one['severity']:<10} {one['feature']}: {one['kind']}{split}{rows}",
        f"  {'':<10} {one['message']}",
    ]
    if one.get("where"):
        lines.append(f"  {'':<10} at {', '.join(str(place) for place in one['where'])}")
    return lines


def _training(training: Mapping[str, Any]) -> list[str]:
    if not training:
        return []
    resumed_from = training.get("resumed_from_step")
    said = [f"  training   {resumed(resumed_from, training.get('steps'))}"] if resumed_from else []
    return [*said, *_memory(training)]


def _memory(training: Mapping[str, Any]) -> list[str]:
    measured = training.get("peak_memory_bytes")
    planned = training.get("planned_memory_bytes")
    line = f"  memory     measured {size(measured)}, planned {size(planned)}"
    if measured and planned:
        line += f" ({(planned - measured) / measured:+.1%})"
    process = training.get("process_memory_bytes")
    return [line + f"; the whole process {size(process)}"]
