"""Why one run is not another: data, schema, settings, code, versions, hardware, plan, metrics.

Each part is a table of what differs, ``{key: {"a": ..., "b": ...}}``, empty where nothing does;
None stands for what a run has not. What the store holds under two names is told once, under the
clearer one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.tracked_runs import TrackedRun

Fetch = Callable[[str], bytes | None]
"""Name of an artifact to its content; None when the run has none."""

Table = dict[str, dict[str, Any]]

_RESOLVED = "resolved."
_STEP_METRICS = {
    "learning_rate", "gradient_norm", "loss_scale", "updates_per_second", "checkpoint_seconds",
    "planned_memory_bytes",
}  # fmt: skip
_LAST_STEP = {"examples_per_second": "mean_examples_per_second", "epoch_loss": "train/loss"}
"""Metrics that another one says better, where a run has it."""

_IN_THE_REPORT = ("interval/", "slice/")
"""Metrics that there are many of; each run's report shows them."""

_SPLITS = ("train", "eval")
_SAME = 1e-9


def between(a: TrackedRun, b: TrackedRun, *, fetch_a: Fetch, fetch_b: Fetch) -> dict[str, Any]:
    """Return what differs, part by part.

    Args:
        a: one run.
        b: the other.
        fetch_a: gives the artifacts ``data.json``, ``schema.pbtxt``, ``plan.json``,
            ``long_values.json`` and ``statistics/<split>.pb`` of `a`.
        fetch_b: gives those of `b`.
    """
    tags = changed(a.tags, b.tags)
    params = changed(_whole(a.params, fetch_a), _whole(b.params, fetch_b))
    settings = {name: one for name, one in params.items() if not name.startswith(_RESOLVED)}
    files = _files(fetch_a("data.json"), fetch_b("data.json"))
    features = _schema(fetch_a("schema.pbtxt"), fetch_b("schema.pbtxt"))
    return {
        # A digest says that something differs; where it is known what does, that is said.
        "data": {**_only(tags, "data."), **(files or _only(tags, "digest.data"))},
        "statistics": _statistics(fetch_a, fetch_b),
        "schema": features or _only(tags, "digest.schema"),
        "settings": settings,
        "code": {**_only(tags, "git."), **_only(tags, "digest.code")},
        "versions": _only(tags, "version."),
        "hardware": _only(tags, "hardware."),
        "plan": _unsaid(changed(_planned(a, fetch_a), _planned(b, fetch_b)), settings),
        "metrics": _metrics(a.metrics, b.metrics),
    }


def _planned(run: TrackedRun, fetch: Fetch) -> dict[str, Any]:
    """Return the plan of a run: ``plan.json``, or what the parameters and metrics keep of it."""
    kept = {name.removeprefix(_RESOLVED): _value(one)
            for name, one in run.params.items() if name.startswith(_RESOLVED)}  # fmt: skip
    return {**kept, **_only(run.metrics, "planned"), **_plan(fetch("plan.json"))}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unsaid(plan: Table, settings: Table) -> Table:
    """Return what of the plan the settings do not say already."""

    def is_said(name: str, one: dict[str, Any]) -> bool:
        setting = settings.get(f"training.{name}")
        return bool(setting) and all(_value(setting[side] or "") == one[side] for side in "ab")

    return {name: one for name, one in plan.items() if not is_said(name, one)}


def changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> Table:
    """Return the keys whose values differ, in order, with both values."""
    return {
        name: {"a": a.get(name), "b": b.get(name)}
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    }


def _only(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: one for name, one in table.items() if name.startswith(prefix)}


def _whole(params: Mapping[str, str], fetch: Fetch) -> dict[str, str]:
    """Return parameters with what MLflow's limit cut put back."""
    if not any("...(truncated, " in value for value in params.values()):
        return dict(params)
    return {**params, **_json(fetch("long_values.json"))}


def _json(content: bytes | None) -> dict[str, Any]:
    try:
        holds = json.loads(content or b"{}")
    except ValueError:
        return {}
    return holds if isinstance(holds, dict) else {}


def _files(a: bytes | None, b: bytes | None) -> Table:
    files = [
        {one.get("path", ""): _file(one) for one in _json(content).get("files", [])}
        for content in (a, b)
    ]
    return {f"file {path}": one for path, one in changed(*files).items()} if a and b else {}


def _file(one: Mapping[str, Any]) -> str:
    return f"{one.get('rows')} rows, sha256 {str(one.get('sha256', ''))[:12]}"


def _plan(content: bytes | None) -> dict[str, Any]:
    def leaves(holds: Any, name: str) -> dict[str, Any]:
        if not isinstance(holds, dict):
            return {name: holds}
        return {
            path: one
            for key, value in holds.items()
            for path, one in leaves(value, f"{name}.{key}" if name else key).items()
        }

    return leaves(_json(content), "")


def _metrics(a: Mapping[str, float], b: Mapping[str, float]) -> Table:
    known = {*a, *b}
    table = {
        name: one
        for name, one in changed(a, b).items()
        if name not in _STEP_METRICS
        and not name.startswith(_IN_THE_REPORT)
        and _LAST_STEP.get(name) not in known
        and not (name.startswith("eval/") and name.removeprefix("eval/") in known)
    }
    for one in table.values():
        if one["a"] is not None and one["b"] is not None:
            one["change"] = one["b"] - one["a"]
    return table


def _schema(a: bytes | None, b: bytes | None) -> Table:
    """Compare two schemas by feature; nothing when one is not there."""
    if a is None or b is None or a == b:
        return {}
    return changed(_features_of_schema(a), _features_of_schema(b))


def _features_of_schema(content: bytes) -> dict[str, str]:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        schema = text_format.Parse(content, schema_pb2.Schema())
    except text_format.ParseError:
        return {"": "unreadable"}
    domains = {one.name: one for one in schema.string_domain}
    features = {}
    for one in schema.feature:
        text = text_format.MessageToString(one, as_one_line=True)
        if one.domain in domains:
            text += " " + text_format.MessageToString(domains[one.domain], as_one_line=True)
        features[one.name] = text
    return features


def _statistics(fetch_a: Fetch, fetch_b: Fetch) -> list[dict[str, Any]]:
    """Return the statistics that moved, the farthest first."""
    moved = []
    for split in _SPLITS:
        a, b = fetch_a(f"statistics/{split}.pb"), fetch_b(f"statistics/{split}.pb")
        if a is not None and b is not None and a != b:
            moved += [{"split": split, **one} for one in _moves(_features(a), _features(b))]
    return sorted(moved, key=lambda one: -one["moved"])


def _features(content: bytes) -> dict[str, Any]:
    from google.protobuf.message import DecodeError
    from tensorflow_metadata.proto.v0 import statistics_pb2

    try:
        statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
    except DecodeError:
        return {}
    return {
        ".".join(one.path.step) or one.name: one
        for dataset in statistics.datasets
        for one in dataset.features
    }


def _moves(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    moves = []
    for name in sorted({*a, *b}):
        if name not in a or name not in b:
            there = {"a": name in a, "b": name in b}
            moves.append({"feature": name, "what": "present", **there, "moved": 1.0})
            continue
        moves += [{"feature": name, **one} for one in _move(a[name], b[name])]
    return moves


def _move(a: Any, b: Any) -> list[dict[str, Any]]:
    """Compare one column.

    ``moved`` is the difference of shares (missing values, or the value whose share changed most:
    the L-infinity distance that TFDV calls drift), or that of means in standard deviations of a.
    """
    missing = _missing_share(a), _missing_share(b)
    found = [_entry("missing share", *missing, moved=abs(missing[0] - missing[1]))]
    if a.HasField("num_stats") and b.HasField("num_stats"):
        means = a.num_stats.mean, b.num_stats.mean
        spread = a.num_stats.std_dev or abs(a.num_stats.mean) or 1.0
        found.append(_entry("mean", *means, moved=abs(means[0] - means[1]) / spread))
    elif a.HasField("string_stats") and b.HasField("string_stats"):
        shares = _shares(a), _shares(b)
        value = max(
            sorted({*shares[0], *shares[1]}),
            key=lambda one: abs(shares[0].get(one, 0.0) - shares[1].get(one, 0.0)),
            default="",
        )
        both = shares[0].get(value, 0.0), shares[1].get(value, 0.0)
        found.append(_entry(f"share of {value!r}", *both, moved=abs(both[0] - both[1])))
    return [one for one in found if one["moved"] > _SAME]


def _entry(what: str, a: float, b: float, *, moved: float) -> dict[str, Any]:
    return {"what": what, "a": a, "b": b, "moved": moved}


def _common(feature: Any) -> Any:
    which = feature.WhichOneof("stats")
    return getattr(feature, which).common_stats if which else feature.num_stats.common_stats


def _missing_share(feature: Any) -> float:
    common = _common(feature)
    rows = common.num_missing + common.num_non_missing
    return common.num_missing / rows if rows else 0.0


def _shares(feature: Any) -> dict[str, float]:
    total = _common(feature).num_non_missing or 1
    buckets = feature.string_stats.rank_histogram.buckets
    counts = {one.label: one.sample_count for one in buckets} or {
        one.value: one.frequency for one in feature.string_stats.top_values
    }
    return {label: count / total for label, count in counts.items()}
