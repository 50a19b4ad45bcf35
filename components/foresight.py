"""What the data gate will say of the data, as far as the heads of its files show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import readers, text_choice, verdict
from components.csv_records import Dialect
from components.features import guess_task
from components.file_columns import File, differing, short_names
from components.heads import Heads
from components.split import SPLITS, differs_by_design
from components.text_checks import few_windows
from components.value_counts import ValueCounts
from components.verdict import TRAIN_SPLIT, Anomaly, count_rows
from trainer.texts import windows_of


def foresee(
    heads: Heads, settings: Mapping[str, Any], held_back: Sequence[np.ndarray] | None
) -> list[Anomaly]:
    """Return the anomalies that the gate will find, judged as it judges them.

    What rows that were not read may turn is a warning.

    Args:
        heads: the first rows of all files.
        settings: those of the gate: files, label, ignore, split, on_anomaly and rules; and, where
            a text is read, model, text, sequence, vocabulary and global_batch.
        held_back: as `Heads.held_back` returns it.
    """
    found = [*_files(heads, settings)]
    empty = [] if held_back is None else list(_empty_splits(held_back))
    found += empty or [
        *_label(heads, settings, held_back),
        *_few_windows(heads, settings, held_back),
    ]
    judged = verdict.judge(
        found,
        on_anomaly=settings["on_anomaly"],
        rules=settings["rules"],
        ignored=settings["ignore"],
    )
    return [
        dataclasses.replace(one, severity="warn")
        if one.kind == "LABEL_ONE_VALUE" and not heads.is_whole
        else one
        for one in judged
    ]


def _files(heads: Heads, settings: Mapping[str, Any]) -> Iterator[Anomaly]:
    rows = {one.path: one.rows.num_rows if one.is_whole else 0 for one in heads.files}
    shown = short_names(heads.names, settings["files"])
    files = [
        File(name, own, rows[path])
        for name, (path, own) in zip(shown, heads.names.items(), strict=True)
    ]
    yield from differing(files, but=[settings["label"], *differs_by_design(settings["split"])])


def _empty_splits(held_back: Sequence[np.ndarray]) -> Iterator[Anomaly]:
    rows = sum(len(one) for one in held_back)
    in_eval = sum(int(one.sum()) for one in held_back)
    for name, count in zip(SPLITS, (rows - in_eval, in_eval), strict=True):
        if not count:
            yield verdict.empty_split(name, rows)


def _label(
    heads: Heads, settings: Mapping[str, Any], held_back: Sequence[np.ndarray] | None
) -> Iterator[Anomaly]:
    """Yield what the label's values show, of train where the splits are known."""
    label = settings["label"]
    if label not in heads.layout.kinds or label in heads.layout.lists:
        return
    counts = ValueCounts()
    for at, one in enumerate(heads.files):
        values = one.rows.column(label)
        counts.add(values if held_back is None else values.filter(pa.array(~held_back[at])))
    rows = sum(one.rows.num_rows for one in heads.files)
    seen = TRAIN_SPLIT if held_back is not None else f"the first {count_rows(rows)}"
    values = counts.table()["value"]
    if len(values) < 2:
        if len(values):
            yield verdict.constant_label(label, values[0].as_py(), seen=seen)
        elif heads.is_whole:
            yield verdict.empty_label(label, seen=seen)
        return
    if missing := _missing(heads, label):
        count = sum(len(found) for found in missing.values())
        yield verdict.missing_label(
            label, "", count, _places(missing, settings["files"], heads.dialect)
        )
    yield from _classes(heads, settings, held_back, values.to_pylist())


def _classes(
    heads: Heads,
    settings: Mapping[str, Any],
    held_back: Sequence[np.ndarray] | None,
    known: Sequence[Any],
) -> Iterator[Anomaly]:
    """Yield that a label of classes has some in eval alone, or so many that it is none."""
    label, kind = settings["label"], heads.layout.kinds[settings["label"]]
    task = settings["task"]
    if task == "auto":
        task = guess_task(kind, len(known))
    if task == "regression":
        return
    own = [one.rows.column(label) for one in heads.files]
    if held_back is None:
        there = sum(len(one) - one.null_count for one in own)
        if verdict.looks_like_id(len(known), there):
            yield verdict.too_many_classes(label, distinct=len(known), labelled=there)
        return
    in_train = sum(
        len(one.filter(pa.array(~of_eval)).drop_null())
        for one, of_eval in zip(own, held_back, strict=True)
    )
    counts = ValueCounts()
    for one, of_eval in zip(own, held_back, strict=True):
        counts.add(one.filter(pa.array(of_eval)))
    table, seen = counts.table(), set(known)
    pairs = zip(table["value"].to_pylist(), table["count"].to_pylist(), strict=True)
    if unseen := [pair for pair in pairs if pair[0] not in seen]:
        yield verdict.unseen_classes(
            label, SPLITS[1], unseen, distinct=len(known), labelled=in_train
        )


def windows(
    heads: Heads, settings: Mapping[str, Any], held_back: Sequence[np.ndarray]
) -> tuple[int, int]:
    """Return tokens and windows of a language model's train split; of words at least so many.

    Args:
        heads: all rows.
        settings: ``model``, ``text``, ``sequence`` and ``vocabulary``, and what else chooses.
        held_back: which rows are for evaluation.
    """
    text = text_choice.choose(heads.layout.kinds, settings)
    tokens = 0
    for head, of_eval in zip(heads.files, held_back, strict=True):
        texts = head.rows.column(text).filter(pa.array(~of_eval)).drop_null()
        of_bytes = pc.sum(pc.binary_length(texts)).as_py() or 0
        tokens += len(texts) + (of_bytes if settings["vocabulary"] == "bytes" else len(texts))
    return tokens, windows_of(tokens, settings["sequence"])


def _few_windows(
    heads: Heads, settings: Mapping[str, Any], held_back: Sequence[np.ndarray] | None
) -> Iterator[Anomaly]:
    if held_back is None or not text_choice.is_language_model(settings):
        return
    tokens, found = windows(heads, settings, held_back)
    few = few_windows(found, SPLITS[0], tokens, settings, is_train=True)
    yield from [few] if few else []


def _missing(heads: Heads, label: str) -> dict[Path, np.ndarray]:
    """Return the rows without a label of each file that has some."""
    found = {
        one.path: np.flatnonzero(np.asarray(pc.is_null(one.rows.column(label))))
        for one in heads.files
    }
    return {path: rows for path, rows in found.items() if len(rows)}


def _places(
    rows: Mapping[Path, np.ndarray], files: Sequence[str], dialect: Dialect
) -> tuple[str, ...]:
    named: list[str] = []
    for path, own in rows.items():
        named += readers.short_places(
            path, own[: verdict.PLACES - len(named)].tolist(), files, dialect
        )
        if len(named) >= verdict.PLACES:
            break
    return tuple(named)
