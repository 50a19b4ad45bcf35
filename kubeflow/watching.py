"""A run of Kubeflow Pipelines as it goes on, told in the events that `pipeline.display` shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kubeflow import connection
from kubeflow.connection import Server
from kubeflow.task import EXIT_MARK
from trainer.errors import DataRefused, HeadraceError, InputError, TrainingError

POLL_SECONDS, FIRST_POLL_SECONDS = 5.0, 1.0
"""Between two looks, and between the first two: what fails at once is told at once."""
PATIENCE_SECONDS = 300.0
"""How long a server that was there may be away."""
GATE = "DataGate"
OVER = {"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"}
STATES = {
    "RUNNING": "running", "CANCELING": "running", "PAUSED": "running",
    "SUCCEEDED": "done", "SKIPPED": "cached", "FAILED": "failed", "CANCELED": "failed",
}  # fmt: skip
"""Of KFP's states; the others are those of a task that waits."""
JSON_STATES = {"done": "ran", "waiting": "not_run", "running": "not_run"}
"""States in the result, where a person reads others."""


@dataclass(frozen=True)
class Node:
    """What is known of a node.

    Attributes:
        state: as a display has it.
        why: what there is to say of it.
        seconds: that it took; None: it has not ended.
    """

    state: str = "waiting"
    why: str = ""
    seconds: float | None = None


class Watch:
    """A run that is looked at until it ends."""

    def __init__(
        self,
        server: Server,
        run_id: str,
        tasks: Mapping[str, str],
        on_event: Callable[[Mapping[str, Any]], None],
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._server, self._run_id = server, run_id
        self._tasks, self._on_event = tasks, on_event
        self._poll_seconds = poll_seconds
        self._nodes = {one: Node() for one in tasks.values()}
        self._errors: dict[str, str] = {}

    def follow(self) -> dict[str, Any]:
        """Look until the run has ended, and return its status, error and exit code."""
        self._tell_all()
        pause = min(FIRST_POLL_SECONDS, self._poll_seconds)
        while True:
            run = self._look()
            self._take(run)
            if str(run.state) in OVER:
                return self._ended(run)
            time.sleep(pause)
            pause = min(1.5 * pause, self._poll_seconds)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as the result of a run has them."""
        return [
            {
                "id": name,
                "state": JSON_STATES.get(one.state, one.state),
                "why": one.why,
                "seconds": one.seconds,
            }
            for name, one in self._nodes.items()
        ]

    def _look(self) -> Any:
        """Return the run, though the server be away for some time.

        Raises:
            InputError: it stays away, or does not let us in any more.
            TrainingError: it keeps failing.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        has_warned = False
        while True:
            try:
                with connection.asking(self._server):
                    return self._server.client.get_run(self._run_id)
            except (InputError, TrainingError) as error:
                is_refused = "401" in error.what or "403" in error.what
                if is_refused or time.monotonic() > until:
                    raise
                if not has_warned:
                    has_warned = True
                    self._tell("warning", id="", message=f"{error}; trying again")
                time.sleep(self._poll_seconds)

    def _take(self, run: Any) -> None:
        """Tell what has changed since the last look."""
        details = run.run_details.task_details if run.run_details else None
        found = list(details or [])
        skipped = {id(one) for one in found if _child_states(one, found) == {"SKIPPED"}}
        for one in sorted(found, key=_began):
            # KFP names tasks by their key in the package, some versions by their shown name.
            name = self._tasks.get(str(one.display_name), str(one.display_name))
            if name in self._nodes:
                self._set(name, one, is_cached=id(one) in skipped)

    def _set(self, name: str, task: Any, *, is_cached: bool) -> None:
        state = STATES.get(str(task.state), "waiting")
        if state == "done" and is_cached:
            state = "cached"
        why = "cached: same inputs and image as an earlier run" if state == "cached" else ""
        if message := _message(task.error):
            self._errors[name] = message
            why = message if state == "failed" else why
        if str(task.state) == "CANCELED":
            why = "cancelled"
        known = Node(state, why, _seconds(task) if str(task.state) in OVER else None)
        if known != self._nodes[name]:
            self._nodes[name] = known
            self._tell("node", id=name, state=known.state, why=known.why, seconds=known.seconds)

    def _tell_all(self) -> None:
        for name in self._nodes:
            self._tell("node", id=name, state="waiting", why="", seconds=None)

    def _tell(self, event: str, **facts: Any) -> None:
        self._on_event({"event": event, "time": time.time(), **facts})

    def _ended(self, run: Any) -> dict[str, Any]:
        state = str(run.state)
        if state in {"SUCCEEDED", "SKIPPED"}:
            return {"status": "succeeded", "error": None, "exit_code": 0}
        if state == "CANCELED":
            error: HeadraceError = TrainingError("the run was cancelled in the cluster")
            return {"status": "failed", "error": str(error), "exit_code": error.exit_code}
        failed = [name for name, one in self._nodes.items() if one.state == "failed"]
        first = failed[0] if failed else ""
        said = self._errors.get(first) or _message(run.error)
        code = exit_code(first, said)
        told = said or "the log of its task says why"
        return {
            "status": "rejected" if code == DataRefused.exit_code else "failed",
            "error": f"{first}: {told}" if first and first not in told else told,
            "exit_code": code,
        }


def exit_code(node: str, message: str) -> int:
    """Return how a run that failed ends, by the node that failed and what KFP knows of it.

    A pod ends with the launcher's exit code and not with ours, and KFP's API hands on no message of
    a task (up to 2.17): then a gate that failed is taken to have refused the data. Where a message
    comes through, our code stands in it.
    """
    if found := re.search(EXIT_MARK.format(r"(\d+)"), message):
        return int(found[1])
    return DataRefused.exit_code if node == GATE else TrainingError.exit_code


def _child_states(task: Any, found: Iterable[Any]) -> set[str]:
    """Return the states of the tasks that do a task's work; empty: none is known.

    A task names its children by Argo's ids, and tasks themselves by the names of their pods; both
    end with the same number.
    """
    children = {_number(one) for one in task.child_tasks or []} - {""}
    return {
        str(one.state)
        for one in found
        if _number(one) in children and not str(one.display_name).endswith("-driver")
    }


def _number(task: Any) -> str:
    return str(task.pod_name or task.task_id or "").rpartition("-")[2]


def _message(error: Any) -> str:
    return " ".join(str((error.message if error else "") or "").split())


def _began(task: Any) -> float:
    began = task.create_time or task.start_time
    return began.timestamp() if began else 0.0


def _seconds(task: Any) -> float | None:
    if not (task.start_time and task.end_time):
        return None
    return max((task.end_time - task.start_time).total_seconds(), 0.0)
