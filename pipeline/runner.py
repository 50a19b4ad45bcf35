"""`run`: what is cached, the processes of a run, its journal on screen, and its end.

This process stays light. The nodes run in one child (`pipeline.dag`), training in a second that
imports TensorFlow while the data nodes work (`trainer.worker`), tracking in a third
(`components.tracking`); all of them tell the journal, which is read here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from components import fingerprint, readers
from pipeline import cache, definition, processes, results
from pipeline.config import PipelineConfig
from pipeline.processes import OnEvent, Run
from trainer.errors import InputError, from_facts

TRACKING_SECONDS = 60.0
STATUS = {0: "succeeded", 3: "rejected", 130: "interrupted", 143: "interrupted"}


def run(
    config: PipelineConfig, *, no_cache: frozenset[str] = frozenset(), on_event: OnEvent
) -> dict[str, Any]:
    """Run the pipeline on this machine.

    Args:
        config: the configuration.
        no_cache: nodes that run even when nothing changed.
        on_event: told of every event of the journal, in order.

    Returns:
        The contract's JSON object, and ``exit_code``.

    Raises:
        InputError: when nothing could be started.
    """
    started = time.monotonic()
    found = readers.resolve(config.data.files, config.base)
    files = [str(path) for path in found.files]
    _make_folder(config.folder)
    with _alone(config.folder, on_event):
        records = cache.Records(config.folder / "metadata.sqlite")
        decisions = _decide(config, files, records=records, no_cache=no_cache)
        earlier = _earlier_result(config, records, decisions)
        if earlier is not None:
            return _nothing_to_do(earlier, decisions, seconds=time.monotonic() - started)
        if not decisions["ExampleGen"].cached:
            _refuse_early(config)
        number, folder = _new_run(config.folder / "logs")
        one = Run(number, folder, config, decisions, on_event)
        for skipped in found.skipped:
            one.tell("warning", id="ExampleGen", message=f"not read: {skipped}")
        return _run_processes(one, files, started=started)


def _refuse_early(config: PipelineConfig) -> None:
    """Say at once what `check` sees, before half a minute of imports leads to the same message.

    Raises:
        InputError: the first error that it finds.
    """
    from pipeline import preflight

    for finding in preflight.check(config):
        if finding.severity == "error":
            raise InputError(finding.message, where=finding.where)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot be written to ({error.strerror})",
            where="root",
            holds=str(folder.parent),
            right="name a folder that this user may write to, with room on its disk",
        ) from error


@contextlib.contextmanager
def _alone(folder: Path, on_event: OnEvent) -> Generator[None, None, None]:
    """Hold the pipeline's lock: two runs of one pipeline go one after the other."""
    with open(folder / ".lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another run of this pipeline is going on in {folder}; waiting for its end"
            on_event({"event": "warning", "time": time.time(), "id": "", "message": message})
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _new_run(logs: Path) -> tuple[str, Path]:
    """Make the next run's folder."""
    logs.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in logs.iterdir() if path.name.isdigit()]
    number = str(max(numbers, default=0) + 1)
    folder = logs / number
    folder.mkdir()
    return number, folder


def _decide(
    config: PipelineConfig,
    files: list[str],
    *,
    records: cache.Records,
    no_cache: frozenset[str],
) -> dict[str, cache.Decision]:
    digests = fingerprint.data_digests(files)
    flat = config.flat()
    parts = {node.id: definition.own_part(node, config, digests, flat) for node in definition.NODES}
    upstream = {node.id: node.upstream for node in definition.NODES}
    return cache.decide(records, parts, upstream, forced=no_cache)


def _earlier_result(
    config: PipelineConfig, records: cache.Records, decisions: Mapping[str, cache.Decision]
) -> dict[str, Any] | None:
    """Return the newest kept result that answers this run whole; None when a node must run."""
    if not all(decision.cached for decision in decisions.values()):
        return None
    last = list(decisions.values())[-1]
    runs = [
        records.run_of(one.id)
        for one in records.executions()
        if one.fingerprint == last.fingerprint
    ]
    for number in reversed(runs):
        path = config.folder / "logs" / number / "result.json"
        if not path.is_file():
            continue
        result = json.loads(path.read_text())
        places = [result.get("report"), result.get("model")]
        if result["status"] == "succeeded" and all(Path(p).exists() for p in places if p):
            return result
    return None


def _nothing_to_do(
    earlier: dict[str, Any], decisions: Mapping[str, cache.Decision], *, seconds: float
) -> dict[str, Any]:
    nodes = [
        {"id": name, "state": "cached", "why": decision.why, "seconds": 0.0}
        for name, decision in decisions.items()
    ]
    return {**earlier, "seconds": round(seconds, 2), "nodes": nodes, "exit_code": 0}


def _run_processes(one: Run, files: list[str], *, started: float) -> dict[str, Any]:
    _write_plan(one, files)
    one.tell("run_started", run=one.number, pipeline=one.config.name, command=sys.argv[1:])
    for name, decision in one.decisions.items():
        one.tell("node", id=name, state="waiting", why=decision.why, seconds=0.0)
    with processes.signals(one):
        try:
            processes.start(one)
            code = processes.watch(one)
        finally:
            processes.stop_children(one)
    return _close(one, code, started=started)


def _write_plan(one: Run, files: list[str]) -> None:
    """Write what the pipeline process does, for it and for a person who looks later."""
    plan = {
        "name": one.config.name,
        "run": one.number,
        "folder": str(one.config.folder),
        "events": str(one.events),
        "nodes": [
            {
                "id": node.id,
                "module": node.module,
                "inputs": dict(node.inputs),
                "settings": node.settings(one.config, files),
                "fingerprint": one.decisions[node.id].fingerprint,
                "cached": one.decisions[node.id].cached,
            }
            for node in definition.NODES
        ],
    }
    (one.folder / "run.json").write_text(json.dumps(plan, indent=1))


def _close(one: Run, code: int, *, started: float) -> dict[str, Any]:
    """Write the report and the result, end the tracking, and return the result."""
    records = cache.Records(one.config.folder / "metadata.sqlite")
    outputs = records.outputs_of_run(one.number)
    status = STATUS.get(code, "failed")
    result: dict[str, Any] = {
        "status": status,
        "pipeline": one.config.name,
        "run_id": one.number,
        "seconds": 0.0,
        "nodes": _node_states(one, failed=bool(code)),
        **results.gather(outputs, one.told),
        "mlflow": None,
        "report": None,
        "error": _error_line(one, code),
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
    paths = {f"statistics/{name}.pb": str(path)
             for name, path in results.split_statistics(outputs).items()}  # fmt: skip
    tags = {}
    schema = outputs.get("SchemaGen", {}).get("schema")
    if schema is not None:
        paths["schema.pbtxt"] = str(Path(schema.uri) / "schema.pbtxt")
        tags["digest.schema"] = fingerprint.file_digest(paths["schema.pbtxt"])
    if task := results.task(outputs):
        tags["headrace.task"] = task
    one.tell("artifacts", paths=paths, tags=tags)


def _write_memory_plan(one: Run) -> None:
    """Keep what the training said that it would need, as a file for the tracking."""
    told = [event for event in one.told if event["event"] == "training_started"]
    if told:
        plan = {name: value for name, value in told[-1].items() if name not in {"event", "time"}}
        processes.write_whole(one.folder / "plan.json", json.dumps(plan, indent=1))


def _node_states(one: Run, *, failed: bool) -> list[dict[str, Any]]:
    """Return each node's state at the end, with its time and why it ran or was cached."""
    states: dict[str, dict[str, Any]] = {}
    for event in one.told:
        if event["event"] == "node":
            states[event["id"]] = event
    said = []
    for name, decision in one.decisions.items():
        event = states.get(name, {"state": "waiting", "seconds": 0.0})
        state = {"done": "ran", "cached": "cached", "running": "failed"}.get(
            event["state"], "not_run"
        )
        if state == "failed" and not failed:
            state = "not_run"
        said.append({
            "id": name,
            "state": state,
            "why": decision.why,
            "seconds": round(event["seconds"], 2),
        })
    return said


def _error_line(one: Run, code: int) -> str | None:
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
    schema = outputs.get("SchemaGen", {}).get("schema")
    try:
        report.write_report(
            path,
            title=one.config.name,
            statistics=statistics,
            anomalies=result["anomalies"],
            schema=Path(schema.uri) / "schema.pbtxt" if schema else None,
            label=one.config.data.label,
            ignored=list(one.config.data.ignore),
            history=results.history(outputs, one.told),
            metrics=result["metrics"] or {},
            baseline=result["baseline"] or {},
            facts={
                "run_id": one.number,
                "status": result["status"],
                "seconds": time.monotonic() - started,
                "error": result["error"],
                "examples": result["examples"],
                "training": result["training"],
                "settings": one.config.flat(),
            },
        )
    except OSError as error:
        one.tell("warning", id="report", message=f"{path}: not written ({error.strerror})")
        return str(path) if path.exists() else None
    one.tell("report", path=str(path))
    return str(path)


def _tracked(one: Run, records: cache.Records) -> dict[str, Any] | None:
    """Return where this run's training is tracked, once the tracking process has ended."""
    child = one.children.get("tracking")
    if child is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(TRACKING_SECONDS)
        one.follow()
        tracking = [event for event in one.told if event["event"] == "tracking"]
        if tracking and not tracking[-1]["stored"]:
            one.tell("warning", id="tracking", message=tracking[-1]["message"])
        told = [event for event in tracking if event.get("run_id")]
        if told:
            return {name: told[-1].get(name) for name in ("tracking_uri", "experiment", "run_id")}
        return None
    # A cached model was tracked by the run that trained it.
    wanted = one.decisions["Trainer"].fingerprint
    for execution in reversed(records.executions()):
        if execution.node == "Trainer" and execution.fingerprint == wanted:
            path = one.folder.parent / records.run_of(execution.id) / "result.json"
            if path.is_file() and (kept := json.loads(path.read_text()).get("mlflow")):
                return kept
    return None
