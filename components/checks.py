"""What TFDV cannot see for a training run, told from the statistics of both splits.

Light: reads protocol buffers, imports no TensorFlow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import statistics_pb2

from components import verdict
from components.features import Kind, guess_task
from components.verdict import TRAIN_SPLIT, Anomaly, count_rows
from components.weight_updates import enough_updates

KINDS: dict[int, Kind] = {
    statistics_pb2.FeatureNameStatistics.INT: "int",
    statistics_pb2.FeatureNameStatistics.FLOAT: "float",
    statistics_pb2.FeatureNameStatistics.STRING: "string",
    statistics_pb2.FeatureNameStatistics.BYTES: "image",
}
Values = Mapping[str, Sequence[tuple[Any, int]]]
DISTINCT_ROWS, DISTINCT_SHARE = 50, 0.95
"""A text column with at least so many values, of which at least this share differ, is told."""
DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(\D|$)")
"""A date at the beginning: year, month, day, or the other way round."""


@dataclass(frozen=True)
class Split:
    """The statistics of one split.

    Attributes:
        name: of the split.
        rows: number of rows.
        columns: statistics by column.
        values: pairs of value and count by column, most frequent first; a column with very many
            distinct values is not in it.
    """

    name: str
    rows: int
    columns: Mapping[str, statistics_pb2.FeatureNameStatistics]
    values: Values

    @classmethod
    def of(
        cls, name: str, statistics: statistics_pb2.DatasetFeatureStatistics, values: Values
    ) -> Split:
        """Read a split's statistics."""
        columns = {feature.path.step[0]: feature for feature in statistics.features}
        return cls(name, int(statistics.num_examples), columns, values)

    @classmethod
    def read(cls, statistics: str | Path, name: str) -> Split:
        """Read a split of an ExampleStatistics artifact."""
        folder = Path(statistics)
        whole = statistics_pb2.DatasetFeatureStatisticsList()
        whole.ParseFromString((folder / f"Split-{name}" / "FeatureStats.pb").read_bytes())
        values = json.loads((folder / "values.json").read_text()).get(name, {})
        pairs = {column: [(value, rows) for value, rows in of] for column, of in values.items()}
        return cls.of(name, whole.datasets[0], pairs)

    def missing(self, column: str) -> int:
        """Return the number of rows without a value; NaN is none."""
        if column not in self.columns:
            return self.rows
        feature = self.columns[column]
        nan = sum(int(one.num_nan) for one in feature.num_stats.histograms[:1])
        return self.rows - int(_common(feature).num_non_missing) + nan

    def is_empty(self, column: str) -> bool:
        """Say whether no row has a value."""
        return self.missing(column) >= self.rows

    def kind(self, column: str) -> Kind:
        """Return the type of a column's values."""
        return KINDS[self.columns[column].type]


def _common(feature: statistics_pb2.FeatureNameStatistics) -> statistics_pb2.CommonStatistics:
    return getattr(feature, feature.WhichOneof("stats") or "num_stats").common_stats


def impossible(splits: Sequence[Split], label: str) -> list[Anomaly]:
    """Return what makes training impossible: an empty split, no label, a label that never differs.

    Args:
        splits: all splits, train first.
        label: name of the label's column; empty: there is none.
    """
    total = sum(split.rows for split in splits)
    found = [verdict.empty_split(split.name, total) for split in splits if split.rows == 0]
    return found or (list(_unusable_label(splits[0], label)) if label else [])


def _unusable_label(train: Split, label: str) -> Iterator[Anomaly]:
    if label not in train.columns:
        names = ", ".join(train.columns)
        yield Anomaly(
            label, "LABEL_COLUMN_MISSING", "", f"the label {label} is no column; there are {names}"
        )
    elif train.is_empty(label):
        yield verdict.empty_label(label, seen=TRAIN_SPLIT)
    elif len(values := train.values.get(label, [(0, 0), (1, 0)])) == 1:
        yield verdict.constant_label(label, values[0][0], seen=TRAIN_SPLIT)


def label_anomalies(splits: Sequence[Split], label: str, *, task: str) -> Iterator[Anomaly]:
    """Yield rows without a label, and classes that train does not have.

    The values of an unseen class are in `values`, as they are in the data.

    Args:
        splits: all splits, train first.
        label: name of the label's column.
        task: as in the configuration.
    """
    for split in splits:
        if missing := split.missing(label):
            yield verdict.missing_label(label, split.name, missing)
    train = splits[0]
    if not is_classification(train, label, task=task):
        return
    known = {value for value, _ in train.values[label]}
    for split in splits[1:]:
        unseen = [pair for pair in split.values.get(label, ()) if pair[0] not in known]
        if unseen:
            labelled = train.rows - train.missing(label)
            yield verdict.unseen_classes(
                label, split.name, unseen, distinct=len(known), labelled=labelled
            )


def is_classification(train: Split, label: str, *, task: str) -> bool:
    """Say whether the label stands for classes."""
    if label not in train.values:
        return False
    if task == "auto":
        task = guess_task(train.kind(label), len(train.values[label]))
    return task != "regression"


def few_rows(train: Split, *, global_batch: int) -> Iterator[Anomaly]:
    """Yield an anomaly when the train split does not fill one batch."""
    if train.rows < global_batch:
        yield Anomaly(
            "",
            "FEW_ROWS",
            train.name,
            f"train split has {count_rows(train.rows)}, fewer than training.global_batch "
            f"({global_batch:,}): each epoch is one partial batch and one weight update, so "
            "training.epochs is the number of updates (training.steps, where it is set); "
            f"{enough_updates(train.rows, global_batch)}",
        )


def idle_columns(train: Split, *, but: Sequence[str]) -> Iterator[Anomaly]:
    """Yield the columns that nothing can be learned from: without a value, or with one only."""
    for name, feature in train.columns.items():
        if name in but:
            continue
        if train.is_empty(name):
            message = f"column {name} has no values in the train split"
            yield Anomaly(name, "EMPTY_COLUMN", train.name, message)
        elif not train.missing(name) and _is_constant(feature):
            message = f"column {name} has the same value in every row of the train split"
            yield Anomaly(name, "CONSTANT_COLUMN", train.name, message)


def distinct_columns(
    train: Split, *, but: Sequence[str], splits_by_time: bool = False
) -> Iterator[Anomaly]:
    """Yield the text columns in which (nearly) every value is another: dates, ids, free text.

    Args:
        train: the train split.
        but: columns that are no features.
        splits_by_time: whether the configuration splits by time already.
    """
    for name, feature in train.columns.items():
        if name in but or not feature.HasField("string_stats"):
            continue
        there, distinct = train.rows - train.missing(name), int(feature.string_stats.unique)
        if there >= DISTINCT_ROWS and distinct >= DISTINCT_SHARE * there:
            message = (
                f"column {name}: {distinct:,} of {there:,} values differ, so nothing can be "
                "learned from one of them"
            )
            if _holds_dates(feature):
                message += "; it holds dates" + (
                    "" if splits_by_time else ', by which data.split.by = "time" can split'
                )
            yield Anomaly(name, "DISTINCT_VALUES", train.name, message)


def _holds_dates(feature: statistics_pb2.FeatureNameStatistics) -> bool:
    shown = [one.value for one in feature.string_stats.top_values]
    return bool(shown) and all(DATE.match(value) for value in shown)


def _is_constant(feature: statistics_pb2.FeatureNameStatistics) -> bool:
    if feature.HasField("bytes_stats"):
        return False
    if feature.HasField("num_stats"):
        return feature.num_stats.min == feature.num_stats.max
    return feature.string_stats.unique == 1


def like_the_label(train: Split, label: str, *, but: Sequence[str]) -> list[str]:
    """Return the columns whose statistics are the label's own: they may be copies of it."""
    fingerprint = _moments(train, label)
    return [
        name
        for name, one in train.columns.items()
        if not one.HasField("bytes_stats")
        and name != label
        and name not in but
        and _moments(train, name) == fingerprint
    ]


def _moments(split: Split, column: str) -> tuple[Any, ...]:
    feature = split.columns[column]
    if feature.HasField("num_stats"):
        one = feature.num_stats
        # float32 and int64 columns may hold the same numbers.
        return (split.missing(column), one.min, one.max, one.num_zeros, round(one.mean, 6))
    top = feature.string_stats.top_values
    return (
        split.missing(column),
        feature.string_stats.unique,
        tuple((one.value, one.frequency) for one in top),
    )
