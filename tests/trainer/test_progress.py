"""Early stop, the best evaluation, and steps that nothing can mend."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainer.errors import NotFinite
from trainer.progress import HOPELESS_SKIPS, Progress, Recent, Skips
from trainer.step import Outcome


def _progress(losses: list[float | None], *, after_rises: int) -> Progress:
    progress = Progress()
    for step, loss in enumerate(losses, 1):
        progress.step = step
        progress.note_evaluation({"step": step, "loss": loss}, after_rises=after_rises)
        if progress.stopped_early:
            break
    return progress


@pytest.mark.parametrize(
    ("losses", "after_rises", "stops_at"),
    [
        ([5.0, 4.0, 4.1, 4.2, 4.3, 4.4], 3, 5),
        ([5.0, 5.1, 5.0, 5.1, 5.2, 5.1], 3, 0),
        ([5.0, 5.0, 5.0, 5.0], 1, 0),
        ([1.0, 2.0, 3.0], 0, 0),
        ([1.0, None, 2.0, math.nan, 3.0], 2, 5),
    ],
)
def test_it_stops_after_that_many_rises_in_a_row(
    losses: list[float | None], after_rises: int, stops_at: int
) -> None:
    progress = _progress(losses, after_rises=after_rises)
    assert progress.stopped_early == bool(stops_at)
    if stops_at:
        assert progress.step == stops_at


@pytest.mark.parametrize(
    ("after_rises", "total_steps", "said"),
    [
        (3, 90, "stopped early after epoch 5: the loss rose 3 evaluations in a row; "
                "the weights of epoch 2 are kept"),
        (1, 90, "stopped early after epoch 3: the loss rose at one evaluation; "
                "the weights of epoch 2 are kept"),
        (3, 50, "epoch 5 was the last: the loss rose 3 evaluations in a row; "
                "the weights of epoch 2 are kept"),
    ],
)  # fmt: skip
def test_an_early_stop_says_after_which_epoch_and_which_is_kept(
    after_rises: int, total_steps: int, said: str
) -> None:
    progress = Progress()
    for epoch, loss in enumerate([5.0, 4.0, 4.1, 4.2, 4.3], 1):
        progress.step = 10 * epoch
        entry = {"step": progress.step, "epoch": epoch, "loss": loss}
        progress.note_evaluation(entry, after_rises=after_rises)
        if progress.stopped_early:
            break
    assert progress.early_stop(total_steps) == said


def test_there_is_no_best_epoch_before_an_evaluation() -> None:
    assert Progress().best_epoch == 0


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, None])
def test_a_loss_that_is_not_finite_is_never_the_best(strange: float | None) -> None:
    progress = _progress([strange, 0.5, strange, 0.3, 0.4, strange], after_rises=0)
    assert (progress.best_loss, progress.best_step) == (0.3, 4)


def _outcome(**fields: Any) -> Outcome:
    values = {
        "loss": 1.0, "examples": 2.0, "gradient_norm": math.inf, "learning_rate": 0.1,
        "loss_scale": 1.0, "is_finite": False, "skipped_steps": 1, "successive_skips": 1,
    }  # fmt: skip
    return Outcome(**{**values, **fields})


def _check(skips: Skips, outcome: Outcome, *, step: int = 3, is_last: bool = False) -> None:
    skips.check(outcome, step, is_last=is_last, columns=list)


def test_skips_at_the_floor_of_the_scale_end_training() -> None:
    # cases/training.md, training-3
    skips = Skips(is_scaled=True)
    for _ in range(20):
        _check(skips, _outcome(loss_scale=2.0))
    for _ in range(HOPELESS_SKIPS - 1):
        _check(skips, _outcome())
    with pytest.raises(NotFinite, match=r"25 successive updates skipped, loss scale at its floor"):
        _check(skips, _outcome(successive_skips=25))


def test_a_good_step_between_them_begins_the_count_anew() -> None:
    skips = Skips(is_scaled=False)
    for _ in range(4):
        for _ in range(HOPELESS_SKIPS - 1):
            _check(skips, _outcome())
        _check(skips, _outcome(is_finite=True, gradient_norm=1.0))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_not_mended_by_a_smaller_scale(loss: float) -> None:
    # training-12, its second way; tracking-1
    skips = Skips(is_scaled=True)
    for _ in range(HOPELESS_SKIPS - 1):
        _check(skips, _outcome(loss=loss, loss_scale=2.0**15))
    with pytest.raises(NotFinite, match="loss is not finite at step 9") as caught:
        skips.check(
            _outcome(loss=loss, loss_scale=2.0**11), 9, is_last=False, columns=lambda: ["v"]
        )
    assert "columns hold NaN or infinity: v" in caught.value.what
    assert caught.value.holds == f"loss {loss}"


def test_gradients_that_are_nan_are_told_from_an_overflow() -> None:
    skips = Skips(is_scaled=False)
    skips.hopeless = HOPELESS_SKIPS - 1
    with pytest.raises(NotFinite, match="gradients are NaN, not overflow"):
        _check(skips, _outcome(gradient_norm=math.nan))


def test_training_does_not_end_well_without_one_applied_step() -> None:
    with pytest.raises(NotFinite):
        _check(
            Skips(is_scaled=True), _outcome(loss_scale=2.0**9, skipped_steps=7),
            step=7, is_last=True,
        )  # fmt: skip
    _check(
        Skips(is_scaled=True), _outcome(loss_scale=2.0**9, skipped_steps=6), step=7, is_last=True
    )


def test_training_does_not_end_well_with_a_loss_that_is_not_finite() -> None:
    with pytest.raises(NotFinite, match="loss is not finite at step 7"):
        _check(Skips(is_scaled=False), _outcome(loss=math.nan), step=7, is_last=True)


def test_rates_and_loss_are_over_examples_since_the_last_report() -> None:
    recent = Recent()
    recent.add(_outcome(loss=6.0, examples=2.0, is_finite=True))
    recent.add(_outcome(loss=4.0, examples=3.0))
    facts = recent.take()
    assert facts["loss"] == 2.0
    assert facts["examples_per_second"] / facts["updates_per_second"] == pytest.approx(5.0)
    assert recent.take()["examples_per_second"] == 0.0
