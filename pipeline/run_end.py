"""The end of a run: how each node ended, the contract's JSON object, the report, the tracking."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from components import fingerprint
from pipeline import cache, lines, processes, results
from pipeline.processes import Run
from trainer.errors import from_facts

TRACKING_SECONDS = 60.0
ACCEPTED_LINES = 10
"""Newest changes of the schema that a run is tagged with."""
STATUS = {0: "succeeded", 3: "rejected", 130: "interrupted", 143: "interrupted"}
_HOW = {"rejected": lines.REFUSED, "interrupted": lines.INTERRUPTED}
_STATES = {"done": "ran", "cached": "cached", "failed": "failed"}


def end_nodes(one: Run, code: int) -> None:
    """Tell the journal how the node ended that was running when its process ended.

    Args:
        one: the run.
        code: its exit code.
    """
    if not code:
        return
    now, how = time.time(), _HOW.get(STATUS.get(code, ""), "")
    for name, event in _last_states(one).items():
        if event["state"] == "running":
            why = lines.joined(one.decisions[name].why, how)
            seconds = now - event["time"]
            one.tell("node", id=name, state="failed", why=why, seconds=seconds)


def close(one: Run, code: int, *, started: float) -> dict[str, Any]:
    """Write the report and the result, end the tracking, and return the result.

    Args:
        one: the run, whose processes have ended but for the tracking.
        code: its exit code.
        started: when it began, by `time.monotonic`.

    Returns:
        The contract's JSON object, and ``exit_code``.
    """
    records = cache.Records(one.config.folder / "metadata.sqlite")
    outputs = records.outputs_of_run(one.number)
    status = STATUS.get(code, "failed")
    result: dict[str, Any] = {
        "status": status,
        "pipeline": one.config.name,
        "run_id": one.number,
        "seconds": 0.0,
        "nodes": _node_states(one, results.why_not_pushed(outputs, one.told)),
        **results.gather(outputs, one.told),
        "mlflow": None,
        "report": None,
        "error": error_line(one, code),
    }
    result["report"] = _write_report(one, outputs, result, started=started)
    _write_memory_plan(one)
    _tell_artifacts(one, outputs)
    if code:
        processes.start_tracking(one)
    one.tell("run_ended", status=status, exit_code=code, seconds=time.monotonic() - started)
    result["mlflow"] = _tracked(one, records)
    result["seconds"] = round(time.monotonic() - started, 2)
    processes.write_whole(one.folder / "result.json", json.dumps(result, indent=1))
    return {**result, "exit_code": 130 if code == 143 and one.stopped == signal.SIGINT else code}


def _tell_artifacts(one: Run, outputs: results.RunOutputs) -> None:
    """Tell the tracking which files of this run a later `runs diff` compares."""
    if not any(event["event"] == "data" for event in one.told):
        data = results.data_facts(outputs)
        if data:
            one.tell("data", **data)
    from components import schema_file

    paths = {f"statistics/{name}.pb": str(path)
             for name, path in results.split_statistics(outputs).items()}  # fmt: skip
    cleaned = results.data_facts(outputs).get("cleaned")
    tags = {"data.cleaned": json.dumps(cleaned)} if cleaned else {}
    schema = outputs.get("SchemaGen", {}).get("schema")
    if schema is not None:
        paths["schema.pbtxt"] = str(Path(schema.uri) / "schema.pbtxt")
        tags["digest.schema"] = fingerprint.file_digest(paths["schema.pbtxt"])
        if accepted := schema_file.history(schema_file.read_text(paths["schema.pbtxt"])):
            tags["schema.accepted"] = "\n".join(accepted[-ACCEPTED_LINES:])
    evaluation = outputs.get("Evaluator", {}).get("evaluation")
    if evaluation is not None:
        paths["evaluation.json"] = str(Path(evaluation.uri) / "evaluation.json")
    if task := results.task(outputs):
        tags["headrace.task"] = task
    one.tell("artifacts", paths=paths, tags=tags)


def _write_memory_plan(one: Run) -> None:
    """Keep what the training said that it would need, as a file for the tracking."""
    told = [event for event in one.told if event["event"] == "training_started"]
    if told:
        plan = {name: value for name, value in told[-1].items() if name not in {"event", "time"}}
        processes.write_whole(one.folder / "plan.json", json.dumps(plan, indent=1))


def _last_states(one: Run) -> dict[str, dict[str, Any]]:
    return {event["id"]: event for event in one.told if event["event"] == "node"}


def _node_states(one: Run, why_not_pushed: str) -> list[dict[str, Any]]:
    """Return each node's state at the end, with its time and why it ran, was cached or did not."""
    states = _last_states(one)
    ends = [f"{lines.NOT_REACHED}: {name} {lines.outcome('failed', event['why'])[0]}"
            for name, event in states.items() if event["state"] == "failed"]  # fmt: skip
    said = []
    for name, decision in one.decisions.items():
        event = states.get(name, {"state": "waiting", "seconds": 0.0})
        state = _STATES.get(event["state"], "not_run")
        why = event["why"] if state == "failed" else decision.why
        if state == "not_run":
            why = ends[0] if ends else lines.NOT_REACHED
        elif name == "Pusher":
            why = lines.joined(why, why_not_pushed)
        said.append({"id": name, "state": state, "why": why, "seconds": round(event["seconds"], 2)})
    return said


def error_line(one: Run, code: int) -> str | None:
    """Return why a run ended as it did; None when nothing went wrong."""
    if not code:
        return None
    told = [event for event in one.told if event["event"] == "error"]
    if told and not one.stopped:
        return str(from_facts(told[-1]["facts"]))
    return "interrupted; what was finished is kept, and the same command goes on from there"


def _write_report(
    one: Run, outputs: results.RunOutputs, result: dict[str, Any], *, started: float
) -> str | None:
    """Write the newest data validation report, when there is data to report on."""
    from components import report

    statistics = results.split_statistics(outputs)
    if not statistics:
        return None
    path = one.config.folder / "report.html"
    compared = results.drift(outputs, one.folder)
    if compared.get("statistics") and Path(compared["statistics"]).is_file():
        statistics[f"train of run {compared['baseline']}"] = Path(compared["statistics"])
    schema = outputs.get("SchemaGen", {}).get("schema")
    try:
        report.write_report(
            path,
            title=one.config.name,
            statistics=statistics,
            anomalies=result["anomalies"],
            drift=compared,
            schema=Path(schema.uri) / "schema.pbtxt" if schema else None,
            label=one.config.data.label,
            ignored=list(one.config.data.ignore),
            history=results.history(outputs, one.told),
            metrics=result["metrics"] or {},
            baseline=result["baseline"] or {},
            evaluation=results.evaluation(outputs),
            facts={
                "run_id": one.number,
                "status": result["status"],
                "seconds": time.monotonic() - started,
                "error": result["error"],
                "examples": result["examples"],
                "training": result["training"],
                **_anomalous_rows(one),
                **_rows(results.data_facts(outputs)),
                "settings": one.config.flat(),
            },
        )
    except OSError as error:
        one.tell("warning", id="report", message=f"{path}: not written ({error.strerror})")
        return str(path) if path.exists() else None
    one.tell("report", path=str(path))
    return str(path)


def _rows(data: dict[str, Any]) -> dict[str, Any]:
    """Return what ExampleGen read, dropped and changed, for the report."""
    names = ("rows_read", "rows_refused", "rows_dropped", "cleaned")
    return {name.replace("_", " "): data[name] for name in names if data.get(name)}


def _anomalous_rows(one: Run) -> dict[str, str]:
    """Return where every row stands that shows an anomaly, for the report."""
    path = one.folder / "anomalous_rows.parquet"
    return {"all anomalous rows": str(path)} if path.is_file() else {}


def _tracked(one: Run, records: cache.Records) -> dict[str, Any] | None:
    """Return where this run's training is tracked, once the tracking process has ended."""
    if "tracking" in one.children:
        processes.wait_for_tracking(one, TRACKING_SECONDS)
        tracking = [event for event in one.told if event["event"] == "tracking"]
        if tracking and not tracking[-1]["stored"]:
            one.tell("warning", id="tracking", message=tracking[-1]["message"])
        told = [event for event in tracking if event.get("run_id")]
        if told:
            where = {name: told[-1].get(name) for name in ("tracking_uri", "experiment", "run_id")}
            made = [event["model"] for event in one.told if event["event"] == "registered"]
            return {**where, "model": made[-1]} if made else where
        return None
    # A cached model was tracked by the run that trained it.
    wanted = one.decisions["Trainer"].fingerprint
    for execution in reversed(records.executions()):
        if execution.node == "Trainer" and execution.fingerprint == wanted:
            path = one.folder.parent / records.run_of(execution.id) / "result.json"
            if path.is_file() and (kept := json.loads(path.read_text()).get("mlflow")):
                return kept
    return None
