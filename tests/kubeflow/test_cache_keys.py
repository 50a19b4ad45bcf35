"""What KFP takes from its cache: the keys of the tasks of a package, as KFP makes them."""

from __future__ import annotations

import json

import kfp_package
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeflow import parameters
from pipeline import config

pytestmark = pytest.mark.slow  # TFX's and kfp's imports
CONFIG = """
name = "penguins"
[data]
files = "penguins.csv"
label = "species"
[model]
kind = "own:build"
[kubeflow]
image = "registry.example/headrace:1"
volume = "data"
"""
OWN = "def build(columns, *, settings): return None\n"
TASKS = (
    "data-digest", "example-gen", "statistics-gen", "schema-gen", "example-validator", "data-gate",
    "trainer", "evaluator", "pusher",
)  # fmt: skip
ALL, TRAINED = TASKS[1:], TASKS[6:]


@pytest.fixture
def load(tmp_path):
    def load(*sets, own=OWN):
        (tmp_path / "own.py").write_text(own)
        (tmp_path / "pipeline.toml").write_text(CONFIG)
        return config.load(tmp_path / "pipeline.toml", list(sets))

    return load


def keys(text, *, digest="held", **values):
    """Each task's cache key, of all that KFP puts into it.

    Source: backend/src/v2/cacheutils/cache.go of kubeflow/pipelines, `GenerateCacheKey`: of an
    artifact that is read it takes the name alone.
    """
    spec, platform = yaml.safe_load_all(text)
    kubernetes = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    defaults = {
        name: one.get("defaultValue")
        for name, one in spec["root"]["inputDefinitions"]["parameters"].items()
    }
    assert set(values) <= set(defaults)
    found = {}
    for name, task in spec["root"]["dag"]["tasks"].items():
        component = spec["components"][task["componentRef"]["name"]]
        label = component["executorLabel"]
        read = task.get("inputs", {})
        told = {
            one: digest
            if "taskOutputParameter" in source
            else {**defaults, **values}[source["componentInputParameter"]]
            for one, source in read.get("parameters", {}).items()
        }
        artifacts = {
            one: source["taskOutputArtifact"]["outputArtifactKey"]
            for one, source in read.get("artifacts", {}).items()
        }
        volumes = [one.get("constant") for one in kubernetes.get(label, {}).get("pvcMount", [])]
        container = dict(spec["deploymentSpec"]["executors"][label]["container"])
        container.pop("resources")
        found[name] = json.dumps(
            [container, volumes, told, artifacts, component.get("outputDefinitions")],
            sort_keys=True,
        )
    return found


@pytest.fixture
def compiled(load):
    from kubeflow import compilation

    def compiled(*sets, own=OWN):
        return compilation.compile_config(load(*sets, own=own))

    return compiled


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("values", "tasks"),
    [
        ({"digest": "holds another row"}, ALL),
        ({"epochs": 3}, TRAINED),
        ({"learning_rate": 0.5}, TRAINED),
        ({"global_batch": 64}, ("data-gate", *TRAINED)),
        ({"run_name": "another"}, ("evaluator",)),
    ],
    ids=str,
)
def test_a_parameter_is_in_the_keys_of_what_depends_on_it_and_in_no_other(compiled, values, tasks):
    text = compiled()
    assert set(TASKS) == set(keys(text))
    assert changed(keys(text), keys(text, **values)) == set(tasks)


@pytest.mark.parametrize(
    ("sets", "tasks"),
    [
        (["kubeflow.cpu=4", "kubeflow.memory=9Gi", "kubeflow.retries=5"], ()),
        (["data.null_values=[\"none\"]"], ALL),
        (["validation.on_anomaly=warn"], ("data-gate", *TRAINED)),
        (["training.seed=8"], TRAINED),
        (["evaluation.margin=0.25"], ("evaluator", "pusher")),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_is_in_the_keys_of_what_depends_on_it_and_in_no_other(compiled, sets, tasks):
    assert changed(keys(compiled()), keys(compiled(*sets))) == set(tasks)


def test_changed_code_of_a_model_is_trained(compiled):
    before, after = keys(compiled()), keys(compiled(own=OWN + "# changed\n"))
    assert changed(before, after) == set(TRAINED)


def test_another_image_is_another_key(compiled):
    before, after = keys(compiled()), keys(compiled("kubeflow.image=registry.example/headrace:2"))
    assert changed(before, after) == set(TASKS)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The settings that a model may depend on, and what the package tells its tasks."""
    from kubeflow import compilation

    folder = tmp_path_factory.mktemp("told")
    (folder / "own.py").write_text(OWN)
    (folder / "pipeline.toml").write_text(CONFIG)
    asked = config.load(folder / "pipeline.toml")
    flat = {name: one for name, one in asked.flat().items() if not name.startswith("kubeflow.")}
    return flat, kfp_package.specifications(compilation.compile_config(asked))


@settings(max_examples=12)
@given(
    values=st.fixed_dictionaries({
        "data_files": st.lists(st.text(min_size=1), min_size=1, max_size=2),
        "epochs": st.integers(1, 10**6),
        "learning_rate": st.one_of(st.floats(1e-9, 10.0), st.integers(1, 3)),
        "global_batch": st.integers(1, 10**6),
    })
)
def test_beside_a_pushed_model_stands_what_it_was_trained_with(told, values, tmp_path_factory):
    flat, specifications = told
    scratch = tmp_path_factory.mktemp("scratch")
    # As KFP hands them over: every number went through a double.
    handed = {
        name: float(value) if isinstance(value, int) else value for name, value in values.items()
    }
    handed |= {"data_digest": "held", "run_name": "one"}
    trainer, pusher = (
        parameters.bound(specifications[f"exec-{name}"], handed, scratch)
        for name in ("trainer", "pusher")
    )
    beside = json.loads(parameters.property_text(pusher, "settings"))["settings"]
    whole = json.loads(parameters.property_text(trainer, "fingerprint"))
    training = json.loads(parameters.property_text(trainer, "settings"))["training"]
    asked = {f"training.{name}": one for name, one in values.items() if name != "data_files"}
    assert beside == {**json.loads(json.dumps(flat)), **asked, "data.files": values["data_files"]}
    for name in asked:
        short = name.removeprefix("training.")
        assert training[short] == beside[name] == whole["settings"][name]
        kind = float if short == "learning_rate" else int
        assert {type(training[short]), type(beside[name])} == {kind}
    assert whole["data"] == {"content": "held"}
