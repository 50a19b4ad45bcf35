"""One offline HTML page about a run: anomalies, columns by split, training, metrics, settings.

Reads the artifacts' files and the journal's events; imports neither TFX nor TensorFlow. The page
holds its own style and script, allowed by their hashes, and may load nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from components.report_columns import anchor, column_body, columns_section, legend
from components.report_drift import drift_section
from components.report_evaluation import evaluation_section
from components.report_statistics import Column, read_columns, read_schema
from components.report_text import (
    Html,
    flatten,
    join,
    number,
    seconds_text,
    share,
    tag,
    to_float,
    value_text,
    without_secrets,
)
from components.report_training import metrics_section, training_section

STATUSES = {
    "succeeded": ("Succeeded", "good"),
    "rejected": ("Data refused", "stop"),
    "failed": ("Failed", "stop"),
    "interrupted": ("Interrupted", "warn"),
}
IN_THE_HEADER = frozenset({"status", "run_id", "seconds", "examples", "error", "settings"})


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    statistics: Mapping[str, str | Path],
    anomalies: Sequence[Mapping[str, Any]],
    schema: str | Path | None,
    drift: Mapping[str, Any] | None = None,
    label: str,
    ignored: Sequence[str],
    history: Iterable[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    baseline: Mapping[str, Any],
    facts: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
) -> None:
    """Write the report of a run, whole or not at all.

    Args:
        path: the file; an older one is replaced when the new one is complete.
        title: the page's heading, such as the pipeline's name.
        statistics: split to its FeatureStats.pb, in the order in which they are shown; the first
            is the one that others are compared with. A file that cannot be read is named.
        anomalies: what the data gate found, with the fields of the journal's `anomaly` event.
        schema: the schema.pbtxt, None when there is none yet.
        drift: what the gate says of drift and skew (`baseline.Comparison.facts`).
        label: the name of the label's column, "" when there is none.
        ignored: columns that are no features.
        history: events of the journal; the `train_step` and `evaluation` ones are drawn.
        metrics: of the eval split, empty when nothing was evaluated; a value may be None or the
            journal's "nan".
        baseline: the trivial baseline's metrics, by the same names.
        facts: `status`, `run_id`, `seconds`, `examples` (rows by split), `error` (one line) and
            `settings` (nested) have their places; every other entry is listed as it is.
            Passwords in them are blotted out.
        evaluation: content of the Evaluator's `evaluation.json`, whose intervals, figures and
            slices are drawn; None when nothing was evaluated.

    Raises:
        OSError: when the file cannot be written; the older one is then untouched.
    """
    columns, rows, unread = read_columns(statistics)
    sections = {
        "Anomalies": _anomalies_section(anomalies, columns, unread),
        "Drift": drift_section(drift or {}, {one.name: anchor(one) for one in columns}),
        "Label": _label_section(columns, label),
        "Training": training_section(list(history)),
        "Metrics": metrics_section(metrics, baseline, evaluation or {}),
        "Evaluation": evaluation_section(evaluation or {}),
        "Columns": columns_section(
            columns, anomalies=anomalies, expectations=read_schema(schema), label=label,
            ignored=ignored,
        ),
        "Settings": _facts_section("Settings", facts.get("settings") or {}),
        "Facts": _facts_section("Facts", _other_facts(facts)),
    }  # fmt: skip
    there = {name: section for name, section in sections.items() if section}
    body = join([
        tag("a", "Skip to the report", href="#main", class_="skip"),
        _header(title, facts, rows),
        _navigation(list(there)),
        tag("main", *there.values(), id="main", tabindex=-1),
    ])
    _replace(Path(path), _page(title, body))


def _page(title: str, body: Html) -> str:
    files = resources.files("components")
    style = (files / "report.css").read_text(encoding="utf-8")
    script = (files / "report.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; "
        f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}: report"),
        # Without it a browser asks the server for /favicon.ico.
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style)),
    )
    content = tag("body", body, tag("script", Html(script)))
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # mkstemp makes files that only their owner reads; a report is for everyone.
            os.fchmod(file.fileno(), 0o644)
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _header(title: str, facts: Mapping[str, Any], rows: Mapping[str, int]) -> Html:
    words, tone = STATUSES.get(str(facts.get("status")), (facts.get("status"), "quiet"))
    status = tag("span", words, class_=f"chip {tone}") if words else None
    error = facts.get("error")
    return tag(
        "header",
        tag("p", "Data and training report", class_="eyebrow"),
        tag("h1", value_text(title), " ", status),
        tag("dl", *_header_facts(facts, facts.get("examples") or rows), class_="tiles"),
        tag("p", without_secrets(str(error)), class_="note stop") if error else None,
    )


def _navigation(names: Sequence[str]) -> Html:
    links = [tag("li", tag("a", name, href=f"#{name.lower()}")) for name in names]
    toggle = tag("button", "Dark colours", id="theme", type="button", hidden=True)
    return tag("nav", tag("ul", *links), toggle, aria_label="Sections")


def _header_facts(facts: Mapping[str, Any], rows: Mapping[str, Any]) -> list[Html]:
    total = sum(to_float(one) or 0 for one in rows.values())
    entries = [
        (f"{split} rows", join([number(to_float(count)), " ",
                                tag("span", share(to_float(count) or 0, total), class_="share")]))
        for split, count in rows.items()
    ]  # fmt: skip
    seconds = to_float(facts.get("seconds"))
    if seconds is not None:
        entries.append(("Time", seconds_text(seconds)))
    if facts.get("run_id"):
        entries.append(("Run", str(facts["run_id"])))
    return [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries]


def _anomalies_section(
    anomalies: Sequence[Mapping[str, Any]], columns: Sequence[Column], unread: Sequence[str]
) -> Html:
    anchors = {column.name: anchor(column) for column in columns}
    ordered = sorted(anomalies, key=lambda one: one.get("severity") != "stop")
    cards = [_anomaly(one, anchors.get(str(one.get("feature")))) for one in ordered]
    stops = sum(one.get("severity") == "stop" for one in anomalies)
    lead = f"{stops} stopped the run, {len(cards) - stops} only warned." if cards else (
        "None was found. The data is what the schema asks for." if columns else "None was found."
    )  # fmt: skip
    heading = tag("h2", "Anomalies", tag("span", str(len(cards)), class_="count"))
    notes = [tag("p", text, class_="note warn") for text in unread]
    return tag(
        "section", heading, tag("p", lead, class_="lead"), *notes,
        tag("ol", *cards, class_="anomalies") if cards else None,
        id="anomalies", aria_label="Anomalies",
    )  # fmt: skip


def _anomaly(one: Mapping[str, Any], target: str | None) -> Html:
    stops = one.get("severity") == "stop"
    name = value_text(str(one.get("feature") or "whole data set"))
    places = [str(place) for place in one.get("where") or ()]
    affected = to_float(one.get("rows")) or 0.0
    rows: list[tuple[str, Any]] = [("Kind", tag("code", str(one.get("kind", ""))))]
    if one.get("split"):
        rows.append(("Split", str(one["split"])))
    if one.get("rows") is not None:
        rows.append(("Rows", number(affected)))
    if places:
        more = f" and {number(affected - len(places))} more" if affected > len(places) else ""
        rows.append(("Where", join([
            *(join([tag("code", place, class_="place"), " "]) for place in places), more,
        ])))  # fmt: skip
    if one.get("what_to_do"):
        rows.append(("What to do", tag("b", str(one["what_to_do"]))))
    return tag(
        "li",
        tag("h3", tag("a", name, href=f"#{target}") if target else name, " ",
            tag("span", "stops the run" if stops else "warning",
                class_=f"chip {'stop' if stops else 'warn'}")),
        tag("p", str(one.get("message", ""))),
        tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in rows)),
        class_="stop" if stops else "warn",
    )  # fmt: skip


def _label_section(columns: Sequence[Column], label: str) -> Html | None:
    found = next((column for column in columns if label and column.name == label), None)
    if found is None:
        return None
    return tag(
        "section", tag("h2", "Label: ", value_text(label)), legend(list(found.splits)),
        column_body(found), id="label", aria_label="Label",
    )  # fmt: skip


def _other_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in IN_THE_HEADER}


def _facts_section(heading: str, values: Mapping[str, Any]) -> Html | None:
    if not values:
        return None
    rows = [
        tag("tr", tag("th", key, scope="row"), tag("td", tag("bdi", text)))
        for key, text in flatten(values)
    ]
    table = tag("table", tag("caption", heading, class_="unseen"), tag("tbody", *rows))
    return tag(
        "section", tag("h2", heading), tag("div", table, class_="scroll"),
        id=heading.lower(), class_="facts", aria_label=heading,
    )  # fmt: skip
