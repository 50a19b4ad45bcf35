"""Exact counts of the distinct values of a column, mergeable by shard.

TFDV's in-memory route counts top values with a sketch that is wrong beyond 1,024 distinct values;
its Beam route is exact, at the price of one Python tuple a value and batch. Here Arrow counts each
batch, and the counts of batches are added up by Arrow too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

COMPACT_AT = 1 << 14
"""Pairs of value and count that are kept before they are added up."""


@dataclass
class ValueCounts:
    """How often each value of a column occurs; missing values and NaN are not counted.

    Attributes:
        limit: a column with more distinct values than this is given up; 0: no limit.
        given_up: whether it was; no value is then held.
        rows: values that were counted or passed by.
        share: of distinct values among all, when they became too many; 0: they did not.
    """

    limit: int = 0
    given_up: bool = False
    rows: int = 0
    share: float = 0.0
    _parts: list[pa.Table] = field(default_factory=list)
    _pairs: int = 0
    _distinct: int = 0

    def add(self, values: pa.Array) -> None:
        """Count the values of one batch: numbers or bytes [N]."""
        self.rows += len(values) - values.null_count
        if self.given_up or not len(values):
            return
        if pa.types.is_floating(values.type):
            values = values.filter(pc.is_finite(values))
        counted = values.drop_null().value_counts()
        self._append(pa.table({"value": counted.field("values"), "count": counted.field("counts")}))

    def give_up(self) -> None:
        """Count no more, and forget what was counted."""
        self.given_up = True
        self._parts, self._pairs, self._distinct = [], 0, 0

    def merge(self, other: ValueCounts) -> None:
        """Add the counts of another shard."""
        self.rows += other.rows
        if other.given_up:
            self.share = max(self.share, other.share)
            self.give_up()
        for part in other._parts:
            self._append(part)

    def estimate(self) -> int:
        """Return about how many values differ of a column that had too many; 0 where none is known.

        As if the later ones went on as the first did, so it is near where nearly all differ.
        """
        return round(self.share * self.rows)

    def table(self) -> pa.Table:
        """Return columns ``value`` and ``count``, most frequent first, ties by greater value."""
        self._compact()
        if not self._parts:
            return pa.table({"value": pa.array([], pa.int64()), "count": pa.array([], pa.int64())})
        return self._parts[0].sort_by([("count", "descending"), ("value", "descending")])

    def _append(self, part: pa.Table) -> None:
        if self.given_up or not part.num_rows:
            return
        self._parts.append(part)
        self._pairs += part.num_rows
        if self._pairs > max(COMPACT_AT, 2 * self._distinct) or 0 < self.limit < part.num_rows:
            self._compact()

    def _compact(self) -> None:
        if len(self._parts) > 1:
            whole = pa.concat_tables(self._parts)
            added = whole.group_by("value").aggregate([("count", "sum")])
            self._parts = [
                pa.table({"value": added.column("value"), "count": added.column("count_sum")})
            ]
        self._pairs = self._distinct = sum(part.num_rows for part in self._parts)
        if 0 < self.limit < self._distinct:
            self.given_up, self.share = True, min(self._distinct / max(self.rows, 1), 1.0)
        if self.given_up:
            self._parts = []
