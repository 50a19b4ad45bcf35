"""The fastest techniques that fit, with a peak that is a formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import MemoryExceeded, SettingError
from trainer.memory import Prediction
from trainer.planner import Plan, Shape, describe, describe_bytes, fastest, plan
from trainer.settings import Techniques, TrainingSettings, parse_bytes

FIXED, A_ROW, LOGITS, SCORES = 100_000, 1000, 400, 300
TABULAR = Shape(rows=1024, tokens=16, width=64, blocks=4)
LANGUAGE = Shape(rows=48, tokens=256, width=64, blocks=4, has_token_loss=True, workers=2)


class Predict:
    """Memory in proportion to rows; counts how often it is asked."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.asked: list[Techniques] = []

    def __call__(self, one: Techniques) -> Prediction:
        self.asked.append(one)
        kept = 1 - 0.9 * one.recompute / self.shape.blocks
        row = A_ROW * kept
        row += SCORES * (0.02 if one.attention == "chunked" else kept)
        row += LOGITS * self.shape.has_token_loss * (0.1 if one.token_loss == "chunked" else 1)
        sharded = 1 - {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[one.shard] / 6
        return Prediction({
            "weights": int(FIXED * sharded),
            "activations": int(row * one.micro_batch),
        })


def _plan(limit: int, shape: Shape = TABULAR, predict: Predict | None = None, **keys: Any) -> Plan:
    settings = TrainingSettings(**{"global_batch": shape.rows, **keys})
    return plan(
        settings, shape, predict=predict or Predict(shape), free_bytes=lambda: limit
    )  # fmt: skip


def test_the_whole_global_batch_is_taken_where_it_fits_and_traced_once() -> None:
    predict = Predict(TABULAR)
    found = _plan(2**40, predict=predict)
    assert found.techniques == Techniques(1024)
    assert predict.asked == [Techniques(1024)]


@pytest.mark.parametrize(
    ("room", "right"), [(1023, 512), (512, 512), (511, 342), (100, 94), (40, 40)]
)
def test_the_largest_equal_part_that_fits_is_taken(room: int, right: int) -> None:
    predict = Predict(TABULAR)
    found = _plan(FIXED + (A_ROW + SCORES) * room, predict=predict)
    assert found.techniques == Techniques(right)
    assert len(predict.asked) <= 8


def test_levers_come_before_micro_batches_that_no_longer_fill_the_cores() -> None:
    found = _plan(FIXED + A_ROW * 10)
    assert found.micro_batch == 32
    assert 0 < found.techniques.recompute <= 4
    assert _plan(FIXED + A_ROW * 1).micro_batch < 32


def test_only_as_many_blocks_as_needed_are_recomputed() -> None:
    least = _plan(2**30, TABULAR, micro_batch=32).prediction.total_bytes
    counts = [
        _plan(int(FIXED + (least - FIXED) * share), TABULAR, micro_batch=32, attention="plain")
        .techniques.recompute
        for share in (1.0, 0.9, 0.7, 0.5, 0.3)
    ]  # fmt: skip
    assert counts == [0, 1, 2, 3, 4]


SHAPES = [TABULAR, LANGUAGE, replace(TABULAR, rows=300), replace(LANGUAGE, rows=7)]


@given(
    limits=st.tuples(st.integers(0, 100_000), st.integers(0, 200_000)),
    shape=st.sampled_from(SHAPES),
    shard=st.sampled_from(["none", "auto"]),
)  # fmt: skip
def test_more_memory_never_plans_a_smaller_micro_batch_or_a_slower_plan(
    limits: tuple[int, int], shape: Shape, shard: str
) -> None:
    less = FIXED + A_ROW + LOGITS + limits[0]
    smaller, larger = (_plan(one, shape, shard=shard) for one in (less, less + limits[1]))
    assert smaller.micro_batch <= larger.micro_batch
    assert smaller.cost >= larger.cost
    assert smaller.prediction.total_bytes <= smaller.limit_bytes == less


def test_a_language_model_chunks_its_loss_before_it_recomputes() -> None:
    whole = _plan(2**30, LANGUAGE, micro_batch=2).prediction.total_bytes
    found = _plan(whole - 1, LANGUAGE, micro_batch=2)
    assert found.techniques == Techniques(2, token_loss="chunked")


def test_weights_that_do_not_fit_are_sharded_where_there_are_workers() -> None:
    assert _plan(FIXED // 2 + 3000, LANGUAGE, shard="auto").techniques.shard == "parameters"
    with pytest.raises(MemoryExceeded):
        _plan(FIXED // 2 + 3000, replace(LANGUAGE, workers=1), shard="auto")


def test_what_is_set_is_not_changed() -> None:
    settings = {"micro_batch": 100, "recompute": True, "attention": "chunked"}
    found = _plan(2**40, **settings)
    assert found.techniques == Techniques(100, recompute=4, attention="chunked")
    with pytest.raises(MemoryExceeded):
        _plan(FIXED + A_ROW // 10 * 99, **settings)
    assert fastest(TrainingSettings(**settings), TABULAR) == found.techniques


def test_a_limit_that_nothing_fits_says_what_would_do_and_its_terms() -> None:
    with pytest.raises(SettingError) as caught:
        _plan(2**40, memory_limit="50KB")
    message = str(caught.value)
    assert "training.memory_limit" in message
    assert 'it holds "50KB"' in message
    assert "weights 98KiB" in message
    named = caught.value.right.split('"')[1]
    _plan(2**40, memory_limit=named)
    with pytest.raises(SettingError):
        _plan(2**40, memory_limit="97KiB")


def test_every_choice_that_was_looked_at_is_told_with_its_cost() -> None:
    found = _plan(FIXED + A_ROW * 10)
    assert found.techniques in {one.techniques for one in found.tried}
    faster = [one for one in found.tried if one.cost < found.cost]
    assert faster
    assert not any(one.fits for one in faster)


def test_a_choice_is_described_by_the_settings_that_make_it() -> None:
    assert describe(Techniques(8)) == "micro_batch 8"
    assert describe(Techniques(8, 2, "chunked", "chunked", "gradients", "cpu")) == (
        "micro_batch 8, recompute 2 blocks, attention chunked, token_loss chunked, "
        "shard gradients, offload cpu"
    )


@given(size=st.integers(1, 2**45))
def test_described_bytes_read_back_as_at_least_as_many(size: int) -> None:
    assert size <= parse_bytes(describe_bytes(size), name="x") <= size * 1.11 + 1024
