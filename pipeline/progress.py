"""What a run's events add up to: each node's state, the training's place, what was said on the way.

The screens of `pipeline.display` are drawn from it; it knows nothing of terminals.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline import lines

Event = Mapping[str, Any]

START = "starting"
"""Name of the line for what comes before the first node."""

IMPORTS = "TFX and TensorFlow"


@dataclass
class NodeLine:
    """What is known of a node so far."""

    state: str = "waiting"
    why: str = ""
    seconds: float | None = None
    since: float = 0.0
    done: int = 0
    total: int = 0
    unit: str = ""

    @property
    def is_over(self) -> bool:
        """Whether its state is final."""
        return self.state not in {"waiting", "running"}

    def seconds_at(self, now: float) -> float | None:
        """Return how long it ran, or has run by `now` (seconds since the epoch)."""
        return max(now - self.since, 0.0) if self.state == "running" else self.seconds


@dataclass
class Progress:
    """What the events so far add up to.

    Attributes:
        nodes: by name, in the pipeline's order.
        start: what comes before the first node; waiting when nothing had to start.
        plan: the last ``training_started`` event.
        step: the last ``train_step`` event since then.
        resumed: where training goes on from a checkpoint, in words; empty: it began anew.
        warnings: id of who said it, and what.
    """

    nodes: dict[str, NodeLine] = field(default_factory=dict)
    start: NodeLine = field(default_factory=NodeLine)
    plan: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    resumed: str = ""
    warnings: list[tuple[str, str]] = field(default_factory=list)
    _not_pushed: bool = False

    @property
    def start_seconds(self) -> float | None:
        """How long the start took; None when nothing had to start, or it goes on."""
        return self.start.seconds if self.start.is_over else None

    def take(self, event: Event) -> None:
        """Add one event; kinds that change nothing on a screen are passed over."""
        take = getattr(self, f"_take_{event['event']}", None)
        if take is not None:
            take(event)

    def _take_run_started(self, event: Event) -> None:
        since = _time(event) - float(event.get("after") or 0.0)
        self.start = NodeLine("running", why=IMPORTS, since=since)

    def _take_node(self, event: Event) -> None:
        line = self.nodes.setdefault(str(event["id"]), NodeLine())
        line.state = str(event["state"])
        line.why = str(event.get("why") or line.why)
        if line.state != "waiting" and self.start.state == "running":
            self.start.state, self.start.seconds = "done", self.start.seconds_at(_time(event))
        if line.state == "running":
            line.since = _time(event)
        elif line.is_over:
            line.seconds = event.get("seconds")

    def _take_progress(self, event: Event) -> None:
        line = self.nodes.setdefault(str(event["id"]), NodeLine())
        line.done, line.total = event.get("done") or 0, event.get("total") or 0
        line.unit = str(event.get("unit") or "")

    def _take_warning(self, event: Event) -> None:
        if not self.is_told(event):
            self.warnings.append((str(event.get("id", "")), lines.plain(event.get("message", ""))))

    def is_told(self, event: Event) -> bool:
        """Say whether a warning is told elsewhere: the Pusher's line says why it pushed nothing."""
        return self._not_pushed and event.get("id") == "Pusher"

    def _take_not_pushed(self, event: Event) -> None:
        self._not_pushed = True
        line = self.nodes.setdefault("Pusher", NodeLine())
        line.why = lines.joined(line.why, lines.not_pushed(event))

    def _take_resumed(self, event: Event) -> None:
        self.resumed = lines.resumed(event.get("step"), event.get("steps"))

    def _take_training_started(self, event: Event) -> None:
        # A restarted training process tells its plan again, and its steps go back.
        self.plan, self.step = dict(event), {}
        if event.get("start_step"):
            self.resumed = lines.resumed(event["start_step"], event.get("steps"))

    def _take_train_step(self, event: Event) -> None:
        self.step = dict(event)

    def take_result(self, result: Mapping[str, Any]) -> list[str]:
        """Take the nodes' last states from the result; return the nodes that this changed."""
        if self.start.state == "running":
            how = lines.INTERRUPTED if result.get("status") == "interrupted" else ""
            self.start.state, self.start.seconds = "failed", result.get("seconds")
            self.start.why = lines.joined(self.start.why, how)
        changed: list[str] = []
        for one in result.get("nodes") or []:
            line = self.nodes.setdefault(one["id"], NodeLine())
            state = "done" if one["state"] == "ran" else one["state"]
            if not line.is_over:
                changed.append(one["id"])
            line.state, line.why = state, one.get("why") or line.why
            line.seconds = None if state == "not_run" else one.get("seconds")
        return changed


def _time(event: Event) -> float:
    time_of = event.get("time")
    return time.time() if time_of is None else float(time_of)
