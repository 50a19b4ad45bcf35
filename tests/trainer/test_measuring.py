"""The lever table: which trainings it compares, and that its figures are those of a training."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from trainer import loop, measuring
from trainer.settings import TrainingSettings

PLAIN = {"micro_batch": 64, "recompute": 0, "attention": "plain", "token_loss": "plain",
         "shard": "none", "offload": "none"}  # fmt: skip


def forecast(**levers: dict) -> dict:
    told = {"plain": PLAIN, **{name: PLAIN | one for name, one in levers.items()}}
    told["all together"] = PLAIN
    entries = [{"name": name, "settings": one} for name, one in told.items()]
    return {"levers": entries, "precision": "float32", "is_gpu": False}


LEVERS = {"micro_batch": {"micro_batch": 8}, "recompute": {"recompute": 3},
          "attention": {"attention": "chunked"}}  # fmt: skip


def test_each_lever_stands_alone_and_then_with_those_before_it() -> None:
    table = list(measuring.rows(TrainingSettings(global_batch=64), forecast(**LEVERS), steps=5))
    by_name = {row.name: row for row in table}
    assert list(by_name) == [
        "plain", "micro_batch", "recompute", "attention", "precision mixed_bfloat16",
        "micro_batch + recompute", "micro_batch + recompute + attention",
        "2 workers", "2 workers, shard optimizer", "2 workers, shard gradients",
        "2 workers, shard parameters",
    ]  # fmt: skip
    plain = by_name["plain"].training
    assert by_name["recompute"].training == replace(plain, recompute=True)
    together = by_name["micro_batch + recompute + attention"]
    assert together.training == replace(plain, micro_batch=8, recompute=True, attention="chunked")
    assert together.against == "micro_batch + recompute"
    # A row comes after the one that it is compared with.
    for place, row in enumerate(table):
        assert not row.against or row.against in [one.name for one in table[:place]]
    # The same examples in all: the global batch never changes, and each makes the same steps.
    assert {(row.training.global_batch, row.training.steps) for row in table} == {(64, 5)}


def test_what_changes_nothing_is_left_out() -> None:
    same = forecast(micro_batch={"micro_batch": 64}, recompute={"recompute": 2})
    names = [row.name for row in measuring.rows(TrainingSettings(global_batch=64), same, steps=5)]
    assert "micro_batch" not in names
    assert "recompute" in names
    assert not [one for one in names if "+" in one]


def test_a_peak_that_is_hardly_smaller_is_no_saving() -> None:
    one = {"peak_bytes": 1000, "step_seconds": 1.0, "losses": [2.0, 1.0]}
    less = measuring.compared({**one, "peak_bytes": 500, "losses": [2.0, 1.5]}, one)
    assert less == {"peak_share": 0.5, "time_ratio": 1.0, "loss_difference": 0.5, "saves": True}
    assert measuring.compared({**one, "peak_bytes": 990}, one)["saves"] is False
    assert set(measuring.compared(one, None).values()) == {None}


@pytest.mark.slow
def test_what_is_measured_are_the_steps_of_a_training(make_job) -> None:
    job = make_job(rows=300, global_batch=64, steps=4, recompute=True)
    found = measuring.of_job(replace(job, purpose="measure"), beat=lambda _: None)
    history = loop.train(job).history
    # Four steps lie in the first epoch: its loss is their mean.
    assert np.mean(found["losses"]) == pytest.approx(history[0]["train_loss"], rel=1e-5)
    assert found["step_seconds"] > 0
    assert math.isclose(found["examples_per_second"], 64 / found["step_seconds"])
    assert found["tokens_per_second"] is None
