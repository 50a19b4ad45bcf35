"""The live block of a run on a terminal: a line a node, the training's bar, the warnings.

It is built from `pipeline.progress` at every refresh, for the width that the terminal has then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline import lines
from pipeline.progress import START, NodeLine, Progress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

STYLES = {
    "done": "green", "cached": "cyan", "running": "yellow", "failed": "bold red",
    lines.REFUSED: "bold red", lines.INTERRUPTED: "bold red",
}  # fmt: skip
BAR = 24
LEAST_BAR = 8


def block(
    progress: Progress,
    *,
    width: int,
    now: float,
    height: int | None = None,
    but: frozenset[str] = frozenset(),
) -> Group:
    """Return the block as it is now.

    Args:
        progress: what happened so far.
        width: columns of the terminal.
        now: seconds since the epoch.
        height: lines that there is room for; the ones about what runs now are kept. None: all.
        but: who gave the warnings that are left out, since they are told elsewhere.
    """
    from rich.console import Group
    from rich.text import Text

    shown = [] if progress.start.state == "waiting" else [(START, progress.start)]
    rows: list[Text] = []
    first = 0
    for name, line in [*shown, *progress.nodes.items()]:
        first = len(rows) if line.state == "running" else first
        rows += _node(progress, name, line, width=width, now=now)
    rows += _training(progress, width)
    for who, message in list(progress.warnings):
        if who not in but:
            said = lines.wrapped(f"warning: {message}", width, len("warning: "))
            rows += [Text(one, style="yellow") for one in said]
    return Group(*(rows if height is None else _within(rows, height, first)))


def _within(rows: list[Text], height: int, first: int) -> list[Text]:
    """Return the last rows that fit, but for those after what runs now, which begins at `first`."""
    if len(rows) <= height:
        return rows
    begin = min(len(rows) - height, first)
    return rows[begin : begin + height]


def _node(progress: Progress, name: str, line: NodeLine, *, width: int, now: float) -> list[Text]:
    from rich.text import Text

    word, why = lines.outcome(line.state, line.why)
    head = lines.node_head(lines.plain(name), word, line.seconds_at(now))
    said = _said(progress, name, line, why=why)
    first, *more = lines.wrapped("".join(head) + said, width, lines.NODE_HANG)
    cut = min(len("".join(head)), len(first))
    text = Text(first, style="dim")
    text.stylize("not dim", 0, cut)
    text.stylize(STYLES.get(word, "dim"), len(head[0]), len(head[0]) + len(word))
    return [text, *(Text(one, style="dim") for one in more)]


def _said(progress: Progress, name: str, line: NodeLine, *, why: str) -> str:
    if line.is_over or name == START:
        return lines.plain(why)
    if line.state != "running":
        return ""
    if name == "Trainer" and progress.plan:
        return lines.joined(progress.resumed, lines.training_plan(progress.plan))
    if line.total:
        done, total = lines.figure(line.done), lines.figure(line.total)
        return lines.plain(f"{bar(line.done, line.total)} {done} of {total} {line.unit}")
    return lines.plain(why.removeprefix("ran: "))


def _training(progress: Progress, width: int) -> list[Text]:
    """Return the training's bar and where it stands, while it runs."""
    from rich.text import Text

    trainer = progress.nodes.get("Trainer")
    if trainer is None or trainer.state != "running" or not progress.step:
        return []
    said = lines.training_step(progress.step, progress.plan)
    step, steps = progress.step.get("step") or 0, progress.plan.get("steps") or 0
    room = width - len(said) - 3
    if room >= LEAST_BAR:
        return [_bar_text(bar(step, steps, min(room, BAR)), f" {said}")]
    told = [Text(f"  {one}") for one in lines.wrapped(said, width - 2, 0)]
    return [_bar_text(bar(step, steps, min(width - 3, BAR)), ""), *told]


def _bar_text(drawn: str, said: str) -> Text:
    from rich.text import Text

    return Text.assemble("  ", (drawn, "yellow"), said)


def bar(done: int, total: int, width: int = BAR) -> str:
    """Draw a bar that tells by its shape alone, without colours, how much is done."""
    filled = round(width * min(done, total) / max(total, 1))
    return "━" * filled + "─" * (width - filled)
