"""Charts of the report as inline SVG: curves, bars, and the axes that they share.

Each chart has a title and a description that says in words what it shows. Colours come from the
style sheet by class (`series-0`, `series-1`, ...), so that light and dark need no second drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from components.report_statistics import Bucket
from components.report_text import Html, join, number, share, tag

LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 44


@dataclass(frozen=True)
class Frame:
    """The plane of a chart: pixels of the drawing and the values at its edges."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    left: int = LEFT

    def across(self, value: float) -> float:
        """Return the pixel of `value` on the horizontal axis."""
        low, high = self.x
        return self.left + (value - low) / (high - low) * (self.width - self.left - RIGHT)

    def up(self, value: float) -> float:
        """Return the pixel of `value` on the vertical axis."""
        low, high = self.y
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return at most about `count` round numbers from `low` to `high`."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def widened(low: float, high: float) -> tuple[float, float]:
    """Return a range that is not empty around the same middle."""
    if high > low:
        return low, high
    half = abs(low) * 0.05 or 0.5
    return low - half, high + half


def drawing(frame: Frame, *parts: Html, title: str, description: str) -> Html:
    """Return the SVG element, an image with a name and a description for screen readers."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *parts,
        viewBox=f"0 0 {frame.width} {frame.height}",
        class_="chart",
        role="img",
    )


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str
) -> Html:
    """Draw lines through points (x, y); points that are not finite leave a gap."""
    finite = [point for points in series.values() for point in points if math.isfinite(point[1])]
    if not finite:
        return tag("p", "No finite value was recorded.", class_="quiet")
    x = widened(min(at for at, _ in finite), max(at for at, _ in finite))
    low, high = widened(min(value for _, value in finite), max(value for _, value in finite))
    frame = Frame(480, 260, x, (low - (high - low) * 0.06, high + (high - low) * 0.06))
    lines = [_line(frame, points, at=at) for at, points in enumerate(series.values())]
    parts = [vertical_axis(frame), horizontal_axis(frame, x_label), *lines]
    return drawing(frame, *parts, title=title, description=_curve_text(series, x_label))


def _curve_text(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str) -> str:
    texts = []
    for name, points in series.items():
        finite = [point for point in points if math.isfinite(point[1])]
        gaps = len(points) - len(finite)
        if finite:
            (start, first), (end, last) = finite[0], finite[-1]
            lowest = min(finite, key=lambda point: point[1])
            texts.append(
                f"{name}: {number(first, digits=4)} at {x_label} {number(start)}, "
                f"{number(last, digits=4)} at {x_label} {number(end)}, "
                f"lowest {number(lowest[1], digits=4)} at {x_label} {number(lowest[0])}"
            )
        if gaps:
            texts.append(f"{name}: values that were not finite: {gaps}")
    return ". ".join(texts)


def _line(frame: Frame, points: Sequence[tuple[float, float]], *, at: int) -> Html:
    path, pen_is_down = "", False
    dots = []
    for where, value in thinned(points):
        if not math.isfinite(value):
            pen_is_down = False
            continue
        x, y = f"{frame.across(where):.1f}", f"{frame.up(value):.1f}"
        path += f"{'L' if pen_is_down else 'M'}{x} {y}"
        pen_is_down = True
        hint = tag("title", f"{number(where)}: {number(value)}")
        dots.append(tag("circle", hint, cx=x, cy=y, r=3.5, class_=f"dot series-{at}"))
    return join([
        tag("path", d=path, class_=f"line series-{at}"),
        *(dots if len(dots) <= 30 else ()),
    ])


def thinned(
    points: Sequence[tuple[float, float]], most: int = 400
) -> Sequence[tuple[float, float]]:
    """Return at most about `most` points that keep every stretch's lowest, highest and gap."""
    if len(points) <= most:
        return points
    kept: dict[int, None] = {0: None}
    size = math.ceil(len(points) / (most // 3))
    for start in range(0, len(points), size):
        stretch = range(start, min(start + size, len(points)))
        finite = [at for at in stretch if math.isfinite(points[at][1])]
        if finite:
            kept[min(finite, key=lambda at: points[at][1])] = None
            kept[max(finite, key=lambda at: points[at][1])] = None
        kept |= dict.fromkeys([at for at in stretch if at not in set(finite)][:1])
    kept[len(points) - 1] = None
    return [points[at] for at in sorted(kept)]


def vertical_axis(frame: Frame, *, as_share: bool = False) -> Html:
    """Return grid lines and round numbers at the left; shares are written in per cent."""
    parts = []
    for value in ticks(*frame.y, count=6):
        y = f"{frame.up(value):.1f}"
        text = share(value, 1) if as_share else number(value, digits=4)
        parts += [
            tag("line", x1=frame.left, x2=frame.width - RIGHT, y1=y, y2=y, class_="grid"),
            tag("text", text, x=frame.left - 8, y=y, class_="tick at-left"),
        ]
    return tag("g", *parts, aria_hidden="true")


def horizontal_axis(frame: Frame, label: str) -> Html:
    """Return the line below, with round numbers and what they mean."""
    floor = frame.height - BOTTOM
    parts = [tag("line", x1=frame.left, x2=frame.width - RIGHT, y1=floor, y2=floor, class_="axis")]
    for value in ticks(*frame.x, count=7):
        x = f"{frame.across(value):.1f}"
        parts += [
            tag("line", x1=x, x2=x, y1=floor, y2=floor + 5, class_="axis"),
            tag("text", number(value, digits=6), x=x, y=floor + 20, class_="tick"),
        ]
    if label:
        middle = (frame.left + frame.width - RIGHT) / 2
        parts.append(tag("text", label, x=middle, y=frame.height - 6, class_="tick label"))
    return tag("g", *parts, aria_hidden="true")


def bar(part: float, whole: float, *, at: int) -> Html:
    """Return a bar that is filled by part of whole; the number stands beside it as text."""
    filled = f"{min(100 * part / whole, 100):.2f}" if whole > 0 else "0"
    return tag(
        "svg",
        tag("rect", width=100, height=8, class_="track"),
        tag("rect", width=filled, height=8, class_=f"fill series-{at}"),
        viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", aria_hidden="true",
    )  # fmt: skip


def spark(buckets: Sequence[Bucket] | Sequence[float]) -> Html:
    """Return the shape of a histogram, or of the most frequent values, in a line's height."""
    heights = [one[2] if isinstance(one, tuple) else one for one in buckets]
    top = max(heights, default=0)
    if not top:
        return tag("svg", viewBox="0 0 80 20", class_="spark", aria_hidden="true")
    width = 80 / max(len(heights), 5)
    path = "".join(
        f"M{at * width:.1f} 20v-{max(19 * height / top, 0.6 if height else 0):.1f}"
        f"h{width - 1:.1f}V20z"
        for at, height in enumerate(heights)
    )
    shape = tag("path", d=path, class_="fill series-0")
    return tag("svg", shape, viewBox="0 0 80 20", class_="spark", aria_hidden="true")
