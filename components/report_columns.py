"""The report's data section: a column a block, its splits side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components import report_charts
from components.report_histograms import draw_histograms
from components.report_statistics import Column, SplitColumn
from components.report_text import ABSENT, Html, join, number, share, tag, value_text

SHOWN_VALUES = 10
STATISTICS: tuple[tuple[str, Callable[[SplitColumn], float | None]], ...] = (
    ("Mean", lambda one: one.mean),
    ("Standard deviation", lambda one: one.std_dev),
    ("Minimum", lambda one: one.minimum),
    ("Median", lambda one: one.median),
    ("Maximum", lambda one: one.maximum),
    ("Unique values", lambda one: one.unique),
    ("Average length", lambda one: one.average_length),
)


def columns_section(
    columns: Sequence[Column],
    *,
    anomalies: Sequence[Mapping[str, Any]],
    expectations: Mapping[str, str],
    label: str,
    ignored: Sequence[str],
) -> Html:
    """Return the section of all columns, closed, with controls to find and sort them.

    The controls show only where scripts run; without them the blocks are in the files' order.
    """
    blocks = [
        _block(
            column,
            problems=[one for one in anomalies if one.get("feature") == column.name],
            expectation=expectations.get(column.name, ""),
            role="label" if column.name == label else "ignored" if column.name in ignored else "",
        )
        for column in columns
    ]
    count = f"{len(columns)} column{'' if len(columns) == 1 else 's'}"
    heading = tag("h2", "Columns", tag("span", count, class_="count", id="count", role="status"))
    if not blocks:
        nothing = tag("p", "No statistics were computed in this run.", class_="quiet")
        return tag("section", heading, nothing, id="columns", aria_label="Columns")
    listed = tag("div", *blocks, id="column-list")
    none = tag("p", "No column matches.", id="none", class_="quiet", hidden=True)
    return tag(
        "section", heading, _controls(), legend(_splits(columns)), listed, none,
        id="columns", aria_label="Columns",
    )  # fmt: skip


def _splits(columns: Sequence[Column]) -> list[str]:
    return list(dict.fromkeys(split for column in columns for split in column.splits))


def legend(names: Sequence[str]) -> Html:
    """Return the key from colours to names."""
    entries = [
        tag("li", tag("span", class_=f"swatch series-{at}", aria_hidden="true"), name)
        for at, name in enumerate(names)
    ]
    return tag("ul", *entries, class_="legend")


def _controls() -> Html:
    orders = (
        ("file", "order in the files"), ("problem", "problems first"), ("name", "name"),
        ("missing", "most missing"), ("difference", "greatest difference of splits"),
    )  # fmt: skip
    options = [tag("option", text, value=value) for value, text in orders]
    search = tag("input", id="search", type="search", autocomplete="off", spellcheck="false",
                 placeholder="part of a name")  # fmt: skip
    only = tag("input", id="only", type="checkbox")
    return tag(
        "div",
        tag("div", tag("label", "Find a column", for_="search"), search, class_="field"),
        tag("div", tag("label", "Sort by", for_="sort"), tag("select", *options, id="sort"),
            class_="field"),
        tag("label", only, "only with anomalies", class_="check"),
        tag("button", "Open all", id="open-all", type="button"),
        tag("button", "Close all", id="close-all", type="button"),
        class_="controls", role="search", id="controls", hidden=True,
    )  # fmt: skip


def anchor(column: Column) -> str:
    """Return the id of a column's block: made of its position, since names can hold anything."""
    return f"column-{column.position}"


def _block(
    column: Column, *, problems: Sequence[Mapping[str, Any]], expectation: str, role: str
) -> Html:
    weight = sum(2 if one.get("severity") == "stop" else 1 for one in problems)
    chips = [tag("span", role, class_="chip")] if role else []
    if problems:
        tone = "stop" if any(one.get("severity") == "stop" for one in problems) else "warn"
        many = f"{len(problems)} anomal{'y' if len(problems) == 1 else 'ies'}"
        chips.append(tag("span", many, class_=f"chip {tone}"))
    summary = tag(
        "summary",
        tag("h3", value_text(column.name)),
        tag("span", *chips, class_="chips"),
        tag("span", column.kind, class_="kind"),
        _missing_at_a_glance(column),
        _spark(column),
    )
    return tag(
        "details", summary, column_body(column, expectation=expectation, problems=problems),
        class_="column", id=anchor(column), data_name=column.name.lower(), data_problem=weight,
        data_file=column.position, data_missing=f"{column.missing_share:.6g}",
        data_difference=f"{column.difference[0]:.6g}",
    )  # fmt: skip


def _missing_at_a_glance(column: Column) -> Html:
    if not any(one.missing for one in column.splits.values()):
        return tag("span", "none missing", class_="gaps quiet")
    shares = [share(one.missing, one.rows) for one in column.splits.values()]
    return tag("span", "missing ", tag("b", " · ".join(shares)), class_="gaps")


def _spark(column: Column) -> Html:
    first = next(iter(column.splits.values()))
    counts = class_counts(first)
    if counts or not first.buckets:
        return report_charts.spark(list(counts.values())[:12])
    return report_charts.spark(first.buckets)


def column_body(
    column: Column, *, expectation: str = "", problems: Sequence[Mapping[str, Any]] = ()
) -> Html:
    """Return what stands under a column's name: numbers, distribution, comparison of splits."""
    notes = [
        tag("p", tag("b", str(one.get("kind", ""))), " ", str(one.get("message", "")),
            class_=f"note {'stop' if one.get('severity') == 'stop' else 'warn'}")
        for one in problems
    ]  # fmt: skip
    if expectation:
        notes.append(tag("p", "The schema asks for: ", expectation, ".", class_="quiet"))
    _, compared = column.difference
    if compared:
        first, second = list(column.splits)[:2]
        notes.append(tag("p", f"{second} against {first}: ", compared, ".", class_="quiet"))
    return tag(
        "div", *notes,
        tag("div", _numbers(column), _distribution(column), class_="pair"),
        class_="body",
    )  # fmt: skip


def _numbers(column: Column) -> Html:
    splits = column.splits.values()
    rows = [
        ("Rows", [number(one.rows) for one in splits]),
        ("With a value", [number(one.present) for one in splits]),
        ("Missing", [_with_share(one.missing, one.rows) for one in splits]),
    ]
    if any(one.zeros is not None for one in splits):
        rows.append(("Zeros", [_with_share(one.zeros, one.rows) for one in splits]))
    for name, read in STATISTICS:
        values = [read(one) for one in splits]
        if any(value is not None for value in values):
            rows.append((name, [Html(number(value)) for value in values]))
    head = tag("tr", tag("td"), *(tag("th", name, scope="col") for name in column.splits))
    body = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", text) for text in texts))
        for name, texts in rows
    ]
    caption = tag("caption", "Numbers of ", value_text(column.name), class_="unseen")
    table = tag("table", caption, tag("thead", head), tag("tbody", *body), class_="numbers")
    return tag("div", table, class_="scroll")


def _with_share(part: int | None, whole: int) -> Html:
    if part is None:
        return Html(ABSENT)
    return join([number(part), " ", tag("span", share(part, whole), class_="share")])


def class_counts(one: SplitColumn) -> Mapping[str, float]:
    """Return value to rows, most frequent first; a whole number that is 0 or 1 has them too."""
    is_flag = one.kind == "whole number" and one.minimum is not None and one.maximum is not None
    if is_flag and one.minimum >= 0 and one.maximum <= 1:  # pyright: ignore
        zeros = one.zeros or 0
        return {"0": zeros, "1": one.present - zeros}
    return one.counts


def _distribution(column: Column) -> Html:
    counts = {name: class_counts(one) for name, one in column.splits.items()}
    if any(counts.values()):
        return _top_values(column, counts)
    series = {name: (one.buckets, one.rows) for name, one in column.splits.items() if one.buckets}
    if not series:
        return tag("p", "No value to draw.", class_="quiet")
    return tag("div", draw_histograms(series, title=f"Histogram of {column.name}"))


def _top_values(column: Column, counts: Mapping[str, Mapping[str, float]]) -> Html:
    shown = _shown_values(counts)
    head = tag(
        "tr", tag("th", "Value", scope="col"),
        *(tag("th", f"{name}, rows", scope="col", colspan=2) for name in column.splits),
    )  # fmt: skip
    rows = [_value_row(value, column, counts) for value in shown]
    rest = [
        round(one.present - sum(counts[name].get(value, 0) for value in shown))
        for name, one in column.splits.items()
    ]
    if any(left > 0 for left in rest):
        cells = [
            _count_cells(max(left, 0), one.rows, at=at)
            for at, (left, one) in enumerate(zip(rest, column.splits.values(), strict=True))
        ]
        other = tag("th", tag("em", "all others", class_="quiet"), scope="row")
        rows.append(tag("tr", other, *cells))
    caption = tag("caption", "Values of ", value_text(column.name), class_="unseen")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="values")
    return tag("div", table, class_="scroll")


def _shown_values(counts: Mapping[str, Mapping[str, float]]) -> list[str]:
    lists = [list(one) for one in counts.values()]
    first = lists[0][:SHOWN_VALUES]
    later = [value for one in lists[1:] for value in one[:SHOWN_VALUES] if value not in first]
    return list(dict.fromkeys([*first, *later[: SHOWN_VALUES // 2]]))


def _value_row(value: str, column: Column, counts: Mapping[str, Mapping[str, float]]) -> Html:
    cells = []
    for at, (name, one) in enumerate(column.splits.items()):
        count = counts[name].get(value)
        if count is None and not (one.all_counted or counts[name] is not one.counts):
            cells.append(tag("td", "not counted", class_="quiet", colspan=2))
            continue
        cells.append(_count_cells(count or 0, one.rows, at=at))
    return tag("tr", tag("th", value_text(value), scope="row"), *cells)


def _count_cells(count: float, rows: int, *, at: int) -> Html:
    shown = join([number(round(count)), " ", tag("span", share(count, rows), class_="share")])
    return join([
        tag("td", shown),
        tag("td", report_charts.bar(count, rows, at=at), class_="drawn"),
    ])  # fmt: skip
