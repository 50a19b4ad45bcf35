"""Curves and ticks."""

import math
import re

from components.report_charts import curves, thinned, ticks


def test_a_loss_that_is_not_finite_leaves_a_gap_and_is_told():
    drawn = curves({"train": [(1, 1.0), (2, math.nan), (3, 0.5)]}, title="Loss", x_label="step")
    line = re.search(r'<path d="([^"]*)" class="line', drawn)
    assert line is not None
    assert line[1].count("M") == 2
    assert "not finite: 1" in drawn


def test_thinning_keeps_peaks_ends_and_gaps():
    values = [(float(at), 0.0) for at in range(10_000)]
    values[5000], values[7000], values[8000] = (5000.0, 9.0), (7000.0, -9.0), (8000.0, math.nan)
    kept = thinned(values)
    assert len(kept) <= 500
    assert {values[0], values[5000], values[7000], values[-1]} <= set(kept)
    assert any(math.isnan(value) for _, value in kept)


def test_ticks_are_round_and_inside():
    assert ticks(0, 300, 7) == [0, 50, 100, 150, 200, 250, 300]
    assert ticks(3.0, 3.0) == [3.0]
