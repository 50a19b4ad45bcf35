"""`run`: what is cached, the processes of a run, its journal on screen; its end is in run_end.py.

This process stays light. The nodes run in one child (`pipeline.dag`), training in a second that
imports TensorFlow while the data nodes work (`trainer.worker`), tracking in a third
(`components.tracking`); all of them tell the journal, which is read here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components import fingerprint, readers
from pipeline import baseline, cache, definition, lines, processes, run_end
from pipeline.config import PipelineConfig
from pipeline.definition import Node
from pipeline.processes import OnEvent, Run
from trainer.errors import InputError

Baseline = dict[str, Any] | None
Close = Callable[..., dict[str, Any]]
"""Takes the run, its exit code and when it began; returns the result, with ``exit_code``."""


def run(
    config: PipelineConfig,
    *,
    no_cache: frozenset[str] = frozenset(),
    on_event: OnEvent,
    nodes: Sequence[Node] = definition.NODES,
    close: Close = run_end.close,
    kind: str = "",
) -> dict[str, Any]:
    """Run the pipeline on this machine.

    Args:
        config: the configuration.
        no_cache: nodes that run even when nothing changed.
        on_event: told of every event of the journal, in order.
        nodes: which nodes, each after those that it reads from.
        close: makes the result of what they did.
        kind: what the number of such a run begins with.

    Returns:
        The contract's JSON object, and ``exit_code``.

    Raises:
        InputError: when nothing could be started.
    """
    started = time.monotonic()
    found = readers.resolve(config.data.files, config.base, config.root_folder / "inputs")
    files = [str(path) for path in found.files]
    _make_folder(config.folder)
    with _alone(config.folder, on_event):
        with processes.interruptible():
            records = cache.Records(config.folder / "metadata.sqlite")
            decisions, compared = _decide(config, files, nodes, records=records, no_cache=no_cache)
            earlier = _earlier_result(config, records, decisions)
            if earlier is None:
                _refuse_early(config)
        if earlier is not None:
            return _nothing_to_do(earlier, decisions, seconds=time.monotonic() - started)
        number, folder = _new_run(config.folder / "logs", kind)
        one = Run(number, folder, config, decisions, on_event)
        for skipped in found.skipped:
            one.tell("warning", id="ExampleGen", message=f"not read: {skipped}")
        return _run_processes(one, files, nodes, compared=compared, started=started, close=close)


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


def _new_run(logs: Path, kind: str) -> tuple[str, Path]:
    """Make the next run's folder."""
    logs.mkdir(parents=True, exist_ok=True)
    names = [path.name.removeprefix(kind) for path in logs.iterdir() if path.name.startswith(kind)]
    number = kind + str(max((int(one) for one in names if one.isdigit()), default=0) + 1)
    folder = logs / number
    folder.mkdir()
    return number, folder


def _decide(
    config: PipelineConfig,
    files: list[str],
    nodes: Sequence[Node],
    *,
    records: cache.Records,
    no_cache: frozenset[str],
) -> tuple[dict[str, cache.Decision], Baseline]:
    """Decide what is cached, and what the gate compares the data with."""
    digests = fingerprint.data_digests(files)
    flat = config.flat()
    parts = {node.id: definition.own_part(node, config, digests, flat) for node in nodes}
    upstream = {node.id: node.upstream for node in nodes}
    decisions = cache.decide(records, parts, upstream, forced=no_cache)
    found = None
    if config.validation.drift.baseline != "none":
        found = baseline.find(records, decisions[baseline.EXAMPLES].fingerprint)
    if found:
        parts[baseline.GATE] = baseline.with_baseline(parts[baseline.GATE], found)
        decisions = cache.decide(records, parts, upstream, forced=no_cache)
    return decisions, found


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
    whys = {name: decision.why for name, decision in decisions.items()}
    whys["Pusher"] = lines.joined(whys["Pusher"], lines.why_not_pushed(earlier))
    nodes = [
        {"id": name, "state": "cached", "why": why, "seconds": 0.0} for name, why in whys.items()
    ]
    return {**earlier, "seconds": round(seconds, 2), "nodes": nodes, "exit_code": 0}


def _run_processes(
    one: Run,
    files: list[str],
    nodes: Sequence[Node],
    *,
    compared: Baseline,
    started: float,
    close: Close,
) -> dict[str, Any]:
    _write_plan(one, files, nodes, compared=compared)
    one.tell(
        "run_started",
        run=one.number,
        pipeline=one.config.name,
        command=sys.argv[1:],
        after=time.monotonic() - started,
    )
    for name, decision in one.decisions.items():
        one.tell("node", id=name, state="waiting", why=decision.why, seconds=0.0)
    with processes.signals(one):
        try:
            processes.start(one)
            code = processes.watch(one)
            run_end.end_nodes(one, code)
        finally:
            processes.stop_children(one)
        return close(one, code, started=started)


def _write_plan(one: Run, files: list[str], nodes: Sequence[Node], *, compared: Baseline) -> None:
    """Write what the pipeline process does, for it and for a person who looks later."""
    more = {baseline.GATE: {"baseline": compared}}
    plan = {
        "name": one.config.name,
        "run": one.number,
        "folder": str(one.config.folder),
        "events": str(one.events),
        "beam": definition.beam_args(one.config),
        "nodes": [
            {
                "id": node.id,
                "module": node.module,
                "inputs": dict(node.inputs),
                "settings": {**node.settings(one.config, files), **more.get(node.id, {})},
                "fingerprint": one.decisions[node.id].fingerprint,
                "cached": one.decisions[node.id].cached,
            }
            for node in nodes
        ],
    }
    (one.folder / "run.json").write_text(json.dumps(plan, indent=1))
