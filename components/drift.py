"""How far two data sets lie apart, column by column: drift from an earlier one, skew of the splits.

L-infinity for texts and classes (the greatest change of a value's share), Jensen-Shannon divergence
for numbers (0 to 1, in bits, of TFDV's histograms); both as TFDV measures them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from components.checks import Split
from components.verdict import Anomaly

Kind = Literal["DRIFT", "SKEW", "LABEL_SHIFT"]
L_INFINITY, JENSEN_SHANNON = "L-infinity", "Jensen-Shannon"
_BINS = 30
"""About as many bins as two of TFDV's histograms of ten have in common."""


@dataclass(frozen=True)
class Distance:
    """How far one column moved.

    Attributes:
        feature: the column.
        kind: what the two data sets are to each other.
        measure: `L_INFINITY` or `JENSEN_SHANNON`.
        distance: from 0 to 1.
        threshold: what is let pass.
        chance: what so few rows may show though nothing changed.
        said: what moved most, in words.
    """

    feature: str
    kind: Kind
    measure: str
    distance: float
    threshold: float
    chance: float
    said: str

    @property
    def is_beyond(self) -> bool:
        """Whether it is too far, and not by chance."""
        return self.distance > max(self.threshold, self.chance)

    def facts(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {**vars(self), "is_beyond": self.is_beyond}

    def anomaly(self, split: str, other: str) -> Anomaly:
        """Return it as an anomaly of a split, against another data set."""
        what = f"column {self.feature} differs from {other}"
        if self.kind == "LABEL_SHIFT":
            what = f"the label {self.feature} differs from {other}"
        return Anomaly(
            self.feature,
            self.kind,
            split,
            f"{what}: {self.said}; {self.measure} {self.distance:.3g}, above {self.threshold:g}",
        )


@dataclass(frozen=True)
class Thresholds:
    """What is let pass.

    Attributes:
        default: of every column that has none of its own.
        own: by column.
        schema: of whose columns' comparators come second.
        comparator: which of them.
    """

    default: float
    own: Mapping[str, float]
    schema: schema_pb2.Schema
    comparator: Literal["drift_comparator", "skew_comparator"]

    def of(self, feature: str) -> float:
        """Return the threshold of a column."""
        if feature in self.own:
            return self.own[feature]
        for one in self.schema.feature:
            if one.name == feature and one.HasField(self.comparator):
                limits = getattr(one, self.comparator)
                for name in ("infinity_norm", "jensen_shannon_divergence"):
                    if limits.HasField(name):
                        return getattr(limits, name).threshold
        return self.default


def distances(
    now: Split,
    before: Split,
    columns: Sequence[str],
    thresholds: Thresholds,
    *,
    kind: Kind,
    classes: str = "",
) -> list[Distance]:
    """Return how far each column that both have moved, in their order.

    Args:
        now: the data in question.
        before: what they are compared with.
        columns: which columns.
        thresholds: what is let pass.
        kind: what the two are to each other.
        classes: a label that stands for classes, be they numbers; empty: there is none.
    """
    measured = _measured(now, before, [name for name in columns if name != classes])
    result = []
    for name in columns:
        counts = _counts(now, name), _counts(before, name)
        is_text = name == classes or now.columns[name].HasField("string_stats")
        if is_text and not all(counts):
            continue
        distance = _l_infinity(*counts)[0] if name == classes else measured.get(name)
        if distance is None:
            continue
        rows = 1 / _there(now, name) + 1 / _there(before, name)
        said = _moved_value(*counts) if is_text else _moved_number(now, before, name)
        # Four standard deviations of a share near one half; three times what JS is by chance.
        chance = 2 * math.sqrt(rows) if is_text else 3 * _BINS / (8 * math.log(2)) * rows
        measure = L_INFINITY if is_text else JENSEN_SHANNON
        result.append(
            Distance(name, kind, measure, distance, thresholds.of(name), min(chance, 1.0), said)
        )
    return result


def comparable(now: Split, before: Split, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns that can be compared, and in words why others cannot."""
    found, said = [], []
    for name in columns:
        if name not in before.columns:
            said.append(f"{name} was not there")
        elif before.columns[name].type != now.columns[name].type:
            said.append(f"{name} was {_TYPES[before.kind(name)]}")
        elif not (now.is_empty(name) or before.is_empty(name)):
            found.append(name)
    gone = [name for name in before.columns if name not in now.columns]
    return found, said + [f"{name} is gone" for name in gone]


_TYPES = {"int": "a whole number", "float": "a number", "string": "text", "image": "an image"}


def _there(split: Split, name: str) -> int:
    return max(split.rows - split.missing(name), 1)


def _measured(now: Split, before: Split, columns: Sequence[str]) -> dict[str, float]:
    """Return what TFDV measures of each column."""
    schema = schema_pb2.Schema()
    for name in columns:
        feature = schema.feature.add(name=name, type=_SCHEMA_TYPES[now.kind(name)])
        comparator = feature.drift_comparator
        if feature.type == schema_pb2.BYTES:
            comparator.infinity_norm.threshold = 1.0
        else:
            comparator.jensen_shannon_divergence.threshold = 1.0
    if not columns:
        return {}
    found = tfdv.validate_statistics(
        _dataset(now, columns), schema, previous_statistics=_dataset(before, columns)
    )
    return {
        info.path.step[0]: info.drift_measurements[0].value
        for info in found.drift_skew_info
        if info.drift_measurements
    }


_SCHEMA_TYPES = {"int": schema_pb2.INT, "float": schema_pb2.FLOAT, "string": schema_pb2.BYTES}


def _dataset(split: Split, columns: Sequence[str]) -> statistics_pb2.DatasetFeatureStatisticsList:
    dataset = statistics_pb2.DatasetFeatureStatistics(num_examples=split.rows)
    dataset.features.extend(split.columns[name] for name in columns)
    return statistics_pb2.DatasetFeatureStatisticsList(datasets=[dataset])


def _counts(split: Split, name: str) -> dict[str, float]:
    """Return value to rows, as far as the statistics hold them."""
    feature = split.columns[name]
    if not feature.HasField("string_stats"):
        return {str(value): rows for value, rows in split.values.get(name, ())}
    return {one.label: one.sample_count for one in feature.string_stats.rank_histogram.buckets}


def _shares(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {value: rows / total for value, rows in counts.items()}


def _l_infinity(now: Mapping[str, float], before: Mapping[str, float]) -> tuple[float, str]:
    """Return the greatest change of a value's share, and the value."""
    one, other = _shares(now), _shares(before)
    moves = [(abs(one.get(v, 0) - other.get(v, 0)), v) for v in dict.fromkeys([*other, *one])]
    return max(moves, key=lambda move: move[0], default=(0.0, ""))


def _moved_value(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    _, value = _l_infinity(now, before)
    shares = [100 * _shares(counts).get(value, 0) for counts in (before, now)]
    return f'the share of "{value}" is {shares[1]:.1f} %, there {shares[0]:.1f} %'


def _moved_number(now: Split, before: Split, name: str) -> str:
    new, old = (split.columns[name].num_stats for split in (now, before))
    return (
        f"its median is {new.median:g}, there {old.median:g}; its mean {new.mean:g}, "
        f"there {old.mean:g}"
    )


def beyond(found: Sequence[Distance], *, split: str, other: str) -> Iterator[Anomaly]:
    """Yield an anomaly for each column that moved too far."""
    for one in found:
        if one.is_beyond:
            yield one.anomaly(split, other)
