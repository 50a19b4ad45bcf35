"""How far new rows lie from those that a model learned from, column by column.

Counted batch by batch in memory that does not grow with the rows. The measures are TFDV's: of
texts the greatest difference of any value's share (L-infinity), of numbers the Jensen-Shannon
divergence of their shares in buckets, in bits. Missing values are left out, as there. The shares of
the train split are counted anew: TFDV's histograms are made of quantiles, which say of a number
with few different values on which side of an edge they lie by chance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import features
from trainer.settings import Features

FILE = "shares.json"
THRESHOLD = 0.1
"""Where the configuration says none."""
MOST_CUTS, MOST_TEXTS = 10, 1000
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
        counted = pc.value_counts(texts)
        values = counted.field("values").to_numpy(zero_copy_only=False)
        for value, count in zip(values, counted.field("counts").to_pylist(), strict=True):
            key = value if value in self.shares else OTHERS
            self.counts[key] = self.counts.get(key, 0) + count

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
    """A column of numbers: train's shares between cuts, and counts there here."""

    cuts: np.ndarray
    shares: np.ndarray
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.shares))

    def add(self, values: pa.Array) -> None:
        """Count a batch; what lies outside train's values counts in the outer buckets."""
        numbers = np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), math.nan))
        self.counts += _counts(self.cuts, numbers)

    def moved(self, column: str, threshold: float) -> Moved | None:
        """Return how it moved; None: within the threshold and what chance may do."""
        rows = self.counts.sum()
        if not rows:
            return None
        found = divergence(self.shares, self.counts / rows)
        # What rows of the same kind show on average is (buckets - 1) / (8 ln 2 rows) bits.
        if found <= threshold + len(self.counts) / rows:
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

    def __init__(self, shares: Path) -> None:
        """Read the shares that `write` wrote."""
        found = json.loads(shares.read_text(encoding="utf-8"))
        self.columns: dict[str, Texts | Numbers] = {}
        for name, one in found["texts"].items():
            self.columns[name] = Texts({text.encode(): share for text, share in one.items()})
        for name, one in found["numbers"].items():
            self.columns[name] = Numbers(np.asarray(one["cuts"]), np.asarray(one["shares"]))

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


def write(path: Path, folder: Path, described: Features) -> None:
    """Write the shares of the train split's values, of the columns that a model reads.

    Args:
        path: the file.
        folder: of the train split's column files.
        described: the columns.
    """
    numbers, texts = {}, {}
    for one in described.numbers:
        values, present = features.read_values(folder, one.name)
        cuts = np.asarray(one.edges[1:])
        if len(cuts) > MOST_CUTS:
            cuts = cuts[np.linspace(0, len(cuts) - 1, MOST_CUTS).astype(int)]
        counts = _counts(cuts, np.asarray(values, np.float64)[np.asarray(present)])
        if counts.sum():
            numbers[one.name] = {"cuts": cuts.tolist(), "shares": (counts / counts.sum()).tolist()}
    for name in dict.fromkeys(one.column for one in described.categories):
        distinct, counts = features.text_counts(folder, name)
        order = np.argsort(-counts, kind="stable")[:MOST_TEXTS]
        texts[name] = {distinct[at]: float(counts[at] / counts.sum()) for at in order}
    path.write_text(json.dumps({"numbers": numbers, "texts": texts}), encoding="utf-8")


def _counts(cuts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return how many numbers lie below the first cut, from each to the next, and from the last."""
    places = np.searchsorted(cuts, numbers[np.isfinite(numbers)], side="right")
    return np.bincount(places, minlength=len(cuts) + 1).astype(np.float64)
