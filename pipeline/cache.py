"""Why a node runs or is cached, told from ML Metadata alone.

TFX decides by its own cache key, which holds each node's settings and fingerprint; this file asks
the same question beforehand, without importing TFX, so that a run with nothing to do ends at once
and every other run can say why a node runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from components import fingerprint
from components.fingerprint import Fingerprint

PIPELINE_RUN = "pipeline_run"


class Output(NamedTuple):
    """An output artifact: its place, and its custom properties that are texts."""

    uri: str
    properties: dict[str, str]


Outputs = dict[str, Output]


@dataclass(frozen=True)
class Execution:
    """A time that a node ran to its end.

    Attributes:
        id: its number in ML Metadata.
        node: the node's id.
        fingerprint: what its result depends on.
        cached: whether TFX took an earlier result.
    """

    id: int
    node: str
    fingerprint: Fingerprint
    cached: bool


@dataclass(frozen=True)
class Decision:
    """Whether a node runs, and why.

    Attributes:
        cached: the node's earlier result is taken.
        why: in words.
        fingerprint: the whole one, generation included.
    """

    cached: bool
    why: str
    fingerprint: Fingerprint


class Records:
    """ML Metadata of one pipeline, read only. A file that is not there holds nothing."""

    def __init__(self, path: Path) -> None:
        self._store = None
        if path.exists():
            from ml_metadata import metadata_store
            from ml_metadata.proto import metadata_store_pb2

            config = metadata_store_pb2.ConnectionConfig()
            config.sqlite.filename_uri = str(path)
            config.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READONLY
            self._store = metadata_store.MetadataStore(config)

    def executions(self) -> list[Execution]:
        """Return every execution that ended well, oldest first."""
        if self._store is None:
            return []
        return [
            execution
            for record in sorted(self._store.get_executions(), key=lambda one: one.id)
            if (execution := _execution(record)) is not None
        ]

    def outputs(self, execution: int) -> Outputs:
        """Return each output of an execution, by name."""
        from ml_metadata.proto import metadata_store_pb2

        assert self._store is not None
        names = {
            event.artifact_id: event.path.steps[0].key
            for event in self._store.get_events_by_execution_ids([execution])
            if event.type == metadata_store_pb2.Event.OUTPUT and event.path.steps
        }
        artifacts = self._store.get_artifacts_by_id(list(names)) if names else []
        return {
            names[artifact.id]: Output(
                artifact.uri,
                {name: one.string_value for name, one in artifact.custom_properties.items()},
            )
            for artifact in artifacts
        }

    def run_of(self, execution: int) -> str:
        """Return the run that an execution belongs to."""
        assert self._store is not None
        for context in self._store.get_contexts_by_execution(execution):
            if context.type == PIPELINE_RUN:
                return context.name
        return "?"

    def outputs_of_run(self, run: str) -> dict[str, Outputs]:
        """Return each node's outputs in a run, cached ones included."""
        return {
            one.node: self.outputs(one.id)
            for one in self.executions()
            if self.run_of(one.id) == run
        }


def _execution(record: Any) -> Execution | None:
    from ml_metadata.proto import metadata_store_pb2

    complete = metadata_store_pb2.Execution.COMPLETE
    cached = metadata_store_pb2.Execution.CACHED
    kept = record.custom_properties.get("fingerprint") or record.properties.get("fingerprint")
    if record.last_known_state not in {complete, cached} or kept is None:
        return None
    return Execution(
        id=record.id,
        node=record.type.rsplit(".", 1)[-1],
        fingerprint=json.loads(kept.string_value),
        cached=record.last_known_state == cached,
    )


def decide(
    records: Records,
    parts: Mapping[str, Fingerprint],
    upstream: Mapping[str, Iterable[str]],
    *,
    forced: frozenset[str],
) -> dict[str, Decision]:
    """Decide for each node, in order.

    Args:
        records: the pipeline's ML Metadata.
        parts: each node's own part of its fingerprint.
        upstream: the nodes whose outputs each node reads.
        forced: nodes that run even when nothing changed.
    """
    earlier: dict[str, list[Execution]] = {}
    for execution in records.executions():
        if not execution.cached:
            earlier.setdefault(execution.node, []).append(execution)
    decisions: dict[str, Decision] = {}
    for node, part in parts.items():
        asked = {
            **part,
            "upstream": {
                name: fingerprint.digest(decisions[name].fingerprint) for name in upstream[node]
            },
        }
        decisions[node] = _decide_one(records, asked, earlier.get(node, []), forced=node in forced)
    return decisions


def _decide_one(
    records: Records, asked: Fingerprint, earlier: list[Execution], *, forced: bool
) -> Decision:
    equal = [one for one in earlier if _without_generation(one.fingerprint) == asked]
    generation = max((one.fingerprint.get("generation", 0) for one in equal), default=0)
    if not forced:
        for one in reversed(equal):
            if all(_is_there(output) for output in records.outputs(one.id).values()):
                why = f"cached: same data, settings and code as run {records.run_of(one.id)}"
                return Decision(cached=True, why=why, fingerprint=one.fingerprint)
    # A generation of its own, so that TFX's cache does not answer with the earlier result.
    asked = {**asked, "generation": generation + 1 if equal else 0}
    return Decision(
        cached=False, why="ran: " + _why(asked, earlier, equal, forced), fingerprint=asked
    )


def _is_there(output: Output) -> bool:
    places = [output.uri, output.properties.get("pushed_destination")]
    return all(Path(place).exists() for place in places if place)


def _why(asked: Fingerprint, earlier: list[Execution], equal: list[Execution], forced: bool) -> str:
    if forced:
        return "--no-cache"
    if equal:
        return "its earlier output is gone"
    if not earlier:
        return "first run"
    said = fingerprint.changes(earlier[-1].fingerprint, asked)
    return ", ".join(said[:4]) + (f" and {len(said) - 4} more" if len(said) > 4 else "")


def _without_generation(whole: Fingerprint) -> Fingerprint:
    return {name: value for name, value in whole.items() if name != "generation"}
