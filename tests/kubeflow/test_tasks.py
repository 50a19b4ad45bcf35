from __future__ import annotations

import json

import pytest

from kubeflow import parameters, tasks
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


@pytest.mark.parametrize("value", [2**53, -(2**53), float(2**53), 9007199254740993])
def test_a_number_that_kfp_would_round_is_refused_by_name(value):
    with pytest.raises(SettingError, match=r"parameter seed: must be less than 2\*\*53"):
        parameters.cast("seed", value, "int")
    assert parameters.cast("seed", 2**53 - 1, "int") == 2**53 - 1


@pytest.mark.parametrize(("value", "kind"), [("5", "int"), (1.5, "int"), (True, "int")])
def test_a_parameter_of_another_type_is_refused_by_name(value, kind):
    with pytest.raises(SettingError, match="parameter epochs: must be of type int"):
        parameters.cast("epochs", value, kind)
