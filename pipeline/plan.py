"""`plan`: the peak memory of training, and the cheapest settings that fit, before a step is run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import definition, processes, run_end, runner
from pipeline.config import PipelineConfig
from pipeline.processes import OnEvent, Run
from trainer.errors import from_facts

FORECAST = "forecast.json"
KIND = "plan-"
NOTHING: dict[str, Any] = {
    "limit_bytes": None,
    "global_batch": None,
    "precision": None,
    "workers": None,
    "choice": None,
    "levers": [],
    "passed_over": [],
    "measured": [],
}
"""The fields of a plan that was not made."""


def plan(config: PipelineConfig, *, on_event: OnEvent, measured_steps: int = 0) -> dict[str, Any]:
    """Read and check the data as a run does, then say what training would need.

    Args:
        config: the configuration.
        on_event: told of every event of the journal, in order.
        measured_steps: that each lever is measured with; 0: nothing is trained.

    Returns:
        A JSON object: status, pipeline, run_id, seconds, the fields of `trainer.forecast.forecast`,
        measured (the lever table of `components.planning.measure`, empty when nothing was),
        error (one line or None); and ``exit_code``: 2 when nothing fits.

    Raises:
        InputError: when nothing could be started.
    """
    return runner.run(
        config,
        no_cache=frozenset({"MemoryPlanner"}),
        on_event=on_event,
        nodes=definition.plan_nodes(measured_steps),
        close=_close,
        kind=KIND,
    )


def _close(one: Run, code: int, *, started: float) -> dict[str, Any]:
    path = one.folder / FORECAST
    told = {**NOTHING, **(json.loads(path.read_text()) if path.is_file() else {})}
    refused = told.pop("error", None)
    error = run_end.error_line(one, code)
    if refused and not code:
        known = from_facts(refused)
        error, code = str(known), known.exit_code
    status = "failed" if code == 2 else run_end.STATUS.get(code, "failed")
    one.tell("run_ended", status=status, exit_code=code, seconds=time.monotonic() - started)
    result = {
        "status": status,
        "pipeline": one.config.name,
        "run_id": one.number,
        "seconds": round(time.monotonic() - started, 2),
        **told,
        "error": error,
    }
    processes.write_whole(one.folder / "result.json", json.dumps(result, indent=1))
    return {**result, "exit_code": code}


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Return a plan as lines of text."""
    if result["limit_bytes"] is None:
        return []
    rows = [("", "peak", "of the limit", "time", "fits")]
    rows += [_row(one, result["limit_bytes"]) for one in result["levers"]]
    choice, measured = result["choice"], measured_lines(result["measured"])
    said = [
        "",
        f"limit {size(result['limit_bytes'])}, global_batch {result['global_batch']}, "
        f"precision {result['precision']}, workers {result['workers']}",
        "",
        *_aligned(rows),
        "",
    ]
    if choice is None:
        return [*said, *measured]
    terms = ", ".join(f"{name} {size(one)}" for name, one in choice["terms"].items() if one)
    return [
        *said,
        f"plan: {settings(choice['settings'])}",
        f"      {size(choice['peak_bytes'])} at the peak: {terms}",
        f"      the training process grows to about {size(choice['process_bytes'])}",
        *(
            f"passed over: {one['name']}: {size(one['peak_bytes'])} is above the limit"
            for one in result["passed_over"]
        ),
        *measured,
    ]


def measured_lines(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a measured lever table as lines of text; none where nothing was measured."""
    if not table:
        return []
    is_text = any(one.get("tokens_per_second") for one in table)
    unit = "tokens/s" if is_text else "examples/s"
    steps = len(table[0].get("losses") or [])
    rows = [("measured", "peak", "planned", "error", "saves", unit, "time", "loss", "differs by")]
    rows += [measured_row(one) for one in table]
    compared = (
        f"{steps} steps each. What is saved, the time and the loss are against plain; of levers "
        "added up against those before the last; of shards against the workers without."
    )
    failed = [f"{one['name']}: {one['error']}" for one in table if one["error"]]
    return ["", *_aligned(rows), "", compared, *failed]


def measured_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of the measured table, a text a column."""
    if one["error"]:
        return (one["name"], "failed", *[""] * 7)
    rate = one["tokens_per_second"] or one["examples_per_second"]
    error = one["planned_bytes"] / max(one["peak_bytes"], 1) - 1
    saves = time = differs = ""
    if one["saves"] is not None:
        saves = f"{1 - one['peak_share']:.0%}" if one["saves"] else "nothing"
        time, differs = f"{one['time_ratio']:.2f}", f"{one['loss_difference']:.1g}"
    return (
        one["name"], size(one["peak_bytes"]), size(one["planned_bytes"]), f"{error:+.1%}", saves,
        f"{rate:,.0f}", time, f"{one['losses'][-1]:.4f}", differs,
    )  # fmt: skip


def _row(one: Mapping[str, Any], limit: int) -> tuple[str, ...]:
    peak = one["peak_bytes"]
    return (
        one["name"], size(peak), f"{peak / limit:.1%}", f"{one['relative_time']:.2f}",
        "yes" if one["fits"] else "no",
    )  # fmt: skip


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(one.rjust(width) for one, width in
                                              zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]  # fmt: skip


def settings(chosen: Mapping[str, Any]) -> str:
    """Return chosen techniques as the settings that stand for them."""
    plain = {"attention": "plain", "token_loss": "plain", "shard": "none", "offload": "none"}
    said = [f"micro_batch {chosen['micro_batch']}"]
    if chosen["recompute"]:
        said.append(f"recompute {chosen['recompute']} blocks")
    said += [f"{name} {chosen[name]}" for name, is_off in plain.items() if chosen[name] != is_off]
    return ", ".join(said)


def size(count: int) -> str:
    """Return bytes as a person reads them: ``81.5 MiB``."""
    for unit, worth in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return f"{count} B"
