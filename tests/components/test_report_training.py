"""Which value is better, and which of a step's values counts."""

import math

from components.report_training import is_better, points


def test_a_step_that_was_run_twice_counts_as_it_was_run_last():
    events = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 9.0}, {"step": 2, "loss": 0.5},
              {"step": 3, "loss": "nan"}]  # fmt: skip
    assert points(events, "loss")[:2] == [(1.0, 1.0), (2.0, 0.5)]
    assert math.isnan(points(events, "loss")[2][1])


def test_better_means_lower_for_a_loss_and_higher_for_an_auc():
    assert is_better("loss", 0.4, 0.5) is True
    assert is_better("auc", 0.4, 0.5) is False
    assert is_better("loss", math.nan, 0.5) is None
    assert is_better("loss", 0.5, 0.5) is None
