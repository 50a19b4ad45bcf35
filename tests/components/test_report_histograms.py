"""Histograms in common buckets: no row is lost, nothing degenerate breaks them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.report_histograms import common_edges, draw_histograms, rebinned


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(
        st.lists(st.integers(0, 1000), min_size=1, max_size=10), min_size=1, max_size=3
    ),
    low=st.floats(-1e6, 1e6),
    widths=st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=3),
)
def test_histograms_in_common_buckets_keep_every_row(counts, low, widths):
    histograms = [
        [(low + at * width, low + (at + 1) * width, float(count)) for at, count in enumerate(one)]
        for one, width in zip(counts, widths, strict=False)
    ]
    edges = common_edges(histograms)
    assert len(edges) < 70
    assert edges == sorted(edges)
    for buckets in histograms:
        total = sum(count for _, _, count in buckets)
        assert sum(count for _, _, count in rebinned(buckets, edges)) == pytest.approx(total)


def test_a_constant_column_is_told_and_not_drawn():
    same = {"train": ([(5.0, 5.0, 3.0)], 3), "eval": ([(5.0, 5.0, 1.0)], 1)}
    assert "Every value is 5." in draw_histograms(same, title="x")


@pytest.mark.parametrize(
    "buckets", [[(0.0, 1.0, 0.0)], [(0.0, 1e-300, 2.0)], [(5.0, 5.0, 1.0), (5.0, 6.0, 1.0)]]
)
def test_a_degenerate_histogram_is_drawn(buckets):
    drawn = draw_histograms({"train": (buckets, 3), "eval": ([(2.0, 2.0, 1.0)], 1)}, title="x")
    assert "<svg" in drawn
    assert "nan" not in drawn


def test_splits_that_lie_far_apart_are_drawn_in_few_buckets():
    train, other = [(0.0, 1.0, 5.0)], [(1e9, 1e9 + 1, 5.0)]
    assert len(common_edges([train, other])) == 21
    extreme = {"train": ([(-1.7e308, 0.0, 1.0)], 1), "eval": ([(0.0, 1.7e308, 1.0)], 1)}
    assert "too far apart" in draw_histograms(extreme, title="x")
