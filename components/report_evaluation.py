"""The report's evaluation section: confusion, calibration, thresholds, residuals and slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.report_charts import Frame, curves, drawing
from components.report_columns import legend
from components.report_histograms import draw_histograms
from components.report_text import (
    ABSENT,
    Html,
    join,
    metric,
    number,
    share,
    tag,
    to_float,
    value_text,
)
from components.report_training import metric_name

MOST_DRAWN = 20
"""Classes of the confusion matrix that are drawn; more are only in the table."""
SHOWN_SLICE_METRICS = 4
CELL, MARGIN = 34, 96

Row = Mapping[str, Any]


def evaluation_section(evaluation: Mapping[str, Any]) -> Html | None:
    """Return what the eval split shows beside the metrics; None when that is nothing.

    Args:
        evaluation: content of `evaluation.json`, empty when nothing was evaluated.
    """
    drawn = [draw(evaluation[name]) for name, draw in _FIGURES.items() if evaluation.get(name)]
    table = _slices(evaluation.get("slices") or ())
    if not drawn and table is None:
        return None
    return tag(
        "section",
        tag("h2", "Evaluation"),
        tag("div", *drawn, class_="figures") if drawn else None,
        table,
        id="evaluation", aria_label="Evaluation",
    )  # fmt: skip


def _figure(title: str, chart: Html | None, table: Html, key: Html | None = None) -> Html:
    details = tag(
        "details", tag("summary", "As a table"), tag("div", table, class_="scroll tall"),
        class_="as-table",
    )  # fmt: skip
    return tag("figure", tag("figcaption", tag("h3", title), key), chart, details)


def _table(title: str, head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Html:
    header = tag("tr", *(tag("th", one, scope="col") for one in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", one) for one in row[1:]))
        for row in rows
    ]
    caption = tag("caption", title, class_="unseen")
    return tag("table", caption, tag("thead", header), tag("tbody", *body))


def _confusion(found: Mapping[str, Any]) -> Html:
    classes, rows = found["classes"], found["rows"]
    title = "Confusion: true class by predicted class"
    names = [value_text(one) for one in classes]
    table = _table(
        title,
        ["true class", *names],
        [[name, *map(number, row)] for name, row in zip(names, rows, strict=True)],
    )
    chart = _heat(classes, rows, title) if len(classes) <= MOST_DRAWN else None
    return _figure(title, chart, table)


def _heat(classes: Sequence[str], rows: Sequence[Sequence[int]], title: str) -> Html:
    """Draw the matrix; a cell is the darker the greater its share of the true class."""
    size = MARGIN + CELL * len(classes)
    cells = []
    for down, row in enumerate(rows):
        whole = sum(row)
        y = CELL * down + 8
        label = tag("text", _short(classes[down]), x=MARGIN - 8, y=y + CELL / 2,
                    class_="tick at-left")  # fmt: skip
        cells.append(label)
        for across, count in enumerate(row):
            hint = f"{classes[down]} taken for {classes[across]}: {count} of {whole}"
            x, part = MARGIN + CELL * across, count / whole if whole else 0.0
            cells += [
                tag("rect", tag("title", hint), x=x, y=y, width=CELL - 2, height=CELL - 2,
                    class_="fill series-0", fill_opacity=f"{0.06 + 0.7 * part:.2f}"),
                tag("text", number(count), x=x + CELL / 2 - 1, y=y + CELL / 2 + 4, class_="tick")
                if len(classes) <= 10 else None,
            ]  # fmt: skip
    below = [
        tag("text", _short(name), x=MARGIN + CELL * at + CELL / 2, y=size - MARGIN + 24,
            class_="tick")
        for at, name in enumerate(classes) if len(classes) <= 10
    ]  # fmt: skip
    # Never narrower than the other charts: the page would blow its texts up.
    frame = Frame(max(size, 480), size - MARGIN + 34, (0, 1), (0, 1))
    right = sum(row[at] for at, row in enumerate(rows))
    whole = sum(map(sum, rows))
    said = (
        f"{right} of {whole} rows lie on the diagonal, where the predicted class is the true one."
    )
    return drawing(frame, *cells, *below, title=title, description=said)


def _short(text: str) -> str:
    return text if len(text) <= 12 else text[:11] + "…"


def _calibration(bins: Sequence[Row]) -> Html:
    title = "Calibration: share that is right, by confidence"
    points = [(one["confidence"], one["share"]) for one in bins]
    series = {"model": points, "as sure as right": [(0.0, 0.0), (1.0, 1.0)]}
    rows = [
        [f"{one['from']:g} to {one['to']:g}", number(one["rows"]), metric(one["confidence"]),
         metric(one["share"])]
        for one in bins
    ]  # fmt: skip
    table = _table(title, ["confidence", "rows", "mean confidence", "share right"], rows)
    chart = curves(series, title=title, x_label="confidence")
    return _figure(title, chart, table, legend(list(series)))


def _thresholds(found: Sequence[Row]) -> Html:
    names = [name for name in found[0] if name != "threshold"]
    title = "Thresholds: what comes of acting above each"
    drawn = [name for name in ("precision", "recall", "accuracy", "share") if name in names][:3]
    series = {
        name: [(one["threshold"], one[name]) for one in found if one[name] is not None]
        for name in drawn
    }
    rows = [[f"{one['threshold']:g}", *(metric(one[name]) for name in names)] for one in found]
    head = ["threshold", *(name.replace("_", " ") for name in names)]
    chart = curves(series, title=title, x_label="threshold")
    return _figure(title, chart, _table(title, head, rows), legend(drawn))


def _roc(points: Sequence[Sequence[float]]) -> Html:
    title = "ROC: true positives by false positives"
    series = {"model": [(x, y) for x, y in points], "by chance": [(0.0, 0.0), (1.0, 1.0)]}
    every = max(1, len(points) // 20)
    rows = [[metric(x), metric(y)] for x, y in [*points[::every], points[-1]]]
    table = _table(title, ["false positive rate", "true positive rate"], rows)
    chart = curves(series, title=title, x_label="false positive rate")
    return _figure(title, chart, table, legend(list(series)))


def _residuals(found: Mapping[str, Any]) -> Html:
    title = "Residuals: label less prediction"
    buckets = [(low, high, float(rows)) for low, high, rows in found["histogram"]]
    whole = int(sum(one[2] for one in buckets))
    chart = draw_histograms({"eval": (buckets, whole)}, title=title)
    rows = [[f"{float(part):.0%}", metric(value)] for part, value in found["quantiles"].items()]
    first = _figure(title, chart, _table(title, ["rows below", "residual"], rows))
    by = found["by_prediction"]
    title = "Residuals by prediction"
    series = {
        "mean": [((one["from"] + one["to"]) / 2, one["mean"]) for one in by],
        "mean size": [((one["from"] + one["to"]) / 2, one["mean_size"]) for one in by],
    }
    rows = [
        [f"{one['from']:.4g} to {one['to']:.4g}", number(one["rows"]), metric(one["mean"]),
         metric(one["mean_size"])]
        for one in by
    ]  # fmt: skip
    table = _table(title, ["prediction", "rows", "mean residual", "mean size"], rows)
    chart = curves(series, title=title, x_label="prediction")
    return join([first, _figure(title, chart, table, legend(list(series)))])


_FIGURES: dict[str, Callable[[Any], Html]] = {
    "confusion": _confusion,
    "calibration": _calibration,
    "thresholds": _thresholds,
    "roc": _roc,
    "residuals": _residuals,
}


def _slices(found: Sequence[Row]) -> Html | None:
    if not found:
        return None
    names = list(found[0]["metrics"])[:SHOWN_SLICE_METRICS]
    whole = {name: sum(one["rows"] for one in found if one["column"] == name)
             for name in dict.fromkeys(one["column"] for one in found)}  # fmt: skip
    rows = [
        [
            join([value_text(one["column"]), " ", tag("b", value_text(one["value"]))]),
            join([number(one["rows"]), " ",
                  tag("span", share(one["rows"], whole[one["column"]]), class_="share")]),
            *(_with_interval(one, name) for name in names),
        ]
        for one in found
    ]  # fmt: skip
    head = ["Slice", "Rows", *map(metric_name, names)]
    return join([
        tag("h3", "Slices"),
        tag("p", "Metrics of the eval rows that hold one value of a column; in brackets what 95 % "
            "of the bootstrap's draws lie between.", class_="quiet"),
        tag("div", _table("Metrics by slice", head, rows), class_="scroll tall"),
    ])  # fmt: skip


def _with_interval(one: Row, name: str) -> Any:
    value = to_float(one["metrics"].get(name))
    bounds = (one.get("intervals") or {}).get(name)
    if value is None:
        return ABSENT
    return join([metric(value), " ", interval(bounds)])


def interval(bounds: Sequence[float] | None) -> Html | None:
    """Return an interval in brackets; None where there is none."""
    if not bounds:
        return None
    return tag("span", f"[{metric(bounds[0])}, {metric(bounds[1])}]", class_="share")
