"""Numbers, shares, settings and markup as text."""

import math

import pytest

from components.report_text import ABSENT, MINUS, TIMES, flatten, metric, number, share, tag


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (-3.0, f"{MINUS}3"),
        (336776, "336,776"), (43.92193, "43.922"), (1234.56, "1,234.6"),
        (0.00012, "0.00012"), (1.5e-7, f"1.500 {TIMES} 10⁻⁷"), (math.nan, "not a number"),
        (-math.inf, f"{MINUS}∞"), (None, ABSENT), (1e300, f"1.000 {TIMES} 10³⁰⁰"), (9.999999, "10"),
    ],
)  # fmt: skip
def test_numbers_are_readable(value, text):
    assert number(value) == text


def test_a_share_is_nothing_or_all_only_when_it_is_so():
    assert [share(*one) for one in [(0, 9), (9, 9), (1, 10**6), (10**6 - 1, 10**6), (1, 3)]] == [
        "0 %", "100 %", "< 0.1 %", "> 99.9 %", "33.3 %",
    ]  # fmt: skip
    assert share(0, 0) == ABSENT
    assert metric(0.98551) == "0.9855"


def test_settings_are_flattened_and_markup_is_built_safely():
    assert flatten({"peak_memory_bytes": 3 * 2**20}) == [("peak_memory_bytes", "3.0 MiB")]
    assert flatten({"a": {"b": True}, "c": [], "d": 1e-3}) == [
        ("a.b", "true"), ("c", "none"), ("d", "0.001"),
    ]  # fmt: skip
    assert tag("p", "<", hidden=True, class_='"') == '<p hidden class="&quot;">&lt;</p>'
