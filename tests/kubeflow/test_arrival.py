"""What a task gets of a parameter: the very value that was meant, with its type, by kfp.local."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from kubeflow import tasks
from trainer.errors import SettingError

pytestmark = pytest.mark.slow  # TFX's imports, in the compiler and in each task
MODULE = """
import json, os
from tfx.dsl.component.experimental.annotations import Parameter
from tfx.dsl.component.experimental.decorators import component

@component
def Teller(
    rate: Parameter[float], steps: Parameter[int], note: Parameter[str], shuffle: Parameter[bool],
    weight: Parameter[float], hidden: Parameter[str], out: Parameter[str],
):
    told = {"rate": rate, "steps": steps, "note": note, "shuffle": shuffle, "weight": weight,
            "hidden": hidden}
    with open(out, "w") as file:
        json.dump({name: [type(value).__name__, value] for name, value in told.items()}, file)
"""
LOCAL = """
import json, sys, warnings
warnings.simplefilter("ignore")
from kfp import components, local
package, out, given = sys.argv[1:]
local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=out)
components.load_component_from_file(package)(**json.loads(given))
"""
HARD = "ü {{workflow.name}} ${HOME} $HOME \"quoted\" 'single' \\n\nline\ttab"
"""What templates, shells and JSON each read in their own way."""


@pytest.fixture(scope="module")
def teller(tmp_path_factory):
    """A package of one node that writes what it got; its defaults are falsy."""
    from tfx import v1 as tfx

    from kubeflow import compilation, placement

    folder = tmp_path_factory.mktemp("arrival")
    (folder / "teller_component.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    from teller_component import Teller  # ty: ignore

    def parameter(name, kind, default):
        return tfx.dsl.experimental.RuntimeParameter(name, kind, default)

    node = Teller(
        rate=parameter("rate", float, 0.0), steps=parameter("steps", int, 0),
        note=parameter("note", str, ""), shuffle=False, weight=1.0, hidden=json.dumps([64, 32]),
        out=parameter("out", str, str(folder / "told.json")),
    )  # fmt: skip
    pipeline = tfx.dsl.Pipeline(
        pipeline_name="telling", pipeline_root=str(folder / "root"), components=[node]
    )
    image = placement.Placement(image="registry.example/headrace:1")
    text = compilation.of_pipeline(pipeline, tasks.Extras(), image)
    (folder / "package.yaml").write_text(text)
    yield folder
    sys.path.remove(str(folder))


def told(folder, **given):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, "package.yaml", "local", json.dumps(given)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return json.loads((folder / "told.json").read_text())


def test_falsy_defaults_stand_in_the_package_and_arrive_as_they_are(teller):
    spec = next(yaml.safe_load_all((teller / "package.yaml").read_text()))
    held = spec["root"]["inputDefinitions"]["parameters"]
    defaults = {name: one["defaultValue"] for name, one in held.items() if name != "out"}
    assert defaults == {"rate": 0.0, "steps": 0, "note": ""}
    assert told(teller) == {
        "rate": ["float", 0.0], "steps": ["int", 0], "note": ["str", ""],
        "shuffle": ["bool", False], "weight": ["float", 1.0], "hidden": ["str", "[64, 32]"],
    }  # fmt: skip


def test_numbers_keep_their_type_and_texts_each_of_their_bytes(teller):
    found = told(teller, rate=1.0, steps=20, note=HARD)
    assert found["rate"] == ["float", 1.0]
    assert found["steps"] == ["int", 20]
    assert found["note"] == ["str", HARD]


def test_no_template_of_kfp_or_argo_is_left_in_the_package(teller):
    text = (teller / "package.yaml").read_text()
    found = set(re.findall(r"\{\{[^}]*\}\}", text)) - {"{{$}}"}
    # Those that KFP itself puts there, to be replaced by what the task is given.
    assert all(one.startswith("{{$.") for one in found), found


def test_a_default_that_kfp_would_round_is_refused_when_the_package_is_made():
    from tfx import v1 as tfx

    from kubeflow import compilation, placement

    seed = tfx.dsl.experimental.RuntimeParameter("seed", int, 2**53 + 1)
    gen = tfx.components.CsvExampleGen(input_base="here")
    gen.exec_properties["output_data_format"] = seed
    pipeline = tfx.dsl.Pipeline(pipeline_name="p", pipeline_root="root", components=[gen])
    image = placement.Placement(image="registry.example/headrace:1")
    with pytest.raises(SettingError, match="parameter seed: must be less than 2"):
        compilation.of_pipeline(pipeline, tasks.Extras(), image)
