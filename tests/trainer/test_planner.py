"""The cheapest settings that fit, with a peak that is a formula."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import MemoryExceeded, SettingError
from trainer.memory import Prediction
from trainer.planner import FILLS_CORES, Plan, describe_bytes, plan
from trainer.settings import TrainingSettings, parse_bytes

FIXED, A_ROW, RECOMPUTED_ROW = 100_000, 1000, 300


class Predict:
    """Memory in proportion to rows; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def __call__(self, micro_batch: int, recompute: bool) -> Prediction:
        self.asked.append((micro_batch, recompute))
        row = RECOMPUTED_ROW if recompute else A_ROW
        return Prediction({"weights": FIXED, "activations": row * micro_batch})


def _plan(limit: int, predict: Predict | None = None, **keys: Any) -> Plan:
    settings = TrainingSettings(**{"global_batch": 1024, **keys})
    return plan(
        settings, rows=settings.global_batch, predict=predict or Predict(),
        free_bytes=lambda: limit,
    )  # fmt: skip


def test_the_whole_global_batch_is_taken_where_it_fits_and_traced_once() -> None:
    predict = Predict()
    found = _plan(FIXED + A_ROW * 1024, predict)
    assert (found.micro_batch, found.recompute) == (1024, False)
    assert predict.asked == [(1024, False)]


@pytest.mark.parametrize(
    ("room", "right"), [(1023, 512), (512, 512), (511, 342), (100, 94), (40, 40)]
)
def test_the_largest_equal_part_that_fits_is_taken(room: int, right: int) -> None:
    predict = Predict()
    found = _plan(FIXED + A_ROW * room, predict)
    assert (found.micro_batch, found.recompute) == (right, False)
    assert len(predict.asked) <= 8


def test_recomputation_comes_before_micro_batches_that_no_longer_fill_the_cores() -> None:
    found = _plan(FIXED + A_ROW * 10)
    assert (found.micro_batch, found.recompute) == (32, True)
    assert (_plan(FIXED + A_ROW * 1).micro_batch, _plan(FIXED + A_ROW * 1).recompute) == (3, True)


@given(limits=st.tuples(st.integers(FIXED, FIXED + 2 * A_ROW * 300), st.integers(0, 300_000)))
def test_more_memory_never_plans_a_smaller_micro_batch(limits: tuple[int, int]) -> None:
    less, more = limits[0] + RECOMPUTED_ROW, limits[0] + RECOMPUTED_ROW + limits[1]
    smaller, larger = _plan(less, global_batch=300), _plan(more, global_batch=300)
    assert smaller.micro_batch <= larger.micro_batch
    for one, limit in ((smaller, less), (larger, more)):
        assert one.prediction.total_bytes <= limit
        assert one.limit_bytes == limit


def test_recompute_stays_off_where_it_is_not_needed() -> None:
    for room in range(FILLS_CORES, 300, 7):
        assert not _plan(FIXED + A_ROW * room, global_batch=300).recompute


def test_what_is_set_is_not_changed() -> None:
    settings = {"micro_batch": 100, "recompute": True}
    found = _plan(2**40, **settings)
    assert (found.micro_batch, found.recompute) == (100, True)
    with pytest.raises(MemoryExceeded):
        _plan(FIXED + RECOMPUTED_ROW * 99, **settings)


def test_a_limit_that_nothing_fits_says_what_would_do_and_its_terms() -> None:
    with pytest.raises(SettingError) as caught:
        _plan(2**40, memory_limit="50KB")
    message = str(caught.value)
    assert "training.memory_limit" in message
    assert 'it holds "50KB"' in message
    assert "weights 98KiB" in message
    named = caught.value.right.split('"')[1]
    assert _plan(2**40, memory_limit=named).micro_batch == 1


@given(size=st.integers(1, 2**45))
def test_described_bytes_read_back_as_at_least_as_many(size: int) -> None:
    assert size <= parse_bytes(describe_bytes(size), name="x") <= size * 1.11 + 1024
