"""The techniques that fit the memory limit and cost the least time, the global batch unchanged.

All choices stand in one row, from the fastest to the slowest, and the first that fits is taken:

1. micro-batches, from the whole share of the global batch down to one that still fills the cores:
   that costs next to nothing;
2. at that size, levers: chunked loss, chunked attention, recomputation of one block after another,
   sharding over the workers, in the order of what they cost together;
3. with what needs least memory of these, micro-batches too small to fill the cores.

So more memory never gives a smaller micro-batch, nor a slower plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from trainer.errors import MemoryExceeded, SettingError
from trainer.memory import Prediction
from trainer.settings import Techniques, TrainingSettings, parse_bytes

Predict = Callable[[Techniques], Prediction]
"""Returns the predicted peak of a training with these techniques."""

FILLS_CORES = 512
"""Tokens of a micro-batch below which a step gets much slower on a CPU."""
FILLS_GPU = 8192
"""The same on a GPU."""
RECOMPUTE_COST = 1 / 3
"""Of a step's time: each forward pass runs twice, and a backward pass is worth two of them."""
CHUNKED_ATTENTION_COST = 0.3
"""Of the time of attention itself: the scores are made again in the backward pass."""
TOKEN_LOSS_COST = 0.02
SHARD_COST = {"none": 0.0, "optimizer": 0.01, "gradients": 0.05, "parameters": 0.15}
"""Of a step's time, all workers on one machine: the weights' way between them."""
INTERPOLATION = 1.05
"""How far above the limit a guess, made of two predictions, rules a choice out."""


@dataclass(frozen=True)
class Shape:
    """What decides which techniques there are to choose from, and what they cost.

    Attributes:
        rows: of a global batch that one device gets.
        tokens: of a row.
        width: numbers a token.
        blocks: how many recomputation may apply to.
        workers: processes that share the global batch.
        has_attention: whether the model is one of ours, whose attention can be chunked.
        has_token_loss: whether it is a language model, whose loss can be chunked.
        is_gpu: whether it is trained on one.
    """

    rows: int
    tokens: int
    width: int
    blocks: int
    workers: int = 1
    has_attention: bool = True
    has_token_loss: bool = False
    is_gpu: bool = False

    @property
    def attention_share(self) -> float:
        """Share of a step's multiplications that is attention: 2 S of 12 W + 2 S a token."""
        return self.tokens / (self.tokens + 6 * self.width) if self.has_attention else 0.0

    @property
    def fills_cores(self) -> int:
        """Rows of the smallest micro-batch that fills the cores."""
        return max(1, (FILLS_GPU if self.is_gpu else FILLS_CORES) // max(self.tokens, 1))

    def cost(self, techniques: Techniques) -> float:
        """Return the predicted time of a step, 1 being the fastest there is."""
        passes = RECOMPUTE_COST * techniques.recompute / max(self.blocks, 1)
        if techniques.attention == "chunked":
            passes += CHUNKED_ATTENTION_COST * self.attention_share
        if techniques.token_loss == "chunked":
            passes += TOKEN_LOSS_COST
        passes += SHARD_COST[techniques.shard]
        idle = min(self.fills_cores, self.rows) / min(techniques.micro_batch, self.fills_cores)
        return (1 + passes) * max(1.0, idle) ** 0.5


@dataclass(frozen=True)
class Tried:
    """One choice that was looked at.

    Attributes:
        techniques: the choice.
        prediction: of its peak.
        cost: predicted time of a step, 1 being the fastest there is.
        fits: whether the peak is within the limit.
    """

    techniques: Techniques
    prediction: Prediction
    cost: float
    fits: bool


@dataclass(frozen=True)
class Plan:
    """What was chosen, and what it was chosen from.

    Attributes:
        techniques: the choice.
        prediction: of its peak.
        limit_bytes: that it had to fit.
        cost: predicted time of a step, 1 being the fastest there is.
        tried: every choice that was looked at, the fastest first.
    """

    techniques: Techniques
    prediction: Prediction
    limit_bytes: int
    cost: float
    tried: tuple[Tried, ...]

    @property
    def micro_batch(self) -> int:
        """Examples that a device holds at once."""
        return self.techniques.micro_batch


def plan(
    settings: TrainingSettings,
    shape: Shape,
    *,
    predict: Predict,
    free_bytes: Callable[[], int],
) -> Plan:
    """Return the fastest choice whose predicted peak fits.

    Args:
        settings: what is left to choose: micro_batch, recompute, attention, token_loss, shard.
        shape: of the model and the batch.
        predict: called as seldom as can be, since it traces the step.
        free_bytes: asked when memory_limit is ``auto``.

    Raises:
        SettingError: when nothing fits the limit that was set; it names the smallest that would
            do, and its terms.
        MemoryExceeded: when nothing fits what is free; the same.
    """
    search = _Search(settings, shape, predict, limit_bytes(settings, free_bytes))
    found = search.larger() or search.levers() or search.smaller()
    if found is None:
        failure: SettingError | MemoryExceeded = _nothing_fits(settings, search)
        raise failure
    return Plan(
        found.techniques, found.prediction, search.limit, found.cost, search.tried_in_order()
    )


def limit_bytes(settings: TrainingSettings, free_bytes: Callable[[], int]) -> int:
    """Return the bytes that the peak may reach."""
    if settings.memory_limit == "auto":
        return free_bytes()
    return parse_bytes(settings.memory_limit, name="training.memory_limit")


def fastest(settings: TrainingSettings, shape: Shape) -> Techniques:
    """Return the choice that needs most memory: what ``auto`` means where memory is no matter."""
    search = _Search(settings, shape, lambda _: Prediction({}), 0)
    return replace(search.lever_sets[0], micro_batch=search.sizes[0])


@dataclass
class _Search:
    """Goes along the row of choices, asking for as few predictions as it can."""

    settings: TrainingSettings
    shape: Shape
    predict: Predict
    limit: int
    made: dict[Techniques, Tried] = field(default_factory=dict)

    # What there is to choose from

    @cached_property
    def sizes(self) -> list[int]:
        """The micro-batches, largest first: equal parts of the rows."""
        rows = self.shape.rows
        if self.settings.micro_batch != "auto":
            return [min(int(self.settings.micro_batch), rows)]
        return sorted({-(-rows // steps) for steps in range(1, rows + 1)}, reverse=True)

    @cached_property
    def filling(self) -> int:
        """Place in `sizes` of the smallest that fills the cores."""
        full = [one for one in self.sizes if one >= self.shape.fills_cores]
        return max(len(full) - 1, 0)

    @cached_property
    def lever_sets(self) -> list[Techniques]:
        """The levers at the size that fills the cores, the fastest first."""
        size = self.sizes[self.filling]
        sets = [
            Techniques(size, *one, offload=self.settings.offload)
            for one in itertools.product(
                self._recompute(), self._attention(), self._token_loss(), self._shard()
            )
        ]
        return sorted(sets, key=self.shape.cost)

    def _recompute(self) -> Sequence[int]:
        blocks, chosen = self.shape.blocks, self.settings.recompute
        return range(blocks + 1) if chosen == "auto" else [blocks if chosen else 0]

    def _attention(self) -> Sequence[str]:
        chosen = self.settings.attention
        if not self.shape.has_attention:
            return ["plain"]
        return ["plain", "chunked"] if chosen == "auto" else [chosen]

    def _token_loss(self) -> Sequence[str]:
        chosen = self.settings.token_loss
        if not self.shape.has_token_loss:
            return ["plain"]
        return ["plain", "chunked"] if chosen == "auto" else [chosen]

    def _shard(self) -> Sequence[str]:
        if self.settings.shard != "auto":
            return [self.settings.shard]
        return list(SHARD_COST) if self.shape.workers > 1 else ["none"]

    # What is found

    def at(self, techniques: Techniques) -> Tried:
        """Return a choice with its prediction, made once."""
        if techniques not in self.made:
            prediction = self.predict(techniques)
            self.made[techniques] = Tried(
                techniques,
                prediction,
                self.shape.cost(techniques),
                prediction.total_bytes <= self.limit,
            )
        return self.made[techniques]

    def larger(self) -> Tried | None:
        """Return the largest micro-batch that fits without levers, if it fills the cores."""
        return self._largest(self.lever_sets[0], self.sizes[: self.filling + 1])

    def levers(self) -> Tried | None:
        """Return the fastest set of levers that fits."""
        return next((self.at(one) for one in self._promising() if self.at(one).fits), None)

    def smaller(self) -> Tried | None:
        """Return the largest micro-batch that fits with what needs least memory."""
        return self._largest(self.smallest().techniques, self.sizes[self.filling + 1 :])

    def smallest(self) -> Tried:
        """Return what needs least of all that was tried."""
        return min(self.made.values(), key=lambda one: one.prediction.total_bytes)

    def tried_in_order(self) -> tuple[Tried, ...]:
        """Return everything that was tried, the fastest first."""
        return tuple(
            sorted(self.made.values(), key=lambda one: (one.cost, -one.techniques.micro_batch))
        )

    def _promising(self) -> Iterator[Techniques]:
        """Yield the sets of levers that a line through both ends of `recompute` lets hope for."""
        least, most = min(self._recompute()), max(self._recompute())
        for one in self.lever_sets[1:]:
            low, high = (
                self.at(replace(one, recompute=blocks)).prediction.total_bytes
                for blocks in (least, most)
            )
            share = (one.recompute - least) / max(most - least, 1)
            if low + share * (high - low) <= INTERPOLATION * self.limit:
                yield one

    def _peak(self, techniques: Techniques, size: int) -> int:
        return self.at(replace(techniques, micro_batch=size)).prediction.total_bytes

    def _largest(self, techniques: Techniques, sizes: Sequence[int]) -> Tried | None:
        """Return the largest of `sizes` that fits.

        Memory grows nearly in proportion to the size, so a line through two sizes guesses the
        place, and the bracket around it shrinks from there.
        """
        if not sizes:
            return None
        if self._peak(techniques, sizes[0]) <= self.limit:
            return self.at(replace(techniques, micro_batch=sizes[0]))
        if self._peak(techniques, sizes[-1]) > self.limit:
            return None
        high, low = 0, len(sizes) - 1
        while low - high > 1:
            middle = self._guess(techniques, sizes, high, low)
            if self._peak(techniques, sizes[middle]) <= self.limit:
                low = middle
            else:
                high = middle
        return self.at(replace(techniques, micro_batch=sizes[low]))

    def _guess(self, techniques: Techniques, sizes: Sequence[int], high: int, low: int) -> int:
        """Return a place between `high` (too large) and `low` (fits), by the line through both."""
        above, below = (self._peak(techniques, sizes[place]) for place in (high, low))
        share = (self.limit - below) / max(above - below, 1)
        size = sizes[low] + share * (sizes[high] - sizes[low])
        place = next(place for place, one in enumerate(sizes) if one <= size)
        return min(max(place, high + 1), low - 1)


def _nothing_fits(settings: TrainingSettings, search: _Search) -> SettingError | MemoryExceeded:
    """Return the error: of the setting, or of the machine where that decided."""
    smallest = search.smallest()
    terms = ", ".join(
        f"{name} {describe_bytes(size)}" for name, size in smallest.prediction.terms.items()
    )
    needed = describe_bytes(smallest.prediction.total_bytes)
    kind = MemoryExceeded if settings.memory_limit == "auto" else SettingError
    return kind(
        f"nothing fits {describe_bytes(search.limit)}; the smallest needs {needed} "
        f"({describe(smallest.techniques)}: {terms})",
        where="training.memory_limit", holds=f'"{settings.memory_limit}"',
        right=f'"{needed}" or more, or a smaller model',
    )  # fmt: skip


def describe(techniques: Techniques) -> str:
    """Return the settings that a choice stands for: those that save nothing are left out."""
    said = [f"micro_batch {techniques.micro_batch}"]
    if techniques.recompute:
        said.append(f"recompute {techniques.recompute} blocks")
    if techniques.attention == "chunked":
        said.append("attention chunked")
    if techniques.token_loss == "chunked":
        said.append("token_loss chunked")
    if techniques.shard != "none":
        said.append(f"shard {techniques.shard}")
    if techniques.offload != "none":
        said.append(f"offload {techniques.offload}")
    return ", ".join(said)


def describe_bytes(size: int) -> str:
    """Return a size that `parse_bytes` reads back as at least this many bytes: ``12MiB``."""
    for unit, worth in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= 10 * worth:
            return f"{-(-size // worth)}{unit}"
    return f"{-(-size // 2**10)}KiB"
