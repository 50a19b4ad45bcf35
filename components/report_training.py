"""The report's training section: curves over the steps, metrics beside the trivial baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from components.report_charts import curves
from components.report_columns import legend
from components.report_text import ABSENT, Html, join, metric, number, tag, to_float

LOWER_IS_BETTER = frozenset({
    "loss", "calibration_error", "rmse", "mae", "bits_per_byte", "perplexity",
})  # fmt: skip
HIGHER_IS_BETTER = frozenset({"auc", "average_precision", "accuracy", "r2"})
NAMES = {"auc": "AUC", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}
NOT_METRICS = frozenset({"event", "time", "step", "epoch"})
SHOWN_ROWS = 100


def metric_name(name: str) -> str:
    """Return a metric's name as people write it."""
    return NAMES.get(name, name.replace("_", " ").capitalize())


def is_better(name: str, value: float | None, other: float | None) -> bool | None:
    """Return whether a metric is better than another; None where that cannot be said."""
    if value is None or other is None or not (math.isfinite(value) and math.isfinite(other)):
        return None
    if value == other or name not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        return None
    return (value < other) == (name in LOWER_IS_BETTER)


def metrics_section(
    metrics: Mapping[str, Any], baseline: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> Html | None:
    """Return the table of metrics on the eval split, None when nothing was evaluated.

    Args:
        metrics: by name.
        baseline: by the same names.
        evaluation: whose ``intervals`` stand beside the metrics, and whose ``reason`` says why the
            model was pushed or not.
    """
    if not metrics:
        return None
    bounds = evaluation.get("intervals") or {}
    heads = ["Metric", "Model", "Baseline", "Difference", "The model is"]
    if bounds:
        heads.insert(2, "95 % interval")
    head = tag("tr", *(tag("th", name, scope="col") for name in heads))
    names = dict.fromkeys([*metrics, *baseline])
    rows = [
        _metric_row(
            name,
            metrics.get(name),
            baseline.get(name),
            interval=_interval(bounds.get(name)) if bounds else None,
        )
        for name in names
    ]
    caption = tag("caption", "Metrics on the eval split", class_="unseen")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="metrics")
    return tag(
        "section",
        tag("h2", "Metrics against the baseline"),
        tag("p", _headline(metrics, baseline), class_="lead"),
        _gate(evaluation),
        tag("div", table, class_="scroll"),
        tag("p", "The baseline knows no column: it always answers with the class frequencies, or "
            "the mean, of the train split.",
            " The interval is what 95 % of a bootstrap's draws of the eval rows lie between."
            if bounds else "", class_="quiet"),
        id="metrics", aria_label="Metrics against the baseline",
    )  # fmt: skip


def _gate(evaluation: Mapping[str, Any]) -> Html | None:
    """Return why the model may be pushed, or why not and what to do."""
    if "blessed" not in evaluation:
        return None
    words = "The model may be pushed" if evaluation["blessed"] else "The model is not pushed"
    said = "; ".join(evaluation[name] for name in ("reason", "remedy") if evaluation.get(name))
    return tag("p", f"{words}: {said}.", class_="quiet" if evaluation["blessed"] else "note warn")


def _headline(metrics: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    loss, other = to_float(metrics.get("loss")), to_float(baseline.get("loss"))
    verdict = is_better("loss", loss, other)
    compared = f"loss {metric(loss)} against {metric(other)}"
    if verdict:
        return f"The model beats the trivial baseline: {compared}."
    return f"The model does not beat the trivial baseline: {compared}."


def _interval(bounds: Sequence[float] | None) -> Html:
    return tag("td", f"{metric(bounds[0])} to {metric(bounds[1])}" if bounds else ABSENT)


def _metric_row(name: str, value: Any, other: Any, *, interval: Html | None) -> Html:
    value, other = to_float(value), to_float(other)
    verdict = is_better(name, value, other)
    difference = None
    if value is not None and other is not None and math.isfinite(value - other):
        difference = value - other
    sign = "+" if difference is not None and difference > 0 else ""
    words = {True: "better", False: "worse", None: "equal" if difference == 0 else ""}[verdict]
    direction = "lower is better" if name in LOWER_IS_BETTER else "higher is better"
    hint = direction if name in LOWER_IS_BETTER | HIGHER_IS_BETTER else ""
    return tag(
        "tr",
        tag("th", metric_name(name), " ", tag("span", hint, class_="hint"), scope="row"),
        tag("td", metric(value)),
        interval,
        tag("td", metric(other) if other is not None else ABSENT),
        tag("td", sign + metric(difference) if difference is not None else ABSENT),
        tag("td", tag("span", words, class_=f"verdict {words}")),
    )


def training_section(history: Sequence[Mapping[str, Any]]) -> Html | None:
    """Return the curves of a training, None when nothing was trained.

    Args:
        history: events of the journal; those that are not `train_step` or `evaluation` are passed
            over.
    """
    steps = [one for one in history if one.get("event") == "train_step"]
    evaluations = [one for one in history if one.get("event") == "evaluation"]
    if not steps and not evaluations:
        return None
    losses = {"train": points(steps, "loss"), "eval": points(evaluations, "loss")}
    rates = {"learning rate": points(steps, "learning_rate")}
    figures = [
        _figure("Loss by step", losses, y_name="loss"),
        _figure("Learning rate by step", rates, y_name="learning rate"),
    ]
    return tag(
        "section", tag("h2", "Training"), tag("div", *figures, class_="figures"),
        _evaluations_table(evaluations), id="training", aria_label="Training",
    )  # fmt: skip


def points(events: Sequence[Mapping[str, Any]], field: str) -> list[tuple[float, float]]:
    """Return (step, value) of the events that have the field, in the order of the steps.

    A step that was run twice, since a killed run went on from a checkpoint before it, counts once:
    as it was run last.
    """
    by_step: dict[float, float] = {}
    for event in events:
        step, value = to_float(event.get("step")), to_float(event.get(field))
        if step is not None and value is not None and math.isfinite(step):
            by_step[step] = value
    return sorted(by_step.items())


def _figure(title: str, series: Mapping[str, list[tuple[float, float]]], *, y_name: str) -> Html:
    drawn = {name: values for name, values in series.items() if values}
    if not drawn:
        return join([])
    key = legend(list(series)) if len(series) > 1 else None
    caption = tag("figcaption", tag("h3", title), key)
    chart = curves(series, title=f"{title}: {y_name}", x_label="step")
    return tag("figure", caption, chart, _steps_table(title, drawn))


def _steps_table(title: str, series: Mapping[str, list[tuple[float, float]]]) -> Html:
    steps = sorted({step for values in series.values() for step, _ in values})
    every = max(math.ceil(len(steps) / SHOWN_ROWS), 1)
    kept = [step for at, step in enumerate(steps) if at % every == 0 or at == len(steps) - 1]
    lookup = {name: dict(values) for name, values in series.items()}
    rows = [
        tag("tr", tag("th", number(step), scope="row"),
            *(tag("td", number(lookup[name].get(step))) for name in series))
        for step in kept
    ]  # fmt: skip
    head = tag("tr", *(tag("th", name, scope="col") for name in ("Step", *series)))
    caption = tag("caption", title, class_="unseen")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows))
    return tag(
        "details", tag("summary", "As a table"), tag("div", table, class_="scroll tall"),
        class_="as-table",
    )  # fmt: skip


def _evaluations_table(evaluations: Sequence[Mapping[str, Any]]) -> Html | None:
    if not evaluations:
        return None
    names = [name for name in dict.fromkeys(key for one in evaluations for key in one)
             if name not in NOT_METRICS]  # fmt: skip
    head = tag("tr", *(tag("th", name, scope="col") for name in
                       ("Epoch", "Step", *map(metric_name, names))))  # fmt: skip
    rows = [
        tag("tr", tag("th", number(to_float(one.get("epoch"))), scope="row"),
            tag("td", number(to_float(one.get("step")))),
            *(tag("td", metric(one.get(name))) for name in names))
        for one in evaluations[-SHOWN_ROWS:]
    ]  # fmt: skip
    caption = tag("caption", "Evaluations on the eval split")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows))
    return tag("div", table, class_="scroll tall")
