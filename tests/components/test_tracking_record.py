"""What a journal says to MLflow, and what an MLflow run still lacks."""

from __future__ import annotations

import json

import pytest

from components.tracking_held import Held
from components.tracking_record import Point, Record, session_of


def record_of(*events: dict) -> Record:
    record = Record()
    for number, event in enumerate(events):
        record.take({"time": 100.0 + number, **event})
    return record


def step(number: int, **values) -> dict:
    return {"event": "train_step", "step": number, "epoch": 1, **values}


def test_each_kind_of_event_becomes_its_metrics():
    record = record_of(
        {"event": "run_started", "run": "1"},
        step(10, loss=0.5, learning_rate=0.1, examples_per_second=900.0),
        {"event": "evaluation", "step": 10, "epoch": 1, "loss": 0.6, "auc": 0.7},
        {"event": "training_done", "steps": 12, "peak_memory_bytes": 5, "stopped_early": True},
        {
            "event": "metrics",
            "metrics": {"auc": 0.8, "recall": {"<=50K": 1}},
            "baseline": {"auc": 0.5},
            "blessed": True,
        },
    )
    assert record.points == [
        Point("train/loss", 0.5, 10, 101000),
        Point("learning_rate", 0.1, 10, 101000),
        Point("examples_per_second", 900.0, 10, 101000),
        Point("eval/loss", 0.6, 10, 102000),
        Point("eval/auc", 0.7, 10, 102000),
        Point("peak_memory_bytes", 5.0, 12, 103000, is_final=True),
        Point("auc", 0.8, 12, 104000, is_final=True),
        Point("recall/_x3c__x3d_50K", 1.0, 12, 104000, is_final=True),
        Point("baseline/auc", 0.5, 12, 104000, is_final=True),
    ]
    assert record.tags == {"headrace.stopped_early": "true", "headrace.blessed": "true"}
    assert record.started == 100000


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", None, 10**400])
def test_what_is_not_finite_is_counted_and_said_once(value):
    record = record_of(step(1, loss=value), step(2, loss=value), step(3, loss=0.5))
    assert record.points == [Point("train/loss", 0.5, 3, 102000)]
    assert record.nonfinite == {"nonfinite_train/loss": 2}
    (warning,) = record.warnings
    assert "train/loss" in warning
    assert "step 1" in warning
    assert Held("r").new_tags(record) == {"nonfinite_train/loss": "2"}


def test_texts_among_the_values_are_no_metrics():
    record = record_of(step(1, loss=1.0, device="CPU", places=["a"]))
    assert [point.name for point in record.points] == ["train/loss"]
    assert not record.nonfinite


def test_a_long_parameter_is_cut_and_kept_whole_as_an_artifact():
    record = Record()
    record.take_spec({"params": {"data.ignore": "x" * 6001, "training.seed": 7}})
    assert len(record.params["data.ignore"]) == 6000
    assert record.params["training.seed"] == "7"
    assert json.loads(record.documents["long_values.json"]) == {"data.ignore": "x" * 6001}
    assert "data.ignore" in record.warnings[0]


def test_mapped_names_are_said_once_and_listed():
    record = record_of(step(1, **{"loss(a)": 1.0, "loss(b)": 1.0}), step(2, **{"loss(a)": 1.0}))
    assert len(record.warnings) == 1
    assert set(json.loads(record.documents["stored_names.json"])) == {"loss(a)", "loss(b)"}


def test_no_password_of_the_configuration_is_told():
    record = Record()
    uri = "http://me:secret@host"
    record.take_spec({"params": {"tracking.uri": uri}, "tags": {"t": uri}, "config_text": uri})
    assert "secret" not in json.dumps([record.params, record.tags, record.documents])


NOT_FINITE = {"type": "NotFinite", "what": "loss is nan", "where": "step 3"}
GONE = "the run's process was gone before it said how the run ended"


def ended(status: str) -> dict:
    return {"event": "run_ended", "status": status, "exit_code": 1}


@pytest.mark.parametrize(
    ("events", "status", "said"),
    [
        ([ended("succeeded")], "FINISHED", ""),
        ([ended("rejected")], "FAILED", ""),
        ([ended("interrupted")], "KILLED", ""),
        (
            [{"event": "error", "facts": NOT_FINITE}, ended("failed")],
            "FAILED",
            "step 3: loss is nan",
        ),
        ([{"event": "error", "facts": {"what": "bad"}}], "FAILED", "bad"),
        ([step(1, loss=1.0)], "KILLED", GONE),
    ],
)
def test_a_run_ends_as_it_really_ended(events, status, said):
    record = record_of({"event": "run_started", "run": "1"}, *events)
    assert record.end() == (status, 100000 + 1000 * len(events))
    assert record.tags["headrace.error"] == said


def test_steps_that_are_stored_already_are_not_new():
    held = Held("r", last={"train/loss": (200, 0.5)})
    record = record_of(*(step(number, loss=0.1) for number in (150, 200, 250, 240, 260)))
    assert [point.step for point in held.new_points(record)] == [250, 260]


def test_a_final_metric_that_came_out_otherwise_is_new():
    held = Held("r", last={"auc": (0, 0.7), "rmse": (0, 1.0)})
    record = record_of({"event": "metrics", "metrics": {"auc": 0.8, "rmse": 1.0}})
    assert [(point.name, point.value) for point in held.new_points(record)] == [("auc", 0.8)]


def test_a_parameter_is_never_changed_but_its_other_value_is_a_tag():
    held = Held("r", session=1, params={"epochs": "2", "seed": "7"}, tags={"git.commit": "a"})
    record = Record()
    record.take_spec({"params": {"epochs": 4, "seed": 7, "width": 8}, "tags": {"git.commit": "b"}})
    assert held.new_params(record) == {"width": "8"}
    assert held.new_tags(record) == {"resume_1/epochs": "4", "resume_1/git.commit": "b"}


def test_counts_of_earlier_sessions_are_added_and_of_the_same_one_are_not():
    record = record_of(step(1, loss="nan"))
    tags = {"nonfinite_train/loss": "3"}
    resumed = Held("r", tags=tags, nonfinite_before={"nonfinite_train/loss": 3})
    assert resumed.new_tags(record) == {"nonfinite_train/loss": "4"}
    assert Held("r", tags=tags).new_tags(record) == {}


def test_the_same_run_number_at_another_time_is_another_session():
    first = {"event": "run_started", "time": 1.0, "run": "1"}
    assert session_of(first) == session_of(dict(reversed(first.items())))
    assert session_of(first) != session_of({**first, "time": 2.0})
