"""The settings that fit the memory limit and cost the least time, the global batch unchanged.

In the order of what they cost: the whole share of the global batch at once; smaller micro-batches,
which cost next to nothing while they fill the cores; recomputation, about a third of a step;
micro-batches too small to fill the cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.errors import MemoryExceeded, SettingError
from trainer.memory import Prediction
from trainer.settings import TrainingSettings, parse_bytes

Predict = Callable[[int, bool], Prediction]
"""Takes micro_batch and recompute, returns the predicted peak."""

FILLS_CORES = 32
"""Rows of a micro-batch below which a step gets much slower; then recomputation is cheaper."""


@dataclass(frozen=True)
class Plan:
    """What is to be used.

    Attributes:
        micro_batch: examples a device holds at once.
        recompute: whether blocks recompute their activations.
        prediction: of the peak.
        limit_bytes: that it had to fit.
    """

    micro_batch: int
    recompute: bool
    prediction: Prediction
    limit_bytes: int


def plan(
    settings: TrainingSettings,
    *,
    rows: int,
    predict: Predict,
    free_bytes: Callable[[], int],
) -> Plan:
    """Return the cheapest choice whose predicted peak fits.

    More memory never gives a smaller micro-batch.

    Args:
        settings: micro_batch, recompute, memory_limit.
        rows: of a global batch that one device gets.
        predict: the peak of one choice; called as seldom as can be, since it traces the step.
        free_bytes: asked when memory_limit is ``auto``.

    Raises:
        SettingError: when nothing fits the limit that was set; it names the smallest that would
            do, and its terms.
        MemoryExceeded: likewise, when the limit is what the device has free.
    """
    search = _Search(settings, rows, predict, limit_bytes(settings, free_bytes))
    options = (False, True) if settings.recompute == "auto" else (bool(settings.recompute),)
    best: Plan | None = None
    for recompute in options:
        found = search.largest(recompute)
        if found is not None and recompute and best is not None:
            found = found if found.micro_batch > best.micro_batch else best
        best = found or best
        if best is not None and best.micro_batch >= min(FILLS_CORES, search.sizes[0]):
            return best
    if best is None:
        failure: SettingError | MemoryExceeded = _nothing_fits(settings, search.smallest())
        raise failure
    return best


def limit_bytes(settings: TrainingSettings, free_bytes: Callable[[], int]) -> int:
    """Return the bytes that the peak may reach."""
    if settings.memory_limit == "auto":
        return free_bytes()
    return parse_bytes(settings.memory_limit, name="training.memory_limit")


@dataclass
class _Search:
    """Asks for predictions, each once."""

    settings: TrainingSettings
    rows: int
    predict: Predict
    limit: int
    made: dict[tuple[int, bool], Plan] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """The micro-batches to choose from, largest first: equal parts of the rows."""
        if self.settings.micro_batch != "auto":
            return [min(int(self.settings.micro_batch), self.rows)]
        parts = (-(-self.rows // steps) for steps in range(1, self.rows + 1))
        return sorted(set(parts), reverse=True)

    def at(self, micro_batch: int, recompute: bool) -> Plan:
        key = (micro_batch, recompute)
        if key not in self.made:
            self.made[key] = Plan(*key, self.predict(*key), self.limit)
        return self.made[key]

    def peak(self, micro_batch: int, recompute: bool) -> int:
        return self.at(micro_batch, recompute).prediction.total_bytes

    def largest(self, recompute: bool) -> Plan | None:
        """Return the largest size that fits; recomputing none is larger than what fills cores.

        Memory grows nearly in proportion to the size, so a line through two sizes guesses the
        place, and the bracket around it shrinks from there.
        """
        sizes = self.sizes
        if recompute and self.settings.recompute == "auto" and len(sizes) > 1:
            sizes = [one for one in sizes if one <= FILLS_CORES]
        if self.peak(sizes[0], recompute) <= self.limit:
            return self.at(sizes[0], recompute)
        if self.peak(sizes[-1], recompute) > self.limit:
            return None
        high, low = 0, len(sizes) - 1
        while low - high > 1:
            middle = self._guess(sizes, high, low, recompute)
            if self.peak(sizes[middle], recompute) <= self.limit:
                low = middle
            else:
                high = middle
        return self.at(sizes[low], recompute)

    def _guess(self, sizes: list[int], high: int, low: int, recompute: bool) -> int:
        """Return a place between `high` (too large) and `low` (fits), by the line through both."""
        above, below = self.peak(sizes[high], recompute), self.peak(sizes[low], recompute)
        share = (self.limit - below) / max(above - below, 1)
        size = sizes[low] + share * (sizes[high] - sizes[low])
        place = next(place for place, one in enumerate(sizes) if one <= size)
        return min(max(place, high + 1), low - 1)

    def smallest(self) -> Plan:
        """Return what needs least of all that was tried."""
        return min(self.made.values(), key=lambda one: one.prediction.total_bytes)


def _nothing_fits(settings: TrainingSettings, smallest: Plan) -> SettingError | MemoryExceeded:
    """Return the error: of the setting, or of the machine where that decided."""
    terms = ", ".join(
        f"{name} {describe_bytes(size)}" for name, size in smallest.prediction.terms.items()
    )
    needed = describe_bytes(smallest.prediction.total_bytes)
    kind = MemoryExceeded if settings.memory_limit == "auto" else SettingError
    return kind(
        f"nothing fits {describe_bytes(smallest.limit_bytes)}; the smallest needs {needed} "
        f"(micro_batch {smallest.micro_batch}, recompute {str(smallest.recompute).lower()}: "
        f"{terms})",
        where="training.memory_limit", holds=f'"{settings.memory_limit}"',
        right=f'"{needed}" or more, or a smaller model',
    )  # fmt: skip


def describe_bytes(size: int) -> str:
    """Return a size that `parse_bytes` reads back as at least this many bytes: ``12MiB``."""
    for unit, worth in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= 10 * worth:
            return f"{-(-size // worth)}{unit}"
    return f"{-(-size // 2**10)}KiB"
