"""The report's section on drift and skew: how far each column moved, the farthest first.

The distributions themselves lie over each other under each column, the baseline's as one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.report_charts import bar
from components.report_text import Html, number, tag, value_text

AGAINST = {"DRIFT": "the baseline", "LABEL_SHIFT": "the baseline", "SKEW": "train, of eval"}


def drift_section(drift: Mapping[str, Any], anchors: Mapping[str, str]) -> Html | None:
    """Return the section; None where nothing was compared or said.

    Args:
        drift: baseline, said and distances, as the gate wrote them.
        anchors: column to the id of its block.
    """
    found = sorted(drift.get("distances") or (), key=_urgency, reverse=True)
    said = [str(one) for one in drift.get("said") or ()]
    if not (found or said):
        return None
    beyond = sum(bool(one["is_beyond"]) for one in found)
    heading = tag("h2", "Drift", tag("span", str(beyond), class_="count"))
    run = drift.get("baseline")
    lead = (
        f"The baseline is the train split of run {run}, the last data that passed. " if run else ""
    )
    lead += f"{beyond} of {len(found)} distances are above their threshold."
    return tag(
        "section", heading, tag("p", lead, class_="lead"),
        *(tag("p", one, class_="note warn") for one in said),
        tag("div", _table(found, anchors), class_="scroll") if found else None,
        id="drift", aria_label="Drift",
    )  # fmt: skip


def _urgency(one: Mapping[str, Any]) -> tuple[bool, float]:
    return bool(one["is_beyond"]), one["distance"] / max(one["threshold"], 1e-9)


def _table(found: list[Mapping[str, Any]], anchors: Mapping[str, str]) -> Html:
    names = ("Column", "Against", "Measure", "Distance", "Threshold", "What moved most")
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    rows = [_row(one, anchors.get(str(one["feature"]))) for one in found]
    caption = tag("caption", "Distances of columns", class_="unseen")
    return tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="numbers")


def _row(one: Mapping[str, Any], target: str | None) -> Html:
    name = value_text(str(one["feature"]))
    chip = tag("span", "above", class_="chip stop") if one["is_beyond"] else ""
    return tag(
        "tr",
        tag("th", tag("a", name, href=f"#{target}") if target else name, scope="row"),
        tag("td", AGAINST.get(str(one["kind"]), "")),
        tag("td", str(one["measure"])),
        tag("td", number(float(one["distance"]), digits=3), " ", chip,
            bar(float(one["distance"]), 1.0, at=1 if one["is_beyond"] else 0)),
        tag("td", number(float(one["threshold"]), digits=3)),
        tag("td", str(one["said"])),
    )  # fmt: skip
