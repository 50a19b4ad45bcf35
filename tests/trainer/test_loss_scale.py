"""The dynamic loss scale, against the rule of Micikevicius et al. 2018 run in plain Python."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import loss_scale
from trainer.loss_scale import FLOOR, GROW_AFTER, LossScale, advance, start


def test_it_starts_at_two_to_the_fifteenth() -> None:
    assert float(start(is_scaled=True).scale) == 2.0**15


def test_it_halves_on_a_step_that_is_not_finite_and_never_falls_below_one() -> None:
    state = start(is_scaled=True)
    for skips in range(1, 21):
        state = advance(state, tf.constant(False), is_scaled=True)
        assert float(state.scale) == max(2.0 ** (15 - skips), 1.0)
        assert int(state.skipped_steps) == int(state.successive_skips) == skips


def test_it_doubles_after_2000_good_steps_in_a_row() -> None:
    assert GROW_AFTER == 2000
    state = start(is_scaled=True)._replace(good_steps=tf.constant(GROW_AFTER - 1))
    state = advance(state, tf.constant(True), is_scaled=True)
    assert float(state.scale) == 2.0**16
    assert int(state.good_steps) == 0


def test_without_scaling_the_scale_stays_one_and_skips_are_counted() -> None:
    state = advance(start(is_scaled=False), tf.constant(False), is_scaled=False)
    assert (float(state.scale), int(state.skipped_steps)) == (1.0, 1)


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.booleans(), max_size=30))
def test_any_sequence_gives_what_the_rule_says(steps: list[bool]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROW_AFTER", 3)
        state = start(is_scaled=True)
        scale, good, skipped, row = 2.0**15, 0, 0, 0
        for is_finite in steps:
            state = advance(state, tf.constant(is_finite), is_scaled=True)
            good, row = (good + 1, 0) if is_finite else (0, row + 1)
            skipped += not is_finite
            scale = scale if is_finite else max(FLOOR, scale / 2)
            if good == 3:
                scale, good = scale * 2, 0
            assert [float(one) for one in state] == [scale, good, skipped, row]
    assert isinstance(state, LossScale)
