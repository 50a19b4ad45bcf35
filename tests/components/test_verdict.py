from __future__ import annotations

import pytest

from components.verdict import KINDS, Anomaly, judge, refusal

GREEN = Anomaly("color", "UNEXPECTED_VALUES", "eval", "column color holds other values", rows=5)


@pytest.mark.parametrize(
    ("rules", "severity"),
    [
        ({}, "stop"),
        ({"UNEXPECTED_VALUES": "warn"}, "warn"),
        ({"UNEXPECTED_VALUES": "warn", "color": "stop"}, "stop"),
        ({"color": "stop", "color:UNEXPECTED_VALUES": "warn"}, "warn"),
        ({"size": "warn"}, "stop"),
    ],
)
def test_the_narrowest_rule_decides(rules, severity) -> None:
    assert judge([GREEN], on_anomaly="stop", rules=rules)[0].severity == severity


def test_an_ignored_anomaly_is_not_listed() -> None:
    assert judge([GREEN], on_anomaly="stop", rules={"color": "ignore"}) == []


def test_what_cannot_be_trained_on_stops_whatever_is_set() -> None:
    empty = Anomaly("", "EMPTY_SPLIT", "eval", "eval split has 0 rows; 3 rows in total")
    rules = {"EMPTY_SPLIT": "ignore"}
    assert judge([empty], on_anomaly="warn", rules=rules)[0].severity == "stop"


def test_a_column_that_is_no_feature_only_warns() -> None:
    assert judge([GREEN], on_anomaly="stop", rules={}, ignored=["color"])[0].severity == "warn"
    strict = judge([GREEN], on_anomaly="stop", rules={"color": "stop"}, ignored=["color"])
    assert strict[0].severity == "stop"


def test_what_is_worth_knowing_only_warns_unless_a_rule_says_otherwise() -> None:
    constant = Anomaly("x", "CONSTANT_COLUMN", "train", "column x has one value")
    assert judge([constant], on_anomaly="stop", rules={})[0].severity == "warn"
    rules = {"CONSTANT_COLUMN": "stop"}
    assert judge([constant], on_anomaly="warn", rules=rules)[0].severity == "stop"


def test_the_refusal_names_column_values_rows_places_remedy_and_how_many_more() -> None:
    train = Anomaly(
        "carrier", "UNEXPECTED_VALUES", "train", "column carrier holds values not listed",
        rows=2, where=("f.csv:4", "f.csv:9"), values=(('"ZZ"', 1), ('"YY"', 1)),
    )  # fmt: skip
    eval_ = Anomaly(
        "carrier", "UNEXPECTED_VALUES", "eval", "column carrier holds values not listed",
        rows=1, where=("f.csv:7",), values=(('"YY"', 1),),
    )  # fmt: skip
    gone = Anomaly("hour", "COLUMN_MISSING", "train", "column hour is gone")
    error = refusal(judge([gone, train, eval_], on_anomaly="stop", rules={}))
    assert error.exit_code == 3
    assert str(error) == (
        "f.csv:4: column carrier holds values not listed in 3 rows (2 of train, 1 of eval) (also "
        'f.csv:9, f.csv:7); it holds "YY" (2 rows), "ZZ" (1 row); correct these rows, or add the '
        'values to the column\'s domain in the schema; "carrier:UNEXPECTED_VALUES" = "warn" under '
        "[validation.rules] lets it pass; and 1 more anomaly"
    )


def test_what_may_be_chance_warns_unless_a_rule_says_otherwise() -> None:
    (one,) = judge([GREEN], on_anomaly="stop", rules={}, may_be_chance=lambda _: True)
    assert one.severity == "warn"
    assert '"color:UNEXPECTED_VALUES" = "ignore"' in one.what_to_do
    rules = {"UNEXPECTED_VALUES": "stop"}
    strict = judge([GREEN], on_anomaly="stop", rules=rules, may_be_chance=lambda _: True)
    assert strict[0].severity == "stop"


def test_every_remedy_can_be_filled_in() -> None:
    for kind in KINDS.values():
        assert kind.remedy.format(feature="x")
