from __future__ import annotations

import pytest
import yaml
from google.protobuf import json_format

from kubeflow import checks
from pipeline import config
from trainer.errors import SettingError

PLAIN = """
name = "{name}"
[data]
files = "penguins.csv"
label = "species"
[training]
precision = "{precision}"
[tracking]
uri = "https://planted-user:planted-word@mlflow.example"
[kubeflow]
{table}
"""
IMAGE = 'image = "registry.example/headrace:1"'


@pytest.fixture
def load(tmp_path):
    def load(table=IMAGE, name="penguins", precision="float32"):
        path = tmp_path / "pipeline.toml"
        path.write_text(PLAIN.format(table=table, name=name, precision=precision))
        return config.load(path)

    return load


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"table": ""}, "kubeflow.image"),
        ({"table": f'{IMAGE}\npipeline_root = "/tmp/runs"'}, "kubeflow.pipeline_root"),
        ({"name": "my_penguins"}, "name"),
        ({"precision": "mixed_float16"}, "kubeflow.gpus_per_node"),
        ({"table": f"{IMAGE}\nnodes = 2"}, "kubeflow.volume"),
    ],
)
def test_what_no_cluster_can_run_is_refused_by_its_key(load, given, key):
    with pytest.raises(SettingError) as refused:
        checks.check(load(**given))
    assert refused.value.where.endswith(f": {key}")


@pytest.mark.slow
def test_the_package_is_what_kfp_reads_and_the_same_each_time(load):
    from kfp.pipeline_spec import pipeline_spec_pb2

    from kubeflow import compilation

    asked = load(f'{IMAGE}\ngpus_per_node = 1\nsecret = "keys"\ntolerations = ["gpu:NoSchedule"]')
    text = compilation.compile_config(asked)
    assert compilation.compile_config(asked) == text
    assert len(text) <= 200_000
    assert "planted" not in text
    spec, platform = yaml.safe_load_all(text)
    read = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    tasks = read.root.dag.tasks
    # One a node, and the digest of the data files, which is never taken from the cache.
    assert len(tasks) == 9
    assert not tasks["data-digest"].caching_options.enable_cache
    assert tasks["example-gen"].caching_options.enable_cache
    digest = tasks["example-gen"].inputs.parameters["data_digest"]
    assert digest.task_output_parameter.producer_task == "data-digest"
    executors = spec["deploymentSpec"]["executors"]
    asked_for = executors["exec-trainer"]["container"]["resources"]["accelerator"]
    assert asked_for["resourceType"] == asked_for["type"] == "nvidia.com/gpu"
    assert asked_for["resourceCount"] == asked_for["count"] == "1"
    assert "accelerator" not in executors["exec-pusher"]["container"]["resources"]
