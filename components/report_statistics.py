"""What the report says of a column: read from TFDV's statistics files, one value a split.

Reads the protos with `tensorflow_metadata` alone, which imports no TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from components.schema_words import domains_of, expectation

Bucket = tuple[float, float, float]
"""Low edge, high edge, rows (a float: TFDV interpolates)."""

KINDS = {0: "whole number", 1: "number", 2: "text", 3: "bytes", 4: "structure"}


@dataclass(frozen=True)
class SplitColumn:
    """One column in one split. Numbers that the kind of the column does not have are None.

    Attributes:
        rows: examples of the split.
        present: examples that hold a value.
        kind: the type in words.
        buckets: equal-width histogram, empty for texts.
        counts: value to examples that hold it, most frequent first; texts only.
        all_counted: whether `counts` holds every value that occurs.
    """

    rows: int
    present: int
    kind: str
    mean: float | None = None
    std_dev: float | None = None
    minimum: float | None = None
    median: float | None = None
    maximum: float | None = None
    zeros: int | None = None
    unique: int | None = None
    average_length: float | None = None
    buckets: tuple[Bucket, ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Examples that hold no value."""
        return self.rows - self.present

    @property
    def all_counted(self) -> bool:
        """Whether `counts` holds every value that occurs."""
        return self.unique is not None and len(self.counts) >= self.unique

    def share_of(self, value: str) -> float | None:
        """Return the share of the rows that hold `value`, None when it was not counted."""
        if value not in self.counts:
            return 0.0 if self.all_counted else None
        return self.counts[value] / self.rows if self.rows else None


@dataclass(frozen=True)
class Column:
    """One column over the splits, in their order; a split that lacks it has no entry."""

    name: str
    position: int
    splits: Mapping[str, SplitColumn]

    @property
    def kind(self) -> str:
        """The type in words; both where the splits differ."""
        return " / ".join(dict.fromkeys(one.kind for one in self.splits.values()))

    @property
    def missing_share(self) -> float:
        """The greatest share of missing values of any split."""
        return max((one.missing / one.rows for one in self.splits.values() if one.rows), default=0)

    @property
    def difference(self) -> tuple[float, str]:
        """How far the first two splits lie apart, at least 0, and the sentence that says it."""
        pair = list(self.splits.items())[:2]
        if len(pair) < 2:
            return 0.0, ""
        (name, first), (_, second) = pair
        if first.mean is not None and second.mean is not None:
            return _mean_difference(second.mean - first.mean, first.std_dev or 0.0, name=name)
        return _share_difference(first, second)


def _mean_difference(moved: float, std_dev: float, *, name: str) -> tuple[float, str]:
    if not (math.isfinite(moved) and math.isfinite(std_dev) and std_dev > 0):
        return 0.0, ""
    deviations = abs(moved) / std_dev
    if deviations < 0.005:
        return deviations, "means agree"
    direction = "higher" if moved > 0 else "lower"
    return deviations, f"mean {deviations:.2f} standard deviations of {name} {direction}"


def _share_difference(first: SplitColumn, second: SplitColumn) -> tuple[float, str]:
    values = dict.fromkeys([*first.counts, *second.counts])
    apart = [
        (abs(left - right), value)
        for value in values
        if (left := first.share_of(value)) is not None
        and (right := second.share_of(value)) is not None
    ]
    if not apart:
        return 0.0, ""
    greatest, value = max(apart)
    if greatest < 0.0005:
        return greatest, "shares agree"
    shown = value if len(value) <= 40 else value[:39] + "…"
    return greatest, f"share of “{shown}” differs most, by {100 * greatest:.1f} points"


def read_columns(paths: Mapping[str, str | Path]) -> tuple[list[Column], dict[str, int], list[str]]:
    """Read one FeatureStats.pb a split.

    Args:
        paths: split to file, in the order in which the report shows them.

    Returns:
        The columns in the order of the files, rows by split, and a sentence for each file that
        could not be read: the report of a run that was refused early has to be written too.
    """
    found: dict[str, dict[str, SplitColumn]] = {}
    rows: dict[str, int] = {}
    unread: list[str] = []
    for split, path in paths.items():
        try:
            dataset = _read_dataset(Path(path))
        except (OSError, DecodeError) as error:
            unread.append(f"The statistics of the {split} split could not be read: {error}")
            continue
        rows[split] = int(dataset.num_examples)
        for feature in dataset.features:
            name = ".".join(feature.path.step) if feature.HasField("path") else feature.name
            found.setdefault(name, {})[split] = _split_column(feature, rows[split])
    columns = [Column(name, at, splits) for at, (name, splits) in enumerate(found.items())]
    return columns, rows, unread


def _read_dataset(path: Path) -> statistics_pb2.DatasetFeatureStatistics:
    statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(path.read_bytes())
    return (
        statistics.datasets[0] if statistics.datasets else statistics_pb2.DatasetFeatureStatistics()
    )


def _split_column(feature: statistics_pb2.FeatureNameStatistics, rows: int) -> SplitColumn:
    kind = KINDS.get(feature.type, "unknown")
    which = feature.WhichOneof("stats")
    if which is None:
        return SplitColumn(rows, 0, kind)
    stats = getattr(feature, which)
    present = _present(stats.common_stats, rows)
    if which == "num_stats":
        return _number_column(stats, rows, present=present, kind=kind)
    if which == "string_stats":
        kind = "category" if kind == "whole number" else kind
        # Of long texts no values are counted.
        unique = int(stats.unique) if stats.unique or not present else None
        return SplitColumn(
            rows, present, kind, unique=unique,
            average_length=stats.avg_length, counts=_counts(stats),
        )  # fmt: skip
    unique = int(stats.unique) if which == "bytes_stats" else None
    return SplitColumn(rows, present, kind, unique=unique)


def _present(common: statistics_pb2.CommonStatistics, rows: int) -> int:
    # TFDV counts an empty list as "not missing"; to a reader of the report it holds no value.
    if common.max_num_values == 1 and common.min_num_values == 0:
        return min(int(common.tot_num_values), rows)
    return min(int(common.num_non_missing), rows)


def _number_column(
    stats: statistics_pb2.NumericStatistics, rows: int, *, present: int, kind: str
) -> SplitColumn:
    if not present:
        return SplitColumn(rows, 0, kind)
    return SplitColumn(
        rows, present, kind,
        mean=stats.mean, std_dev=stats.std_dev, minimum=stats.min, median=stats.median,
        maximum=stats.max, zeros=int(stats.num_zeros), buckets=_buckets(stats.histograms),
    )  # fmt: skip


def _buckets(histograms: Sequence[statistics_pb2.Histogram]) -> tuple[Bucket, ...]:
    for histogram in histograms:
        if histogram.type == statistics_pb2.Histogram.STANDARD:
            edges = [(one.low_value, one.high_value, one.sample_count) for one in histogram.buckets]
            return tuple(one for one in edges if all(math.isfinite(number) for number in one))
    return ()


def _counts(stats: statistics_pb2.StringStatistics) -> dict[str, float]:
    # The rank histogram is the longer list; either may be there alone.
    ranked = {
        bucket.label: bucket.sample_count
        for bucket in stats.rank_histogram.buckets
        if bucket.low_rank == bucket.high_rank
    }
    top = {one.value: one.frequency for one in stats.top_values}
    both = {**ranked, **top}
    return dict(sorted(both.items(), key=lambda item: (-item[1], item[0])))


def read_schema(path: str | Path | None) -> dict[str, str]:
    """Return what the schema asks of each column, in words; empty when there is no schema."""
    schema = schema_pb2.Schema()
    try:
        text = Path(path).read_text(encoding="utf-8") if path else ""
        text_format.Parse(text, schema, allow_unknown_field=True)
    except (OSError, UnicodeDecodeError, text_format.ParseError):
        return {}
    domains = domains_of(schema)
    return {feature.name: expectation(feature, domains) for feature in schema.feature}
