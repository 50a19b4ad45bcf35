"""`schema show | freeze | update | diff`: the schema that a pipeline's people own."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from components import schema_file, schema_freeze, schema_update, verdict
from components.checks import Split
from components.schema_freeze import Extras
from components.schema_words import differences, domains_of, expectation
from pipeline import cache, config_keys, processes, results
from pipeline.config import PipelineConfig
from trainer.errors import InputError, SettingError

SPLITS = ("train", "eval")
FREEZE_FIRST = "name a file there, and run headrace schema freeze"


@dataclass(frozen=True)
class LastRun:
    """The newest run that has statistics.

    Attributes:
        number: its name.
        outputs: each node's outputs.
        result: its JSON object.
    """

    number: str
    outputs: dict[str, cache.Outputs]
    result: dict[str, Any]

    def splits(self) -> list[Split]:
        """Return the statistics of both splits."""
        place = self.outputs["StatisticsGen"]["statistics"].uri
        return [Split.read(place, name) for name in SPLITS]

    def distances(self, config: PipelineConfig) -> list[dict[str, Any]]:
        """Return how far the columns had moved."""
        folder = config.folder / "logs" / self.number
        return results.drift(self.outputs, folder).get("distances", [])


def last_run(config: PipelineConfig) -> LastRun:
    """Return the newest run that got as far as statistics.

    Raises:
        InputError: there is none.
    """
    records = cache.Records(config.folder / "metadata.sqlite")
    logs = config.folder / "logs"
    numbers = [path.name for path in logs.iterdir()] if logs.is_dir() else []
    for number in sorted((one for one in numbers if one.isdigit()), key=int, reverse=True):
        result = logs / number / "result.json"
        if result.is_file() and "StatisticsGen" in (outputs := records.outputs_of_run(number)):
            return LastRun(number, outputs, json.loads(result.read_text()))
    raise InputError(
        "no run of this pipeline has looked at its data yet",
        where=str(config.folder),
        right=f"first: headrace run {config.path.name}",
    )


def show(config: PipelineConfig) -> list[str]:
    """Return the schema in force, in words, and who changed it when and why."""
    if config.schema_path:
        place, text = config.schema_path, schema_file.read_text(config.schema_path)
    else:
        run = last_run(config)
        place = str(Path(run.outputs["SchemaGen"]["schema"].uri) / "schema.pbtxt")
        text = schema_file.read_text(place)
        place = f"inferred from the train split of run {run.number}"
    schema = schema_file.parse_schema(text, place)
    domains = domains_of(schema)
    width = max((len(one.name) for one in schema.feature), default=0)
    rows = [f"  {one.name:<{width}}  {expectation(one, domains)}" for one in schema.feature]
    changes = [f"  {line}" for line in schema_file.history(text)]
    return [place, *rows, *(["", "changes:", *changes] if changes else [])]


def freeze(config: PipelineConfig, extras: Extras, *, replace: bool) -> list[str]:
    """Write the schema that the newest data give to the file that the configuration names.

    Args:
        config: the configuration; where its schema is inferred, the file is
            ``schemas/<name>.pbtxt`` beside it.
        extras: what inference leaves out.
        replace: whether a file that is there is written anew.

    Returns: what was written, in lines.

    Raises:
        InputError: the file is there, or no run has looked at the data.
    """
    path = Path(config.schema_path or config.base / "schemas" / f"{config.name}.pbtxt")
    if path.exists() and not replace:
        raise InputError(
            "this file is there already",
            where=str(path),
            right="change single things by headrace schema update, or write it anew by --replace",
        )
    run = last_run(config)
    train = run.splits()[0]
    label = config.data.label
    schema = schema_freeze.frozen(_inferred(config, run), train, label=label, extras=extras)
    told = schema_freeze.described(train, [label])
    text = schema_file.commented(schema, _head(config, run, train, extras), told.__getitem__)
    before = schema_file.parse_schema(path.read_text(), str(path)) if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    processes.write_whole(path, text)
    said = [f"{path}: {verdict.count(len(schema.feature), 'column')}, from run {run.number}"]
    said += differences(before, schema) if before else []
    if run.result["status"] == "rejected":
        said.append(f"run {run.number} was refused: look at what it said before you keep this")
    if not config.schema_path:
        named = os.path.relpath(path, config.base)
        said.append(f"next, under [validation]: schema = {config_keys.toml_text(named)}")
    return said


def _inferred(config: PipelineConfig, run: LastRun) -> schema_pb2.Schema:
    """Return what is inferred from a run's train split, as SchemaGen does it."""
    found = run.outputs.get("SchemaGen", {}).get("schema")
    settings = json.loads((config.folder / "logs" / run.number / "run.json").read_text())["nodes"]
    told = next(one["settings"] for one in settings if one["id"] == "SchemaGen")
    if found and told["schema"] == "infer":
        path = Path(found.uri) / "schema.pbtxt"
        return schema_file.parse_schema(path.read_text(encoding="utf-8"), str(path))
    from components.schema import infer_schema
    from components.statistics import read_statistics

    place = run.outputs["StatisticsGen"]["statistics"].uri
    return infer_schema(read_statistics(place, "train"), told)


def _head(config: PipelineConfig, run: LastRun, train: Split, extras: Extras) -> list[str]:
    bounds = "the least and greatest value of train" if extras.bounds else "none"
    mass = f"at least {100 * extras.min_domain_mass:g} % of them must be known"
    return [
        f"Schema of {config.name}: what its data must keep to. Inferred from the train split of",
        f"run {run.number}, {train.rows:,} rows; to be read through, and changed by its people, by",
        "hand or by: headrace schema update --accept FEATURE:KIND --reason WHY",
        f"Bounds of numbers: {bounds}. Texts with a list of values: {mass}.",
        "The label is not asked for in TFDV's environment SERVING.",
    ]


def update(
    config: PipelineConfig, accepts: Sequence[str], *, reason: str, who: str = ""
) -> list[str]:
    """Take anomalies of the last run into the schema's file, and record who, when and why.

    Args:
        config: the configuration.
        accepts: ``FEATURE:KIND`` texts.
        reason: why they are right.
        who: who says so; empty: the user of this machine.

    Returns: what changed, in lines.

    Raises:
        InputError: the last run told of no such anomaly, there is no reason, or it would make the
            schema accept everything.
        SettingError: the schema is inferred.
    """
    if config.schema_path is None:
        raise SettingError(
            "an inferred schema is made anew by each run, and has nothing to be changed",
            where=config.where("validation.schema"),
            holds='"infer"',
            right=FREEZE_FIRST,
        )
    if not accepts:
        raise InputError("names no anomaly", where="--accept", right="name one as FEATURE:KIND")
    if not reason.strip():
        raise InputError(
            "a reason is needed", where="--reason", right="say why these data are right"
        )
    text = schema_file.read_text(config.schema_path)
    first = schema = schema_file.parse_schema(text, config.schema_path)
    run = last_run(config)
    lines = []
    for feature, kind in [_anomaly(one, run) for one in accepts]:
        after = schema_update.accept(schema, feature, kind, run.splits(), run.distances(config))
        said = differences(schema, after)
        if not said:
            raise InputError(
                "the schema allows this already",
                where="--accept",
                holds=f"{feature}:{kind}",
                right=f"run again: headrace run {config.path.name}",
            )
        what = f"{feature}:{kind} of run {run.number} ({'; '.join(said)})"
        lines.append(schema_file.accepted_line(what, who=who or _user(), reason=reason))
        schema = after
    processes.write_whole(Path(config.schema_path), schema_file.changed_text(text, schema, lines))
    return [f"{config.schema_path}:", *(f"  {one}" for one in differences(first, schema))]


def _anomaly(text: str, run: LastRun) -> tuple[str, str]:
    """Return feature and kind of an anomaly of a run.

    Raises:
        InputError: it has none of this name.
    """
    feature, colon, kind = text.rpartition(":")
    told = [(one["feature"], one["kind"]) for one in run.result.get("anomalies") or ()]
    if colon and (feature, kind) in told:
        return feature, kind
    names = ", ".join(dict.fromkeys(f"{one}:{kind}" for one, kind in told)) or "no anomaly"
    every = "; everything at once cannot be accepted" if "*" in text or text == "all" else ""
    raise InputError(
        f"run {run.number} told of no such anomaly{every}",
        where="--accept",
        holds=text,
        right=f"FEATURE:KIND as it told them: {names}",
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def diff(before: str, after: str) -> list[str]:
    """Return in words in what the second schema file differs from the first."""
    one, other = (
        schema_file.parse_schema(schema_file.read_text(path), path) for path in (before, after)
    )
    return differences(one, other) or ["no difference"]
