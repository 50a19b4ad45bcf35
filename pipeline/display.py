"""A run on screen, and the only file that prints.

On a terminal a live block: one line a node, then the training's bar. Elsewhere plain lines
without control characters. With ``--json`` nothing but the result. All are fed by the journal's
events and the final result alone.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pipeline import lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

Event = Mapping[str, Any]

PLAIN_SECONDS = 10.0
"""Time between two lines about training steps where there is no terminal."""

STYLES = {"done": "green", "cached": "cyan", "running": "yellow", "failed": "bold red"}


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


@dataclass
class Progress:
    """What the events so far add up to."""

    nodes: dict[str, NodeLine] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Add one event."""
        kind = event["event"]
        if kind == "node":
            self._take_node(event)
        elif kind == "progress":
            line = self.nodes.setdefault(str(event["id"]), NodeLine())
            line.done, line.total = event.get("done") or 0, event.get("total") or 0
            line.unit = str(event.get("unit") or "")
        elif kind == "warning":
            self.warnings.append(lines.plain(event.get("message", "")))
        elif kind == "training_started":
            # A restarted training process tells its plan again, and its steps go back.
            self.plan, self.step = dict(event), {}
        elif kind == "train_step":
            self.step = dict(event)
        elif kind == "evaluation":
            self.evaluation = dict(event)

    def _take_node(self, event: Event) -> None:
        line = self.nodes.setdefault(str(event["id"]), NodeLine())
        line.state = str(event["state"])
        line.why = str(event.get("why") or line.why)
        if line.state == "running":
            line.since = float(event.get("time") or time.time())
        elif line.is_over:
            line.seconds = event.get("seconds")

    def take_result(self, result: Mapping[str, Any]) -> list[str]:
        """Take the nodes' last states from the result; return the nodes that this changed."""
        changed: list[str] = []
        for one in result.get("nodes") or []:
            line = self.nodes.setdefault(one["id"], NodeLine())
            if line.is_over and line.state not in {"failed", "not_run"}:
                continue
            if line.state != one["state"]:
                changed.append(one["id"])
            line.state = "done" if one["state"] == "ran" else one["state"]
            line.why = one.get("why") or line.why
            line.seconds = None if line.state == "not_run" else one.get("seconds")
        return changed


class SilentScreen:
    """Shows nothing but the result, as one JSON object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Nothing was opened."""

    def on_event(self, event: Event) -> None:
        """Ignore an event."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Print the result."""
        show_json({name: one for name, one in result.items() if name != "exit_code"})


class PlainScreen(SilentScreen):
    """Prints a line whenever a node ends or training says something new."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._told = -math.inf

    def on_event(self, event: Event) -> None:
        """Print what a person who reads the log later wants to see."""
        self.progress.take(event)
        kind, now = event["event"], float(event.get("time") or 0.0)
        if kind == "node" and self.progress.nodes[str(event["id"])].is_over:
            self._node(str(event["id"]))
        elif kind == "warning":
            show([f"warning: {event.get('message', '')}"])
        elif kind == "training_started":
            self._training(lines.training_plan(event), now)
        elif kind == "evaluation":
            self._training(lines.evaluation(event), now)
        elif kind == "train_step" and now - self._told >= PLAIN_SECONDS:
            self._training(lines.training_step(event, self.progress.plan), now)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Print the nodes that never got a last event, then the closing block."""
        for name in self.progress.take_result(result):
            self._node(name)
        _close(result)

    def _node(self, name: str) -> None:
        line = self.progress.nodes[name]
        show([lines.node(name, line.state, line.seconds, line.why)])

    def _training(self, text: str, now: float) -> None:
        self._told = now
        show([lines.node("Trainer", "running", None, text)])


class LiveScreen(SilentScreen):
    """Draws the nodes and the training's bar, several times a second, in place."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=Console(), get_renderable=self.render, refresh_per_second=2, transient=False
        )
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was, whatever ended the run."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_event(self, event: Event) -> None:
        """Keep an event for the next time that the block is drawn."""
        self.progress.take(event)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Draw the last states, then print the closing block."""
        self.progress.take_result(result)
        self.__exit__(None, None, None)
        _close(result)

    def render(self) -> Group:
        """Return the block as it is now."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, line in list(self.progress.nodes.items()):
            self._add_node(table, name, line)
        said = [Text(f"warning: {one}", style="yellow") for one in self.progress.warnings]
        return Group(table, *said)

    def _add_node(self, table: Table, name: str, line: NodeLine) -> None:
        from rich.text import Text

        seconds = time.time() - line.since if line.state == "running" else line.seconds
        table.add_row(
            Text(lines.plain(name)),
            Text(lines.WORDS.get(line.state, line.state), style=STYLES.get(line.state, "dim")),
            Text("" if seconds is None else lines.duration(max(seconds, 0.0)), justify="right"),
            self._running(name, line)
            if line.state == "running"
            else Text(lines.plain(line.why) if line.is_over else "", style="dim"),
        )

    def _running(self, name: str, line: NodeLine) -> Text | Table:
        from rich.text import Text

        if name == "Trainer" and self.progress.plan:
            text = lines.training_step(self.progress.step, self.progress.plan)
            if not self.progress.step:
                text = lines.training_plan(self.progress.plan)
            steps = self.progress.plan.get("steps") or 0
            return _bar(self.progress.step.get("step") or 0, steps, text)
        if line.total:
            text = f"{lines.figure(line.done)} of {lines.figure(line.total)} {line.unit}"
            return _bar(line.done, line.total, lines.plain(text))
        return Text(lines.plain(line.why.removeprefix("ran: ")), style="dim")


Screen = SilentScreen | PlainScreen | LiveScreen


def screen(*, as_json: bool) -> Screen:
    """Return what shows a run here: one JSON object, a live block or plain lines."""
    if as_json:
        return SilentScreen()
    dumb = os.environ.get("TERM", "") in {"", "dumb", "unknown"}
    return LiveScreen() if sys.stdout.isatty() and not dumb else PlainScreen()


def show(text: Iterable[str]) -> None:
    """Print lines to standard output, control characters written out."""
    for line in text:
        _print(lines.plain(line), sys.stdout)


def show_error(message: object) -> None:
    """Print one message to standard error."""
    _print(lines.plain(message), sys.stderr)


def show_json(value: Any) -> None:
    """Print one JSON object; numbers that are not finite, which JSON has not, are null."""
    _print(json.dumps(_finite(value), allow_nan=False), sys.stdout)


def show_result(value: Mapping[str, Any], text: Iterable[str], *, as_json: bool) -> None:
    """Print a command's result as JSON or as lines."""
    if as_json:
        show_json(value)
    else:
        show(text)


def _close(result: Mapping[str, Any]) -> None:
    show(lines.closing(result))
    if result.get("error"):
        show_error(result["error"])


def _print(line: str, stream: Any) -> None:
    # A terminal without UTF-8 cannot take every name that data holds.
    encoding = stream.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _bar(done: int, total: int, text: str) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_row(
        ProgressBar(total=max(total, 1), completed=min(done, total), width=24), Text(text)
    )
    return table


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
