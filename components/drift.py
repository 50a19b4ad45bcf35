"""How far new rows lie from those that a model learned from, column by column.

Counted batch by batch in memory that does not grow with the rows. The measures are TFDV's: of
texts the greatest difference of any value's share (L-infinity), of numbers the Jensen-Shannon
divergence of their shares in train's buckets, in bits. Missing values are left out, as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

THRESHOLD = 0.1
"""Where the configuration says none."""
OTHERS = None


@dataclass(frozen=True)
class Moved:
    """A column whose values are spread otherwise.

    Attributes:
        column: its name.
        measure: ``L-infinity`` or ``Jensen-Shannon divergence``.
        value: of the measure.
        what: the value whose share moved most, with both shares; empty for numbers.
    """

    column: str
    measure: str
    value: float
    what: str = ""


@dataclass
class Texts:
    """A column of texts: train's shares of its frequent values, and counts of them here."""

    shares: Mapping[bytes, float]
    counts: dict[bytes | None, int] = field(default_factory=dict)

    def add(self, values: pa.Array) -> None:
        """Count a batch."""
        texts = values.cast(pa.string()).cast(pa.binary()).drop_null()
        for one in pc.value_counts(texts).to_pylist():
            key = one["values"] if one["values"] in self.shares else OTHERS
            self.counts[key] = self.counts.get(key, 0) + one["counts"]

    def moved(self, column: str, threshold: float) -> Moved | None:
        """Return how it moved; None: within the threshold and what chance may do."""
        rows = sum(self.counts.values())
        if not rows:
            return None
        others = max(0.0, 1.0 - sum(self.shares.values()))
        gaps = {key: abs(self.counts.get(key, 0) / rows - share)
                for key, share in {**self.shares, OTHERS: others}.items()}  # fmt: skip
        key = max(gaps, key=lambda one: gaps[one])
        # Two standard deviations of a share of half the rows.
        if gaps[key] <= threshold + 1 / math.sqrt(rows):
            return None
        before, now = self.shares.get(key, others), self.counts.get(key, 0) / rows
        name = "other values" if key is OTHERS else key.decode("utf-8", "replace")
        return Moved(column, "L-infinity", gaps[key], f"{name} {before:.0%} -> {now:.0%}")


@dataclass
class Numbers:
    """A column of numbers: train's shares in buckets of two kinds, and counts in them here."""

    buckets: list[tuple[np.ndarray, np.ndarray]]
    counts: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [np.zeros(len(shares)) for _, shares in self.buckets]

    def add(self, values: pa.Array) -> None:
        """Count a batch; what lies outside train's values counts in the outer buckets."""
        numbers = np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), math.nan))
        numbers = numbers[np.isfinite(numbers)]
        for (edges, shares), counts in zip(self.buckets, self.counts, strict=True):
            places = np.searchsorted(edges[1:-1], numbers, side="right")
            counts += np.bincount(places, minlength=len(shares))

    def moved(self, column: str, threshold: float) -> Moved | None:
        """Return how it moved; None: within the threshold and what chance may do."""
        rows = self.counts[0].sum() if self.counts else 0
        if not rows:
            return None
        found = max(
            divergence(shares, counts / rows)
            for (_, shares), counts in zip(self.buckets, self.counts, strict=True)
        )
        most = max(len(shares) for _, shares in self.buckets)
        # What rows of the same kind show on average is (buckets - 1) / (8 ln 2 rows) bits.
        if found <= threshold + most / rows:
            return None
        return Moved(column, "Jensen-Shannon divergence", found)


def divergence(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Jensen-Shannon divergence of two distributions, in bits, 0 to 1."""
    middle = (a + b) / 2

    def half(one: np.ndarray) -> float:
        there = one > 0
        return float(np.sum(one[there] * np.log2(one[there] / middle[there])))

    return max(0.0, (half(a) + half(b)) / 2)


class Drift:
    """Rows as they come, held against a model's training statistics."""

    def __init__(self, statistics: Path, columns: list[Mapping[str, Any]]) -> None:
        """Read the statistics.

        Args:
            statistics: TFDV's, of the train split, as a file.
            columns: of the model: ``column`` and ``kind``.
        """
        known = _features(statistics)
        self.columns: dict[str, Texts | Numbers] = {}
        for one in columns:
            feature = known.get(one["column"])
            found = _column(feature, one["kind"]) if feature is not None else None
            if found is not None:
                self.columns[one["column"]] = found

    def add(self, rows: pa.RecordBatch) -> None:
        """Count a batch; a column that is not there, or holds something else, is passed over."""
        for name, one in self.columns.items():
            at = rows.schema.get_field_index(name)
            if at < 0:
                continue
            values = rows.column(at)
            is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
            if isinstance(one, Texts) or is_number:
                one.add(values)

    def moved(self, threshold: float) -> list[Moved]:
        """Return the columns that moved by more than a threshold, the farthest first."""
        found = [one.moved(name, threshold) for name, one in self.columns.items()]
        return sorted((one for one in found if one), key=lambda one: -one.value)


def _features(path: Path) -> dict[str, Any]:
    from tensorflow_metadata.proto.v0 import statistics_pb2

    parsed = statistics_pb2.DatasetFeatureStatisticsList.FromString(path.read_bytes())
    return {one.name or ".".join(one.path.step): one for one in parsed.datasets[0].features}


def _column(feature: Any, kind: str) -> Texts | Numbers | None:
    if feature.HasField("string_stats") and kind == "string":
        whole = feature.string_stats.common_stats.num_non_missing
        buckets = feature.string_stats.rank_histogram.buckets
        shares = {one.label.encode(): one.sample_count / whole for one in buckets if whole}
        return Texts(shares) if shares else None
    if feature.HasField("num_stats") and kind != "string":
        buckets = [found for one in feature.num_stats.histograms if (found := _buckets(one))]
        return Numbers(buckets) if buckets else None
    return None


def _buckets(histogram: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return edges and shares; a bucket of no width counts to the one that begins there."""
    edges, counts = [], []
    carried = 0.0
    for one in histogram.buckets:
        if one.high_value <= one.low_value:
            carried += one.sample_count
            continue
        edges = edges or [one.low_value]
        edges.append(one.high_value)
        counts.append(one.sample_count + carried)
        carried = 0.0
    if not counts or sum(counts) + carried <= 0:
        return None
    counts[-1] += carried
    return np.asarray(edges), np.asarray(counts) / sum(counts)
