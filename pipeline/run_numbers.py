"""The one number of a run: that of its folder under ``logs/``, which the closing block says.

MLflow counts trainings, not runs: an interrupted run and the one that goes on from its checkpoint
are one MLflow run, and a run that trains nothing has none. The journals tell which is which.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.tracking_record import SESSIONS, session_of
from pipeline.tracked_runs import TrackedRun


@dataclass(frozen=True)
class KeptRun:
    """A run that left a folder.

    Attributes:
        number: its number.
        session: its name in MLflow's tags; empty when its journal says nothing.
        status: as its result has it; ``unfinished`` when there is no result.
        training: the MLflow run id of the training that its result speaks of; empty: none.
    """

    number: str
    session: str
    status: str
    training: str


@dataclass(frozen=True)
class Unlisted:
    """A run that has no line of its own among the tracked ones.

    Attributes:
        number: its number.
        status: how it ended.
        why: why it has no line.
        run_id: the MLflow run that stands for it; empty: none does.
    """

    number: str
    status: str
    why: str
    run_id: str = ""


def kept(pipeline: Path) -> list[KeptRun]:
    """Return the runs of the pipeline's folder by number, the first one first."""
    logs = pipeline / "logs"
    folders = logs.iterdir() if logs.is_dir() else ()
    numbered = [folder for folder in folders if folder.name.isdigit() and folder.is_dir()]
    return [_kept(folder) for folder in sorted(numbered, key=lambda one: int(one.name))]


def _kept(folder: Path) -> KeptRun:
    result = _json(_text(folder / "result.json"))
    first = _json(_first_line(folder / "events.jsonl"))
    return KeptRun(
        number=folder.name,
        session=session_of(first) if first else "",
        status=str(result.get("status") or "unfinished"),
        training=str((result.get("mlflow") or {}).get("run_id") or ""),
    )


def number(
    found: Iterable[TrackedRun], runs: Sequence[KeptRun]
) -> tuple[list[TrackedRun], list[Unlisted]]:
    """Name each tracked run by the number of the last run that wrote to it.

    Args:
        found: the tracked runs.
        runs: those that left a folder here.

    Returns: the tracked runs in their order, and the runs of this folder that none is named for.
        A tracked run of another folder keeps its name; if a run here has that number, it is
        named ``<number> elsewhere``.
    """
    by_session = {one.session: one.number for one in runs if one.session}
    here = {one.number for one in runs}
    named = []
    for run in found:
        wrote = [by_session.get(one, "") for one in run.tags.get(SESSIONS, "").split(",")]
        numbers = [one for one in wrote if one]
        other = f"{run.name} elsewhere" if run.name in here else run.name
        named.append(
            dataclasses.replace(run, name=numbers[-1] if numbers else other, numbers=numbers)
        )
    listed = {run.name for run in named if run.numbers}
    return named, [_unlisted(one, named) for one in runs if one.number not in listed]


def _unlisted(one: KeptRun, named: Sequence[TrackedRun]) -> Unlisted:
    for run in named:
        if one.number in run.numbers:
            return Unlisted(one.number, one.status, f"went on as run {run.name}", run.run_id)
    for run in named:
        if one.training and run.run_id == one.training:
            why = f"trained nothing; its model is that of run {run.name}"
            return Unlisted(one.number, one.status, why, run.run_id)
    return Unlisted(one.number, one.status, "is not in MLflow")


def _first_line(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline()
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _json(text: str) -> dict[str, Any]:
    try:
        holds = json.loads(text)
    except ValueError:
        return {}
    return holds if isinstance(holds, dict) else {}
