"""Histograms of the report, laid over one another in the same buckets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from components.report_charts import (
    BOTTOM,
    TOP,
    Frame,
    drawing,
    horizontal_axis,
    vertical_axis,
    widened,
)
from components.report_statistics import Bucket
from components.report_text import Html, join, number, share, tag

MOST_BUCKETS = 60
"""Of the coarsest histogram's width; where the splits would need more, 20 wider ones are drawn."""


def draw_histograms(series: Mapping[str, tuple[Sequence[Bucket], int]], *, title: str) -> Html:
    """Draw histograms over one another: the first filled, the others as outlines.

    Args:
        series: name to buckets and rows. Heights are shares of the rows, so that splits of unlike
            size compare; all are drawn in buckets of the same edges.
        title: what is shown.
    """
    every = [edge for buckets, _ in series.values() for one in buckets for edge in one[:2]]
    if not math.isfinite(max(every) - min(every)):
        return tag("p", "The values lie too far apart to be drawn.", class_="quiet")
    if max(every) == min(every):
        return tag("p", f"Every value is {number(every[0])}.", class_="quiet")
    edges = common_edges([buckets for buckets, _ in series.values()])
    drawn = {name: (rebinned(buckets, edges), rows) for name, (buckets, rows) in series.items()}
    heights = [
        [count / rows if rows else 0.0 for _, _, count in buckets]
        for buckets, rows in drawn.values()
    ]
    top = max((height for one in heights for height in one), default=0.0)
    frame = Frame(440, 220, (edges[0], edges[-1]), (0.0, top * 1.05 or 1.0))
    shapes = [
        (_outline if at else _bars)(frame, buckets, heights[at], at=at)
        for at, (buckets, _) in enumerate(drawn.values())
    ]
    hints = [
        f"{number(low, digits=4)} to {number(high, digits=4)}: "
        + ", ".join(
            f"{name} {share(buckets[at][2], rows)}" for name, (buckets, rows) in drawn.items()
        )
        for at, (low, high) in enumerate(itertools.pairwise(edges))
    ]
    first = next(iter(drawn.values()))[0]
    parts = [vertical_axis(frame, as_share=True), horizontal_axis(frame, ""), *shapes]
    return drawing(
        frame, *parts, _targets(frame, first, hints), title=title,
        description=f"Shares of rows. {'; '.join(hints)}.",
    )  # fmt: skip


def common_edges(histograms: Sequence[Sequence[Bucket]]) -> list[float]:
    """Return the edges of the coarsest histogram, with more of the same width to hold the others.

    So the coarsest one is drawn as it was counted, and the finer ones are summed up into it.
    """
    low = min(one[0] for buckets in histograms for one in buckets)
    high = max(one[1] for buckets in histograms for one in buckets)
    coarsest = max(histograms, key=lambda buckets: max(one[1] - one[0] for one in buckets))
    width = max(one[1] - one[0] for one in coarsest)
    if width <= 0:
        return list(widened(low, high))
    if (high - low) / width > MOST_BUCKETS:  # splits that lie far apart
        return [low + (high - low) * at / 20 for at in range(20)] + [high]
    before = math.ceil((coarsest[0][0] - low) / width - 1e-6)
    after = math.ceil((high - coarsest[-1][1]) / width - 1e-6)
    own = [coarsest[0][0], *(one[1] for one in coarsest)]
    return [
        *(own[0] - width * at for at in range(before, 0, -1)),
        *own,
        *(own[-1] + width * at for at in range(1, after + 1)),
    ]


def rebinned(buckets: Sequence[Bucket], edges: Sequence[float]) -> list[Bucket]:
    """Return the histogram in other edges; a bucket that an edge cuts is shared out by length."""
    return [
        (low, high, sum(count * _overlap(bucket, low, high, last=high == edges[-1])
                        for bucket in buckets if (count := bucket[2])))
        for low, high in itertools.pairwise(edges)
    ]  # fmt: skip


def _overlap(bucket: Bucket, low: float, high: float, *, last: bool) -> float:
    """Return which share of the bucket lies between low and high."""
    left, right, _ = bucket
    if right <= left:
        return float(low <= left < high or (last and left == high))
    return max(min(right, high) - max(left, low), 0.0) / (right - left)


def _edges(frame: Frame, bucket: Bucket) -> tuple[float, float]:
    return frame.across(bucket[0]), frame.across(bucket[1])


def _bars(frame: Frame, buckets: Sequence[Bucket], heights: Sequence[float], *, at: int) -> Html:
    floor = frame.up(0)
    path = ""
    for bucket, height in zip(buckets, heights, strict=True):
        left, right = _edges(frame, bucket)
        gap = 0.5 if right - left > 4 else 0
        path += (
            f"M{left + gap:.1f} {floor:.1f}V{frame.up(height):.1f}H{right - gap:.1f}V{floor:.1f}Z"
        )
    return tag("path", d=path, class_=f"fill series-{at}")


def _outline(frame: Frame, buckets: Sequence[Bucket], heights: Sequence[float], *, at: int) -> Html:
    floor = frame.up(0)
    path = ""
    for bucket, height in zip(buckets, heights, strict=True):
        left, right = _edges(frame, bucket)
        path += f"{'L' if path else f'M{left:.1f} {floor:.1f}L'}{left:.1f} {frame.up(height):.1f}"
        path += f"H{right:.1f}"
    return tag("path", d=f"{path}V{floor:.1f}" if path else "", class_=f"line series-{at}")


def _targets(frame: Frame, buckets: Sequence[Bucket], hints: Sequence[str]) -> Html:
    """Return invisible areas whose hint the mouse shows."""
    areas = []
    for bucket, hint in zip(buckets, hints, strict=True):
        left, right = _edges(frame, bucket)
        areas.append(tag(
            "rect", tag("title", hint), x=f"{left:.1f}", y=TOP, width=f"{right - left:.1f}",
            height=frame.height - TOP - BOTTOM, class_="target",
        ))  # fmt: skip
    return join(areas)
