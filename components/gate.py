"""DataGate: reads what was found in every split, adds what TFDV cannot see, and refuses bad data.

Everything that trains hangs downstream of its verdict. When rows must be named, the source files
are read once more, column by column; when they are not at hand, the examples are, without places.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.artifact import Artifact

from components import (
    anomalous_rows,
    baseline,
    checks,
    column_types,
    evidence,
    text_choice,
    verdict,
)
from components.anomalies import read_anomalies
from components.anomalous_rows import RowsFile
from components.baseline import Comparison
from components.checks import KINDS, Split
from components.evidence import Check, Evidence, Row, Rows
from components.expectations import Expectations
from components.file_columns import File, differing, short_names
from components.row_sources import dialect_of, place_names, rows_of
from components.schema import infer_schema, read_schema
from components.split import differs_by_design
from components.statistics import read_rows, read_statistics, read_values
from components.text_checks import text_anomalies
from components.verdict import Anomaly
from trainer import journal

VERDICT_FILE = "anomalies.json"
CHANCE = 1e-4
"""What is likelier than this is taken for chance."""


class DataVerdict(Artifact):
    """The gate's verdict: ``anomalies.json``, a list of anomalies that did not stop the run.

    Where rows show them, ``anomalous_rows.parquet`` names every one.
    """

    TYPE_NAME = "DataVerdict"


@component
def DataGate(
    examples: InputArtifact[standard_artifacts.Examples],
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: InputArtifact[standard_artifacts.Schema],
    anomalies: InputArtifact[standard_artifacts.ExampleAnomalies],
    verdict: OutputArtifact[DataVerdict],
    settings: Parameter[str],
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument]
) -> None:
    """Let the data through, or raise `DataRefused`."""
    run_gate(
        Data(
            examples=examples.uri,
            statistics=statistics.uri,
            schema=schema.uri,
            anomalies=anomalies.uri,
            splits=tuple(artifact_utils.decode_split_names(statistics.split_names)),
        ),
        verdict.uri,
        json.loads(settings),
    )


@dataclass(frozen=True)
class Data:
    """Places of the artifacts that the gate reads, and the names of the splits, train first."""

    examples: str
    statistics: str
    schema: str
    anomalies: str
    splits: tuple[str, ...] = ("train", "eval")


def run_gate(data: Data, folder: str, settings: dict[str, Any]) -> None:
    """Write the verdict ``anomalies.json`` into `folder`, and tell the journal of each anomaly.

    Args:
        data: what to judge.
        folder: place of the DataVerdict artifact.
        settings: files, label, task, ignore, null_values, split, on_anomaly, rules, global_batch;
            drift, skew and baseline, see `baseline.compare`; where a text is read, model, text,
            sequence and vocabulary as well.

    Raises:
        DataRefused: when an anomaly stops the run.
    """
    found = inspect(data, settings, folder=folder)
    facts = [one.facts() for one in found]
    for one in facts:
        journal.append(os.environ.get("HEADRACE_EVENTS", ""), "anomaly", **one)
    # What TFX throws away when the gate refuses is kept with the run.
    for place in (folder, os.environ.get("HEADRACE_RUN_DIR", "")):
        if place:
            _write(Path(place) / VERDICT_FILE, json.dumps(facts, ensure_ascii=False, indent=1))
            _copy(Path(folder) / anomalous_rows.FILE, Path(place))
    if found and found[0].severity == "stop":
        refused = verdict.refusal(found)
        raise refused


def inspect(data: Data, settings: dict[str, Any], *, folder: str = "") -> list[Anomaly]:
    """Return the anomalies that count, with rows and places, those that stop first.

    Args:
        data: what to judge.
        settings: as for `run_gate`.
        folder: gets ``anomalous_rows.parquet`` where rows show any; empty: nothing is written.
    """
    values = read_values(data.statistics)
    splits = [
        Split.of(name, read_statistics(data.statistics, name), values.get(name, {}))
        for name in data.splits
    ]
    label = settings["label"]
    found = checks.impossible(splits, label)
    if not found:
        settings, text = _with_text(splits[0], settings)
        found = list(text_anomalies(splits, text, settings))
    if not any(verdict.KINDS[one.kind].severity == "stop" for one in found):
        null = column_types.nulls(settings["null_values"]).number
        expected = Expectations(read_schema(data.schema), null)
        tfdv = [one for name in data.splits for one in read_anomalies(data.anomalies, name)]
        compared = baseline.compare(splits, expected.schema, settings)
        _keep(compared, folder)
        own = [
            *found,
            *compared.anomalies,
            *_own_checks(splits, settings, text=text),
            *_differing_files(data.examples, settings),
        ]
        told = [
            _in_words(one, expected, splits)
            for one in _without_repeats(tfdv, own, label)
            if one.feature not in differs_by_design(settings["split"])
        ]
        # What a rule ignores is not looked for.
        counted = _judge(told, settings)
        found = _with_evidence(
            counted, data=data, expected=expected, splits=splits, settings=settings, folder=folder
        )
        if _is_inferred(expected, data, settings):
            return _judge(found, settings, functools.partial(_may_be_chance, settings["split"]))
    return _judge(found, settings)


def _with_text(train: Split, settings: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the settings with the columns ignored that the model does not read, and its text."""
    kinds = {name: train.kind(name) for name, one in train.columns.items() if one.type in KINDS}
    text = text_choice.choose(kinds, settings)
    image = text_choice.choose_image(kinds, settings)
    others = text_choice.not_read(kinds, settings, text or image)
    if not text_choice.is_language_model(settings):
        others += text_choice.places(kinds)
    return {**settings, "ignore": [*settings["ignore"], *others]}, text


def _is_inferred(expected: Expectations, data: Data, settings: dict[str, Any]) -> bool:
    """Say whether the schema is what is inferred from this very train split."""
    train = read_statistics(data.statistics, data.splits[0])
    return infer_schema(train, settings) == expected.schema


def _may_be_chance(split: Mapping[str, Any], one: Anomaly) -> bool:
    """Say whether a split by hash may well have put all rows with such a value into eval.

    With a share e of the rows in eval, k rows all fall into it with probability e^k.
    """
    rows = max((count for _, count in one.values), default=one.rows)
    return (
        split["by"] == "hash"
        and one.split == "eval"
        and one.kind in {"UNEXPECTED_VALUES", "MISSING_VALUES", "OUT_OF_RANGE", "WRONG_TYPE"}
        and rows > 0
        and split["eval"] ** rows > CHANCE
    )


def _keep(compared: Comparison, folder: str) -> None:
    """Write ``drift.json``, and tell what is to be said of the baseline."""
    if not folder:
        return
    text = json.dumps(compared.facts(), ensure_ascii=False, indent=1)
    for place in (folder, os.environ.get("HEADRACE_RUN_DIR", "")):
        if place:
            _write(Path(place) / baseline.FILE, text)
    events = os.environ.get("HEADRACE_EVENTS", "")
    if compared.run or compared.said:
        journal.append(events, "baseline", run=compared.run, said=compared.said)
    for said in compared.said:
        if said != baseline.NONE:
            journal.append(events, "warning", id="DataGate", message=said)


def _judge(
    found: Sequence[Anomaly],
    settings: dict[str, Any],
    may_be_chance: Callable[[Anomaly], bool] = lambda _: False,
) -> list[Anomaly]:
    # The newest rows differ from the older ones for that reason alone.
    by_time = {"SKEW": "warn"} if settings["split"]["by"] == "time" else {}
    return verdict.judge(
        found,
        on_anomaly=settings["on_anomaly"],
        rules={**by_time, **settings["rules"]},
        ignored=settings["ignore"],
        may_be_chance=may_be_chance,
    )


def _own_checks(splits: Sequence[Split], settings: dict[str, Any], *, text: str) -> list[Anomaly]:
    train, label, ignored = splits[0], settings["label"], [*settings["ignore"], text]
    if text_choice.is_language_model(settings):
        return []
    copies = checks.like_the_label(train, label, but=ignored)
    return [
        *checks.label_anomalies(splits, label, task=settings["task"]),
        *checks.few_rows(train, global_batch=settings["global_batch"]),
        *checks.idle_columns(train, but=[label, *ignored]),
        *checks.distinct_columns(
            train, but=[label, *ignored], splits_by_time=settings["split"]["by"] == "time"
        ),
        *(
            Anomaly(name, "LABEL_COPY", train.name, f"column {name} is a copy of the label {label}")
            for name in copies
        ),
    ]


def _differing_files(examples: str, settings: dict[str, Any]) -> list[Anomaly]:
    """Return which files differ in their columns, as ExampleGen found them."""
    told = read_rows(examples)
    found = told.get("files", ())
    shown = short_names([one["path"] for one in found], settings["files"])
    files = [
        File(name, [kind for kind in told["types"] if kind not in one["lacks"]], one["rows"])
        for name, one in zip(shown, found, strict=True)
    ]
    return list(differing(files, but=[settings["label"], *differs_by_design(settings["split"])]))


def _without_repeats(tfdv: Sequence[Anomaly], own: Sequence[Anomaly], label: str) -> list[Anomaly]:
    """Leave out what TFDV says again in other words of a label or an empty column."""
    empty = {one.feature for one in own if one.kind == "EMPTY_COLUMN"}
    # A schema that asks for values says more than that there are none.
    asked = {one.feature for one in tfdv if one.kind == "MISSING_VALUES" and one.feature in empty}
    unseen = {one.split for one in own if one.kind == "LABEL_UNSEEN_CLASS"}
    kept = [
        one
        for one in tfdv
        if not (one.feature in empty - asked and one.kind in {"WRONG_TYPE", "NEW_COLUMN"})
        and not (one.feature == label and one.kind == "MISSING_VALUES")
        and not (
            one.feature == label
            and one.split in unseen
            and one.kind in {"UNEXPECTED_VALUES", "OUT_OF_RANGE", "WRONG_TYPE"}
        )
    ]
    return [*(one for one in own if one.kind != "EMPTY_COLUMN" or one.feature not in asked), *kept]


def _with_evidence(
    found: Sequence[Anomaly],
    *,
    data: Data,
    expected: Expectations,
    splits: Sequence[Split],
    settings: dict[str, Any],
    folder: str,
) -> list[Anomaly]:
    """Return the anomalies with their rows, places and values; none that no row shows."""
    looked = [_check(one, expected, splits=splits, label=settings["label"]) for one in found]
    wanted = [check for check in looked if check]
    if not wanted:
        return list(found)
    columns = sorted({name for check in wanted for name in check.columns})
    rows = rows_of(settings, columns, examples=data.examples, splits=data.splits)
    told = [one for one, check in zip(found, looked, strict=True) if check]
    gathered = iter(_gather(wanted, rows, told, settings=settings, folder=folder))
    pairs = [
        (one, next(gathered) if check else None) for one, check in zip(found, looked, strict=True)
    ]
    first = [row for _, what in pairs if what for row in what.first]
    return _believed(
        pairs, splits, names=place_names(first, settings["files"], dialect_of(settings))
    )


def _gather(
    checks: Sequence[Check],
    rows: Iterable[Rows],
    anomalies: Sequence[Anomaly],
    *,
    settings: dict[str, Any],
    folder: str,
) -> list[Evidence]:
    """Return the evidence of each check; every row that shows one is written into `folder`."""
    if not folder:
        return evidence.gather(checks, rows)
    with RowsFile(
        Path(folder) / anomalous_rows.FILE, settings["files"], dialect_of(settings)
    ) as file:

        def tell(number: int, batch: Rows, shown: np.ndarray) -> None:
            # The check of a copy looks for rows that differ from the label.
            if anomalies[number].kind != "LABEL_COPY":
                file.add(number, anomalies[number], checks[number], batch, shown)

        return evidence.gather(checks, rows, tell)


def _believed(
    pairs: Sequence[tuple[Anomaly, Evidence | None]],
    splits: Sequence[Split],
    *,
    names: Mapping[Row, str],
) -> list[Anomaly]:
    shown = {(one.feature, one.kind) for one, what in pairs if what and what.rows}
    result = []
    for one, what in pairs:
        if what is None:
            result.append(one)
        elif one.kind == "LABEL_COPY":
            # The check looks for rows that differ from the label.
            result.extend([one] if not what.rows else [])
        elif what.rows or (one.feature, one.kind) not in shown:
            where = tuple(names[row] for row in what.first)
            result.append(_filled(one, what, splits, where=where))
    return result


def _filled(
    one: Anomaly, what: Evidence, splits: Sequence[Split], *, where: tuple[str, ...]
) -> Anomaly:
    rows = what.rows or one.rows
    if not rows and one.kind == "WRONG_TYPE":
        # No single value is to blame: 1.0 in a column of whole numbers.
        rows = next(
            split.rows - split.missing(one.feature) for split in splits if split.name == one.split
        )
    return dataclasses.replace(one, rows=rows, where=where, values=what.values())


def _in_words(one: Anomaly, expected: Expectations, splits: Sequence[Split]) -> Anomaly:
    """Return an anomaly told in our words; a wrong type that does no harm gets its own kind."""
    split = next((split for split in splits if split.name == one.split), splits[0])
    is_int = one.feature in split.columns and split.kind(one.feature) == "int"
    if one.kind == "WRONG_TYPE" and expected.type_of(one.feature) == "FLOAT" and is_int:
        one = dataclasses.replace(one, kind="WHOLE_NUMBERS_ONLY")
    return dataclasses.replace(one, message=expected.message(one))


def _check(
    one: Anomaly, expected: Expectations, *, splits: Sequence[Split], label: str
) -> Check | None:
    """Return how to find the rows that show an anomaly; None where it is no matter of rows."""
    if one.kind == "LABEL_COPY":
        return Check((one.feature, label), one.split, evidence.differs(one.feature, label))
    if one.kind == "LABEL_UNSEEN_CLASS":
        known = [value for value, _ in splits[0].values[label]]
        return Check((label,), one.split, evidence.is_not_in(label, known))
    shows = expected.shows(one)
    return Check((expected.looks_at(one),), one.split, shows) if shows else None


def _copy(path: Path, folder: Path) -> None:
    """Copy a file whole, where it is there, into another folder than its own."""
    if path.is_file() and path.parent != folder:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{path.name}.part"
        shutil.copyfile(path, part)
        os.replace(part, folder / path.name)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
