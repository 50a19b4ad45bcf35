from __future__ import annotations

import json

import pytest

from kubeflow import parameters, tasks, views
from trainer.errors import SettingError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ExampleGen", "example_gen"),
        ("CsvExampleGen.news", "csv_example_gen_news"),
        ("3D", "n_3_d"),
    ],
)
def test_a_nodes_name_is_one_that_python_and_kfp_take(text, name):
    assert tasks.identifier(text).isidentifier()
    if text != "3D":
        assert tasks.identifier(text) == name


def test_two_nodes_that_become_one_are_refused():
    with pytest.raises(SettingError, match="ExampleGen and example_gen have the same name"):
        tasks.task_names(["ExampleGen", "example_gen"])


@pytest.mark.parametrize("text", ["{{workflow.name}}", "python3", '{{$}} "\\{{', "ü\n$"])
def test_a_specification_comes_through_templates_as_it_was(text):
    spec = {"settings": json.dumps({"value": text})}
    written = tasks.spec_text(spec)
    assert "{{" not in written
    assert "python3" not in written
    assert json.loads(written) == spec


@pytest.mark.parametrize(
    ("value", "kind", "right"),
    [(20.0, "int", 20), (1, "float", 1.0), (0, "int", 0), ("", "str", ""), (False, "bool", False)],
)
def test_a_parameter_has_its_kind_whatever_protobuf_made_of_it(value, kind, right):
    cast = parameters.cast("epochs", value, kind)
    assert (type(cast), cast) == (type(right), right)


@pytest.mark.parametrize(("value", "kind"), [("5", "int"), (1.5, "int"), (True, "int")])
def test_a_parameter_of_another_type_is_refused_by_name(value, kind):
    with pytest.raises(SettingError, match="parameter epochs: must be of type int"):
        parameters.cast("epochs", value, kind)


def test_a_metric_that_is_no_number_is_told_as_a_text():
    told = views.numbers({"metrics": {"loss": 0.5, "auc": None, "x": float("nan")}})
    assert told == {"loss": 0.5, "auc": "undefined", "x": "undefined"}
    json.dumps(told, allow_nan=False)


def test_the_roc_curve_has_no_infinite_threshold_and_ends_at_one():
    numpy = pytest.importorskip("numpy")
    points = views.roc(numpy.array([0.9, 0.8, 0.3, 0.1]), numpy.array([1, 0, 1, 0]))
    json.dumps(points, allow_nan=False)
    # By hand: above 0.9 one of two positives, none of two negatives.
    assert (points[0]["recall"], points[0]["falsePositiveRate"]) == (0.5, 0.0)
    assert (points[-1]["recall"], points[-1]["falsePositiveRate"]) == (1.0, 1.0)
    assert views.roc(numpy.array([0.9, 0.8]), numpy.array([1, 1])) == []
