"""Which loss of a gang came first: the others fail because of it, often before it is seen.

Who waits for another process in a step ends with an error of its own within a second, while the pod
of the one that died may still be stopping. So each pod leaves a note of a process that ended by
itself, and of being asked to end, and a loss that may be another's consequence is believed only
after some seconds.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubeflow.gang_objects import Gang
from kubeflow.worker import HUNG_CODE, NOTE, place_of, result_of
from trainer import supervisor
from trainer.errors import WorkerLost

DRAINED = "was drained or deleted"
"""How a pod is lost that had time: all of them save their state."""
CONSEQUENCES = {-signal.SIGABRT, HUNG_CODE, 128 + signal.SIGTERM, 128 + signal.SIGINT}
"""Codes that a process also ends with because of another one: TensorFlow aborts when its cluster is
incomplete, a silent one ends itself, and all of them stop when one is asked to."""


@dataclass(frozen=True, order=True)
class Loss:
    """A pod or a process that was lost; the least is the most likely to have come first.

    Attributes:
        is_consequence: whether another loss may have been its cause.
        has_told: whether it could still tell of another one that it lost.
        time: seconds since the epoch, by its own machine's clock; -inf: it had no time to tell.
        what: in words.
    """

    is_consequence: bool
    has_told: bool
    time: float
    what: str


def seen(pods: Sequence[Any], folder: Path, gang: Gang) -> list[Loss]:
    """Return what is known to be lost, the most likely cause first.

    Args:
        pods: of the Job, as the API server describes them.
        folder: of the gang, on the shared volume.
        gang: what was started.
    """
    found = [loss for pod in pods for loss in _of_pod(pod, folder, gang)]
    return sorted(found)


def index(pod: Any) -> int:
    """Return the completion index of a pod."""
    held = pod.metadata.annotations or {}
    return int(held.get("batch.kubernetes.io/job-completion-index", 0))


def errors(folder: Path, gang: Gang) -> list[dict[str, Any]]:
    """Return the facts of errors that workers told of, but for the loss of another, by rank."""
    results = [_read(result_of(folder, rank)) for rank in range(gang.nodes * gang.processes)]
    return [
        one["error"]
        for one in results
        if one is not None and one["status"] != "ok" and one["error"]["type"] != WorkerLost.__name__
    ]


def _of_pod(pod: Any, folder: Path, gang: Gang) -> list[Loss]:
    at = index(pod)
    who = f"pod {at} of {gang.nodes}"
    ranks = range(at * gang.processes, (at + 1) * gang.processes)
    notes = {rank: _read(place_of(folder, rank) / NOTE) for rank in ranks}
    told = {rank: note for rank, note in notes.items() if note is not None}
    if pod.metadata.deletion_timestamp is not None or any(one["asked"] for one in told.values()):
        time = min((one["time"] for one in told.values()), default=-math.inf)
        return [Loss(False, False, time, f"{who} {DRAINED}")]
    if pod.status.phase != "Failed":
        return []
    if pod.status.reason:
        return [Loss(False, False, -math.inf, f"{who} was lost ({pod.status.reason})")]
    ended = _ended(pod)
    if not told or (ended and ended.reason == "OOMKilled"):
        how = f"with exit code {ended.exit_code} ({ended.reason or 'no reason'})" if ended else ""
        return [Loss(False, False, -math.inf, f"{who} died {how}".rstrip())]
    return [_of_process(rank, note, folder, gang) for rank, note in told.items()]


def _of_process(rank: int, note: dict[str, Any], folder: Path, gang: Gang) -> Loss:
    code, has_told = note["code"], _read(result_of(folder, rank)) is not None
    who = f"worker {rank} of {gang.nodes * gang.processes}"
    return Loss(
        is_consequence=has_told or code in CONSEQUENCES,
        has_told=has_told,
        time=note["time"],
        what=f"{who} died {supervisor.describe_exit(code)}",
    )


def _ended(pod: Any) -> Any:
    states = [one.state for one in pod.status.container_statuses or [] if one.state]
    return next((one.terminated for one in states if one.terminated), None)


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a pod has written; None: nothing, or the volume does not show it yet."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
