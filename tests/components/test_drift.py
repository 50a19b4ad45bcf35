"""Drift and skew at thresholds computed by hand (acceptance 3)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from gate_cases import Case, case

from components import drift, schema_file, schema_update
from components.checks import Split
from trainer.errors import DataRefused

OFF = {"baseline": "last-passed", "threshold": 1.0, "thresholds": {}}


def rows(carriers: dict[str, int], distances: list[int], late=(0, 1)) -> list[str]:
    names = [name for name, count in carriers.items() for _ in range(count)]
    return [
        f"{name},{distances[n * 7 % len(distances)]},{late[n % len(late)]}"
        for n, name in enumerate(names)
    ]


def compared(folder: Path, now: list[str], before: list[str], eval_=None, **settings) -> Case:
    folder.mkdir(parents=True)
    place = None
    if before:
        earlier = bring(folder / "before", before)
        place = {"statistics": earlier.data.statistics, "run": "3"}
    return bring(folder / "now", now, eval_, baseline=place, **{
        "drift": OFF, "skew": {"threshold": 1.0, "thresholds": {}}, **settings,
    })  # fmt: skip


def bring(folder: Path, train: list[str], eval_=None, **settings) -> Case:
    folder.mkdir()
    text = [f"{row},train" for row in train] + [f"{row},eval" for row in eval_ or train]
    return case(folder, {"data.csv": "\n".join(["carrier,distance,late,split", *text]) + "\n"},
                label="late", **settings)  # fmt: skip


def js(p: list[float], q: list[float]) -> float:
    """Jensen and Shannon's divergence in bits, by its definition."""

    def kl(one, other):
        return sum(a * math.log2(a / b) for a, b in zip(one, other, strict=True) if a)

    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return kl(p, middle) / 2 + kl(q, middle) / 2


# Of 10,000 rows: AA 50 % -> 34 %, so L-infinity is 0.16 by hand.
BEFORE = {"UA": 3000, "AA": 5000, "DL": 2000}
AFTER = {"UA": 4000, "AA": 3400, "DL": 2600}
TEN = list(range(10))
# Whole numbers 0 to 9 lie one in each of TFDV's ten bins of [0, 9].
SHIFTED = [*range(10), *range(5, 10), *range(5, 10)]
BY_HAND = js([0.05] * 5 + [0.15] * 5, [0.1] * 10)


def kinds(run: Case) -> set[tuple[str, str]]:
    return {(one["feature"], one["kind"]) for one in run.inspect()}


@pytest.mark.parametrize(("threshold", "is_found"), [(0.159, True), (0.161, False)])
def test_a_changed_mix_of_carriers(tmp_path, threshold, is_found) -> None:
    now, before = rows(AFTER, TEN), rows(BEFORE, TEN)
    told = {**OFF, "thresholds": {"carrier": threshold}}
    run = compared(tmp_path / "a", now, before, drift=told)
    assert kinds(run) == ({("carrier", "DRIFT")} if is_found else set())
    if is_found:
        (only,) = run.inspect()
        assert only["message"] == (
            "column carrier differs from the train split of run 3, the last that passed: the share "
            'of "AA" is 34.0 %, there 50.0 %; L-infinity 0.16, above 0.159'
        )
        assert only["what_to_do"].endswith("raise validation.drift.thresholds.carrier")


@pytest.mark.parametrize(("by", "is_found"), [(-0.01, True), (0.01, False)])
def test_a_shifted_distance(tmp_path, by, is_found) -> None:
    now, before = rows(BEFORE, SHIFTED), rows(BEFORE, TEN)
    told = {**OFF, "thresholds": {"distance": BY_HAND + by}}
    run = compared(tmp_path / "a", now, before, drift=told)
    assert kinds(run) == ({("distance", "DRIFT")} if is_found else set())
    found = drift.distances(
        Split.read(run.data.statistics, "train"),
        Split.read(run.settings["baseline"]["statistics"], "train"),
        ["distance"],
        drift.Thresholds(0.1, {}, schema_file.parse_schema("", ""), "drift_comparator"),
        kind="DRIFT",
    )
    assert found[0].distance == pytest.approx(BY_HAND, abs=2e-3)


def test_a_shifted_label_is_told_as_such(tmp_path) -> None:
    """Late in 1 of 2 rows, then in 1 of 4: 0.25 by hand."""
    now, before = rows(BEFORE, TEN, (0, 0, 0, 1)), rows(BEFORE, TEN)
    told = {**OFF, "threshold": 0.24}
    run = compared(tmp_path / "a", now, before, drift=told)
    assert kinds(run) == {("late", "LABEL_SHIFT")}
    assert 'the share of "1" is 25.0 %, there 50.0 %' in run.inspect()[0]["message"]
    assert kinds(compared(tmp_path / "b", now, before, drift={**OFF, "threshold": 0.26})) == set()


def test_the_eval_split_is_compared_with_train(tmp_path) -> None:
    skew = {"threshold": 0.15, "thresholds": {"distance": BY_HAND - 0.01}}
    run = compared(tmp_path / "a", rows(BEFORE, TEN), [], rows(AFTER, SHIFTED), skew=skew)
    assert kinds(run) == {("carrier", "SKEW"), ("distance", "SKEW")}
    assert {one["split"] for one in run.inspect()} == {"eval"}
    # By time the newest rows differ for that reason: said, and no stop, unless a rule says so.
    with pytest.raises(DataRefused, match="column carrier differs from the train split"):
        run.run()


def test_few_rows_differ_by_chance_and_nothing_is_told(tmp_path) -> None:
    few = {name: count // 250 for name, count in AFTER.items()}
    run = compared(
        tmp_path / "a", rows(few, TEN), rows(BEFORE, TEN), drift={**OFF, "threshold": 0.1}
    )
    assert kinds(run) == set()


def test_the_first_run_says_that_there_is_no_baseline(tmp_path) -> None:
    run = compared(tmp_path / "a", rows(BEFORE, TEN), [])
    run.run()
    told = json.loads((run.folder / "verdict" / "drift.json").read_text())
    assert told["baseline"] is None
    assert told["said"][0].startswith("no data of this pipeline passed the gate before these")


def test_a_baseline_of_another_schema_is_said_and_the_rest_compared(tmp_path) -> None:
    run = compared(tmp_path / "a", rows(AFTER, TEN), rows(BEFORE, TEN))
    place = Path(run.settings["baseline"]["statistics"]) / "Split-train" / "FeatureStats.pb"
    from tensorflow_metadata.proto.v0 import statistics_pb2

    whole = statistics_pb2.DatasetFeatureStatisticsList.FromString(place.read_bytes())
    for feature in whole.datasets[0].features:
        if feature.path.step[0] == "distance":
            feature.path.step[0] = "miles"
    place.write_bytes(whole.SerializeToString())
    run.settings["drift"] = {**OFF, "threshold": 0.1}
    assert kinds(run) == {("carrier", "DRIFT")}
    with pytest.raises(DataRefused):
        run.run()
    (said,) = json.loads((run.folder / "verdict" / "drift.json").read_text())["said"]
    assert said == (
        "the baseline, run 3, has another schema: distance was not there, miles is gone"
    )


def test_a_schema_may_hold_the_threshold_and_accepting_raises_it(tmp_path) -> None:
    told = {**OFF, "threshold": 0.1}
    run = compared(tmp_path / "a", rows(AFTER, TEN), rows(BEFORE, TEN), drift=told)
    with pytest.raises(DataRefused):
        run.run()
    distances = json.loads((run.folder / "verdict" / "drift.json").read_text())["distances"]
    path = Path(run.data.schema) / "schema.pbtxt"
    schema = schema_file.parse_schema(path.read_text(), "")
    after = schema_update.accept(schema, "carrier", "DRIFT", [], distances)
    (carrier,) = (one for one in after.feature if one.name == "carrier")
    assert carrier.drift_comparator.infinity_norm.threshold == pytest.approx(0.16)
    path.write_text(schema_file.schema_text(after))
    assert kinds(run) == set()
