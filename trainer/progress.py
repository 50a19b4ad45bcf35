"""How far a training is: what a checkpoint keeps beside the weights, rates, and hopeless steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import NotFinite
from trainer.loss_scale import FLOOR
from trainer.step import Outcome

REPORT_SECONDS = 1.0
HOPELESS_SKIPS = 5
"""Steps skipped in a row that no smaller loss scale can mend, after which training stops."""


@dataclass
class Progress:
    """Where training stands, as it is kept in a checkpoint beside the weights.

    Attributes:
        step: steps done.
        epoch_loss, epoch_examples: sums over the epoch so far.
        history: of the evaluations.
        rises: evaluations in a row whose loss rose.
        best_loss, best_step: the lowest loss of an evaluation, and its step; 0: none yet.
        stopped_early: whether the early stop ended it.
        seconds, examples: spent in steps, the first of each process left out.
    """

    step: int = 0
    epoch_loss: float = 0.0
    epoch_examples: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    rises: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    stopped_early: bool = False
    seconds: float = 0.0
    examples: float = 0.0

    def note_evaluation(self, entry: dict[str, Any], *, after_rises: int) -> None:
        """Take in an evaluation; one without a finite loss is neither a rise nor the best."""
        before = [one["loss"] for one in self.history if _is_finite(one["loss"])]
        self.history.append(entry)
        loss = entry["loss"]
        if not _is_finite(loss):
            return
        self.rises = self.rises + 1 if before and loss > before[-1] else 0
        self.stopped_early = after_rises > 0 and self.rises >= after_rises
        if loss < self.best_loss:
            self.best_loss, self.best_step = loss, self.step

    @property
    def best_epoch(self) -> int:
        """The epoch of the best evaluation, from 1; 0: none yet."""
        epochs = (one["epoch"] for one in self.history if one["step"] == self.best_step)
        return next(epochs, 0)

    def early_stop(self, total_steps: int) -> str:
        """Return in one sentence what the early stop did, out of `total_steps`."""
        epoch = self.history[-1]["epoch"]
        is_early = self.step < total_steps
        ended = f"stopped early after epoch {epoch}" if is_early else f"epoch {epoch} was the last"
        rose = "at one evaluation" if self.rises == 1 else f"{self.rises} evaluations in a row"
        return f"{ended}: the loss rose {rose}; the weights of epoch {self.best_epoch} are kept"


def _is_finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


class Recent:
    """Sums over the steps since the last report."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew, with the clock at now."""
        self.started = time.monotonic()
        self.loss, self.examples, self.updates = 0.0, 0.0, 0

    def add(self, outcome: Outcome) -> None:
        """Take in one step."""
        self.loss += outcome.loss
        self.examples += outcome.examples
        self.updates += int(outcome.is_finite)

    def is_due(self) -> bool:
        """Whether it is time for a report."""
        return time.monotonic() - self.started >= REPORT_SECONDS

    def take(self) -> dict[str, float]:
        """Return loss by example and rates, and begin anew."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        facts = {
            "loss": self.loss / max(self.examples, 1.0),
            "examples_per_second": self.examples / seconds,
            "updates_per_second": self.updates / seconds,
        }
        self.restart()
        return facts


class Skips:
    """Watches for steps that are skipped in a row with nothing left that could mend it.

    Attributes:
        is_scaled: whether there is a loss scale that moves.
        hopeless: such steps in a row so far.
    """

    def __init__(self, *, is_scaled: bool) -> None:
        self.is_scaled = is_scaled
        self.hopeless = 0

    def check(
        self, outcome: Outcome, step: int, *, is_last: bool, columns: Callable[[], list[str]]
    ) -> None:
        """Take in one step.

        A smaller loss scale mends gradients that overflow float16, not a loss that is not finite.

        Args:
            outcome: of the step, as Python numbers.
            step: its number, from 1.
            is_last: whether training would end here.
            columns: names of the columns of the batch that hold NaN or infinity.

        Raises:
            NotFinite: after `HOPELESS_SKIPS`, or when training would end with no finite loss or
                with no step applied.
        """
        can_mend = outcome.loss_scale > FLOOR and math.isfinite(outcome.loss)
        self.hopeless = 0 if outcome.is_finite or can_mend else self.hopeless + 1
        has_no_end = is_last and (not math.isfinite(outcome.loss) or outcome.skipped_steps == step)
        if self.hopeless >= HOPELESS_SKIPS or has_no_end:
            failure: NotFinite = not_finite(
                outcome, step, is_scaled=self.is_scaled, columns=columns()
            )
            raise failure


def not_finite(outcome: Outcome, step: int, *, is_scaled: bool, columns: list[str]) -> NotFinite:
    """Return the error that says what was not finite, where, and what to do about it."""
    if not math.isfinite(outcome.loss):
        what = f"loss is not finite at step {step}"
    else:
        kind = "NaN, not overflow," if math.isnan(outcome.gradient_norm) else "not finite"
        what = f"gradients are {kind} at step {step}"
    what += f"; {outcome.successive_skips} successive updates skipped"
    if is_scaled and outcome.loss_scale <= FLOOR:
        what += f", loss scale at its floor ({FLOOR})"
    if columns:
        what += f"; these columns hold NaN or infinity: {', '.join(columns)}"
    return NotFinite(
        what,
        where="training",
        holds=f"loss {outcome.loss}",
        right="a lower training.learning_rate"
        + (", or training.precision = float32" if is_scaled else ""),
    )  # fmt: skip
