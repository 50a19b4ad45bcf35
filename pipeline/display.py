"""A run on screen, and the only file that prints.

On a terminal a live block: one line a node, then the training's bar. Elsewhere plain lines
without control characters. With ``--json`` nothing but the result. All are fed by the journal's
events and the final result alone.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pipeline import lines
from pipeline.progress import START, Progress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

Event = Mapping[str, Any]

PLAIN_SECONDS = 10.0
"""Time between two lines about training steps where there is no terminal."""

PLAIN_EVALUATION_SECONDS = 1.0
"""Least time between two lines about evaluations; the last one is told in any case."""

IN_CLOSING = frozenset({"Trainer"})
"""Who gives warnings that the closing block repeats: they say what the model is."""


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
        self._resumed = ""

    def on_event(self, event: Event) -> None:
        """Print what a person who reads the log later wants to see."""
        has_started = self.progress.start.is_over
        self.progress.take(event)
        kind, now = event["event"], float(event.get("time") or 0.0)
        if kind == "run_started" or self.progress.start.is_over > has_started:
            self._node(START)
        if kind == "node" and self.progress.nodes[str(event["id"])].is_over:
            self._node(str(event["id"]))
        elif kind == "warning" and not self.progress.is_told(event):
            show([f"warning: {event.get('message', '')}"], hang=len("warning: "))
        elif kind == "measured":
            show([lines.node("MemoryPlanner", "running", None, lines.measured(event["entry"]))],
                 hang=lines.NODE_HANG)  # fmt: skip
        elif kind in {"resumed", "training_started"}:
            self._training_starts(event, now)
        elif kind == "evaluation":
            is_last = event.get("step") == self.progress.plan.get("steps")
            if is_last or now - self._told >= PLAIN_EVALUATION_SECONDS:
                self._training(lines.evaluation(event), now)
        elif kind == "train_step" and now - self._told >= PLAIN_SECONDS:
            self._training(lines.training_step(event, self.progress.plan), now)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Print the nodes that never got a last event, then the closing block."""
        has_started = self.progress.start.state != "running"
        changed = self.progress.take_result(result)
        for name in changed if has_started else [START, *changed]:
            self._node(name)
        _close(result, self.progress)

    def _node(self, name: str) -> None:
        line = self.progress.start if name == START else self.progress.nodes[name]
        show([lines.node(name, line.state, line.seconds, line.why)], hang=lines.NODE_HANG)

    def _training_starts(self, event: Event, now: float) -> None:
        if self.progress.resumed != self._resumed:
            self._resumed = self.progress.resumed
            self._training(self._resumed, now)
        if event["event"] == "training_started":
            self._training(lines.training_plan(event), now)

    def _training(self, text: str, now: float) -> None:
        self._told = now
        show([lines.node("Trainer", "running", None, text)], hang=lines.NODE_HANG)


class LiveScreen(SilentScreen):
    """Draws the nodes and the training's bar in place, once a second.

    More often would cost more than 0.5 % of a training on two cores.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._live: Live | None = None
        self._closes = False

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=Console(), get_renderable=self.render, refresh_per_second=1, transient=False
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
        self._closes = True
        self.__exit__(None, None, None)
        _close(result, self.progress)

    def render(self) -> Group:
        """Return the block as it is now."""
        from pipeline import live_block

        width, height = self._live.console.size if self._live else shutil.get_terminal_size()
        return live_block.block(
            self.progress,
            width=width,
            now=time.time(),
            # The last time all of it is drawn, and scrolls.
            height=None if self._closes else height,
            but=IN_CLOSING if self._closes else frozenset(),
        )


Screen = SilentScreen | PlainScreen | LiveScreen


def screen(*, as_json: bool) -> Screen:
    """Return what shows a run here: one JSON object, a live block or plain lines."""
    if as_json:
        return SilentScreen()
    return LiveScreen() if _can_draw() else PlainScreen()


def _can_draw() -> bool:
    is_dumb = os.environ.get("TERM", "") in {"", "dumb", "unknown"}
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return sys.stdout.isatty() and not is_dumb and is_unicode


def show(text: Iterable[str], *, hang: int | None = None) -> None:
    """Print lines to standard output, control characters written out.

    Args:
        text: the lines.
        hang: on a terminal, wrap what is too long for it and move the further lines in by so many
            columns; None: leave it to the terminal.
    """
    for line in text:
        _print(lines.plain(line), sys.stdout, hang=hang)


def show_error(message: object) -> None:
    """Print one message to standard error."""
    _print(lines.plain(message), sys.stderr, hang=lines.ERROR_HANG)


def show_json(value: Any) -> None:
    """Print one JSON object; numbers that are not finite, which JSON has not, are null."""
    _print(json.dumps(_finite(value), allow_nan=False), sys.stdout)


def show_result(
    value: Mapping[str, Any], text: Iterable[str], *, as_json: bool, hang: int | None = None
) -> None:
    """Print a command's result as JSON or as lines, which `show` wraps."""
    if as_json:
        show_json(value)
    else:
        show(text, hang=hang)


def _close(result: Mapping[str, Any], progress: Progress) -> None:
    told = [message for who, message in progress.warnings if who in IN_CLOSING]
    block = lines.closing(
        result, start_seconds=progress.start_seconds, warnings=dict.fromkeys(told)
    )
    show(block, hang=lines.CLOSING_HANG)
    if result.get("error"):
        show_error(lines.error(result))


def _print(line: str, stream: Any, *, hang: int | None = None) -> None:
    whole = [line]
    if hang is not None and stream.isatty():
        # Of the terminal that it goes to: the other stream may lead elsewhere.
        whole = lines.wrapped(line, _width(stream), hang)
    # A terminal without UTF-8 cannot take every name that data holds.
    encoding = stream.encoding or "utf-8"
    text = "\n".join(whole).encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=stream, flush=True)


def _width(stream: Any) -> int:
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
