from __future__ import annotations

import dataclasses
import difflib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import kfp_package
import kfp_servers
import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from kubeflow import checks, gang_objects, tasks
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
FULL = f"""{IMAGE}
gpus_per_node = 1
secret = "keys"
volume = "data"
tolerations = ["gpu:NoSchedule"]
"""


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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A package with a GPU, a Secret and a volume, its configuration, and TFX's own graph."""
    from tfx.dsl.compiler import compiler

    from kubeflow import compilation

    folder = tmp_path_factory.mktemp("compiled")
    (folder / "pipeline.toml").write_text(
        PLAIN.format(name="penguins", precision="float32", table=FULL)
    )
    asked = config.load(folder / "pipeline.toml")
    text = compilation.compile_config(asked)
    (folder / "package.yaml").write_text(text)
    graph = compiler.Compiler().compile(compilation.tfx_pipeline(asked))
    upstream = {
        one.pipeline_node.node_info.id: set(one.pipeline_node.upstream_nodes) for one in graph.nodes
    }
    return Compiled(folder / "package.yaml", text, asked, upstream)


@dataclass
class Compiled:
    path: Path
    text: str
    asked: config.PipelineConfig
    upstream: dict[str, set[str]]

    @property
    def documents(self):
        """The pipeline and its platform, read strictly: an unknown field is an error."""
        spec, platform = yaml.safe_load_all(self.text)
        return (
            json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec()),
            json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec()),
        )


def name_of(node):
    return tasks.identifier(node).replace("_", "-")


@pytest.mark.slow
def test_the_package_is_what_kfp_reads_and_the_same_each_time(compiled):
    from kubeflow import compilation

    read, platform = compiled.documents
    json_format.ParseDict(
        json_format.MessageToDict(read.deployment_spec),
        pipeline_spec_pb2.PipelineDeploymentConfig(),
    )
    for one in platform.platforms["kubernetes"].deployment_spec.executors.values():
        json_format.ParseDict(
            json_format.MessageToDict(one),
            kubernetes_executor_config_pb2.KubernetesExecutorConfig(),
        )
    assert compilation.compile_config(compiled.asked) == compiled.text
    assert len(compiled.text) <= 200_000
    # The address of MLflow with its password stands in the configuration.
    assert "planted" not in compiled.text
    # With "***" left in it, MLflow's client would sign in as a user of that name.
    spec, _ = yaml.safe_load_all(compiled.text)
    for name in ("exec-trainer", "exec-evaluator"):
        command = spec["deploymentSpec"]["executors"][name]["container"]["command"]
        told = re.findall(r'"tracking_uri[^,}]*', " ".join(command).replace("\\", ""))
        assert [one.replace(" ", "") for one in told] == ['"tracking_uri":"https://mlflow.example"']


@pytest.mark.parametrize("table", [IMAGE, f'{IMAGE}\nvolume = "data"'])
def test_files_in_object_storage_stay_as_named_and_others_are_where_the_pods_look(
    load, table, tmp_path
):
    from kubeflow import compilation

    asked = load(table)
    named = ("s3://bucket/a b/*.csv", "rows/x.csv", "/abs/y.csv", "gs://bucket/z.csv")
    settings = dataclasses.replace(asked.data, files=named)
    asked = asked.model_copy(update={"data": settings})
    found = next(one for one in compilation.extras(asked).parameters if one.name == "data_files")
    base = "/data" if "volume" in table else str(tmp_path)
    assert found.default == [named[0], f"{base}/rows/x.csv", "/abs/y.csv", named[3]]


GOLDEN = Path(__file__).with_name("package.golden.yaml")


@pytest.mark.slow
def test_the_package_is_the_one_that_was_reviewed(compiled, tmp_path):
    made = kfp_package.readable(compiled.text)
    (tmp_path / "package.yaml").write_text(made)
    held = GOLDEN.read_text(encoding="utf-8")
    changes = difflib.unified_diff(
        held.splitlines(), made.splitlines(), "reviewed", "compiled", n=1, lineterm=""
    )
    told = f"when this is meant: cp {tmp_path / 'package.yaml'} {GOLDEN}"
    assert made == held, "\n".join([*changes, told])


@pytest.mark.slow
def test_a_node_is_a_task_and_waits_for_what_its_node_waits_for(compiled):
    found = compiled.documents[0].root.dag.tasks
    assert set(found) == {name_of(one) for one in compiled.upstream} | {"data-digest"}
    for node, upstream in compiled.upstream.items():
        waits = set(found[name_of(node)].dependent_tasks) - {"data-digest"}
        assert waits == {name_of(one) for one in upstream}, node


@pytest.mark.slow
def test_a_task_is_cached_only_where_its_key_holds_what_the_data_files_hold(compiled):
    found = compiled.documents[0].root.dag.tasks
    assert not found["data-digest"].caching_options.enable_cache

    def holds(name):
        one = found[name].inputs
        if "data_digest" in one.parameters:
            digest = one.parameters["data_digest"].task_output_parameter.producer_task
            return digest == "data-digest"
        read = [it.task_output_artifact.producer_task for it in one.artifacts.values()]
        return any(holds(it) for it in read)

    cached = {name for name, one in found.items() if one.caching_options.enable_cache}
    assert cached
    for name in cached:
        assert holds(name), name


@pytest.mark.slow
def test_a_runs_name_is_in_no_cache_key_but_the_evaluators(compiled):
    found = compiled.documents[0].root.dag.tasks
    told = {name for name, one in found.items() if "run_name" in one.inputs.parameters}
    assert told == {"evaluator"}


@pytest.mark.slow
def test_gpus_memory_and_secrets_are_where_they_are_needed(compiled):
    spec, platform = yaml.safe_load_all(compiled.text)
    executors = spec["deploymentSpec"]["executors"]
    asked_for = executors["exec-trainer"]["container"]["resources"]["accelerator"]
    # Older backends read type and count, newer ones the other two (kubeflow/pipelines#11374).
    assert asked_for["resourceType"] == asked_for["type"] == "nvidia.com/gpu"
    assert asked_for["resourceCount"] == asked_for["count"] == "1"
    for name, one in executors.items():
        resources = one["container"]["resources"]
        assert ("accelerator" in resources) == (name == "exec-trainer")
        assert {"cpuRequest", "memoryRequest", "memoryLimit"} <= set(resources), name
    kubernetes = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for one in kubernetes.values():
        assert one["secretAsEnv"][0]["secretName"] == "keys"
        assert one["pvcMount"][0]["mountPath"] == "/data"
    assert kubernetes["exec-trainer"]["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


@pytest.mark.slow
def test_falsy_defaults_are_in_the_package_and_whole_numbers_are_whole(compiled):
    inputs = yaml.safe_load(compiled.text.split("\n---\n")[0])["root"]["inputDefinitions"]
    found = {name: one["defaultValue"] for name, one in inputs["parameters"].items()}
    assert found["epochs"] == 2
    assert found["global_batch"] == 1024
    kinds = {name: one["parameterType"] for name, one in inputs["parameters"].items()}
    assert kinds == {
        "data_files": "LIST", "epochs": "NUMBER_INTEGER", "global_batch": "NUMBER_INTEGER",
        "learning_rate": "NUMBER_DOUBLE", "run_name": "STRING",
    }  # fmt: skip
    assert found["run_name"] == ""


@pytest.mark.slow
def test_many_nodes_are_a_gang_that_the_trainers_task_leads(compiled):
    from kubeflow import compilation

    sets = ["kubeflow.nodes=3", "kubeflow.gpus_per_node=4", "training.max_restarts=5"]
    asked = config.load(compiled.path.with_name("pipeline.toml"), sets)
    spec, platform = yaml.safe_load_all(compilation.compile_config(asked))
    container = spec["deploymentSpec"]["executors"]["exec-trainer"]["container"]
    told = {one["name"]: one["value"] for one in container["env"]}
    gang = gang_objects.from_text(told["HEADRACE_GANG"])
    assert (gang.nodes, gang.gpus, gang.max_restarts) == (3, 4, 5)
    assert gang.tolerations == ("gpu:NoSchedule",)
    assert told["HEADRACE_GANG_ROOM"] == "/data/penguins/gang"
    # The task itself computes nothing: no GPU, and Prometheus looks at the pods that train.
    assert "accelerator" not in container["resources"]
    trainer = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-trainer"]
    assert "headrace/trainer" not in trainer["podMetadata"]["labels"]
    # The leader starts them again, not the supervisor beside it.
    assert '\\"max_restarts\\": 0' in " ".join(container["command"]).replace("\\\\", "\\")


@pytest.mark.slow
def test_kfps_own_command_line_submits_the_package(compiled):
    kfp = str(Path(sys.executable).with_name("kfp"))
    with kfp_servers.running() as server:
        said = subprocess.run(
            [kfp, "--endpoint", f"{server}/kfp", "run", "create", "--experiment-name", "penguins",
             "--package-file", str(compiled.path), "epochs=3"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr
        # The server has read it strictly, as above.
        asked = kfp_servers.asked(f"{server}/kfp")
        assert ("POST", "/apis/v2beta1/runs") in [(one["method"], one["path"]) for one in asked]


@pytest.mark.slow
def test_a_pipeline_of_tfxs_own_components_is_a_package_too(tmp_path):
    from kubeflow import compilation, placement

    text = compilation.of_pipeline(
        _of_tfx(tmp_path), tasks.Extras(), placement.Placement(image="registry.example/headrace:1")
    )
    spec, platform = yaml.safe_load_all(text)
    read = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    found = read.root.dag.tasks
    assert set(found) == {
        "csv-example-gen", "statistics-gen", "schema-gen", "example-validator", "transform",
        "latest-blessed-model-resolver", "trainer", "evaluator", "pusher",
    }  # fmt: skip
    assert set(found["trainer"].dependent_tasks) == {
        "csv-example-gen", "schema-gen", "transform", "example-validator",
    }  # fmt: skip
    # "" is a default, and not the lack of one.
    inputs = json_format.MessageToDict(read.root.input_definitions)["parameters"]
    assert inputs["data_root"]["defaultValue"] == ""
    # Nothing tells what its files hold, so that nothing is taken from the cache.
    assert not any(one.caching_options.enable_cache for one in found.values())


def _of_tfx(folder):
    """The pipeline of TFX's penguin example, in short: every standard component of a training."""
    import tensorflow_model_analysis as tfma
    from tfx import v1 as tfx

    module = folder / "penguin.py"
    module.write_text("def preprocessing_fn(inputs): return inputs\ndef run_fn(args): pass\n")
    root = tfx.dsl.experimental.RuntimeParameter("data_root", str, "")
    gen = tfx.components.CsvExampleGen(input_base=root)
    statistics = tfx.components.StatisticsGen(examples=gen.outputs["examples"])
    schema = tfx.components.SchemaGen(statistics=statistics.outputs["statistics"])
    validator = tfx.components.ExampleValidator(
        statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
    )
    transform = tfx.components.Transform(
        examples=gen.outputs["examples"], schema=schema.outputs["schema"],
        preprocessing_fn="penguin.preprocessing_fn",
    )  # fmt: skip
    trainer = tfx.components.Trainer(
        run_fn="penguin.run_fn", examples=gen.outputs["examples"],
        transform_graph=transform.outputs["transform_graph"], schema=schema.outputs["schema"],
        train_args=tfx.proto.TrainArgs(num_steps=10), eval_args=tfx.proto.EvalArgs(num_steps=5),
    )  # fmt: skip
    trainer.add_upstream_node(validator)
    resolver = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
        model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        model_blessing=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelBlessing),
    ).with_id("latest_blessed_model_resolver")
    evaluator = tfx.components.Evaluator(
        examples=gen.outputs["examples"], model=trainer.outputs["model"],
        baseline_model=resolver.outputs["model"],
        eval_config=tfma.EvalConfig(model_specs=[tfma.ModelSpec(label_key="species")]),
    )  # fmt: skip
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"], model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(folder / "served"))
        ),
    )  # fmt: skip
    return tfx.dsl.Pipeline(
        pipeline_name="penguin", pipeline_root=str(folder / "root"),
        components=[gen, statistics, schema, validator, transform, resolver, trainer, evaluator,
                    pusher],
    )  # fmt: skip
