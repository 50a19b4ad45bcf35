"""`compile`: from the configuration to the package, by the pipeline that `headrace run` runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components import remote_files
from components.tracking_names import HIDDEN
from kubeflow import checks, gang_objects, memory, package, tasks
from kubeflow.gang_objects import Gang
from kubeflow.parameters import cast
from kubeflow.placement import LIGHT_MEMORY, Placement
from kubeflow.tasks import DIGEST, Binding, Extras, Parameter, Task
from pipeline import definition, own_model
from pipeline.config import PipelineConfig
from pipeline.definition import Node, Step

READ_FILES = ("ExampleGen", "DataGate")
"""Nodes that read the data files themselves."""
TRAINING = {
    "epochs": ("int", "training.epochs"),
    "learning_rate": ("float", "training.learning_rate"),
    "global_batch": ("int", "training.global_batch"),
}
"""Parameters that change a training."""


def compile_config(config: PipelineConfig) -> str:
    """Return the package of a configuration.

    Raises:
        SettingError: a key holds what no cluster can run.
    """
    checks.check(config)
    return of_pipeline(tfx_pipeline(config), extras(config), placement(config), name=config.name)


def of_pipeline(pipeline: Any, extras: Extras, placement: Placement, *, name: str = "") -> str:
    """Return the package of any `tfx.dsl.Pipeline`.

    Args:
        pipeline: of standard components, ours, or a person's own.
        extras: what it asks for beside its nodes.
        placement: where its tasks run.
        name: of the pipeline in Kubeflow; empty: its own.

    Raises:
        SettingError: a name, a node or a parameter's value that Kubeflow does not take.
    """
    parameters, bindings = tasks.runtime_parameters(pipeline)
    whole = Extras(
        parameters=(*extras.parameters, *parameters),
        bindings=(*extras.bindings, *bindings),
        texts=extras.texts,
        scratch=extras.scratch,
        digest_of=extras.digest_of,
        cached=extras.cached,
        facts=extras.facts,
    )
    for one in whole.parameters:
        if one.default is not None:
            cast(one.name, one.default, one.kind)
    made: list[Task] = tasks.tasks(pipeline, whole)
    return package.package_text(
        name or pipeline.pipeline_info.pipeline_name, made, whole, placement
    )


def tfx_pipeline(config: PipelineConfig) -> Any:
    """Return the pipeline that `headrace run` runs, with the settings of a cluster."""
    flat = config.flat()
    return definition.build(
        name=config.name,
        folder=Path("/headrace"),
        steps=[_step(node, config, flat) for node in definition.NODES],
    )


def _step(node: Node, config: PipelineConfig, flat: Mapping[str, Any]) -> Step:
    own = definition.own_part(node, config, {}, flat)
    # What the files hold, and the settings that parameters change, are filled in by the task.
    own["upstream"] = dict.fromkeys(node.upstream, "")
    return Step(
        id=node.id,
        module=node.module,
        inputs=node.inputs,
        settings=_settings(node, config),
        fingerprint=own,
    )


def _settings(node: Node, config: PipelineConfig) -> dict[str, Any]:
    settings = node.settings(config, [])
    shared = f"{config.kubeflow.mount}/{config.name}" if config.kubeflow.volume else ""
    if node.id == "Trainer":
        settings["folder"] = "model" if settings["folder"] else ""
        settings["checkpoints"] = f"{shared}/checkpoints" if shared else "checkpoints"
        if config.kubeflow.nodes > 1:
            # The gang is started again by its leader, which has the number.
            settings["training"] = {**settings["training"], "max_restarts": 0}
    if node.id == "Evaluator":
        # Without a volume no task sees what another run has pushed.
        settings["models"] = f"{shared}/models" if shared else ""
    if node.id == "Pusher":
        settings["destination"] = f"{shared}/models" if shared else "models"
        # Where and with how many cores tasks run says nothing of a model: with it, each change of
        # that would push the same model again.
        settings["settings"] = {
            name: value
            for name, value in settings["settings"].items()
            if not name.startswith("kubeflow.")
        }
    if node.id == "SchemaGen" and config.schema_path:
        settings["schema"] = "schema.pbtxt"
    return settings


def extras(config: PipelineConfig) -> Extras:
    """Return what our own pipeline asks for beside its nodes."""
    bindings = [
        *(Binding("data_files", node, "settings", ("files",)) for node in READ_FILES),
        Binding(DIGEST, "ExampleGen", "fingerprint", ("data", "content")),
        Binding(DIGEST, "Trainer", "fingerprint", ("data", "content")),
        # What stands beside the model says what it was trained on.
        Binding("data_files", "Pusher", "settings", ("settings", "data.files"), as_given=True),
    ]
    for name, (_, dotted) in TRAINING.items():
        bindings.append(Binding(name, "Trainer", "settings", tuple(dotted.split("."))))
        bindings.append(Binding(name, "Trainer", "fingerprint", ("settings", dotted)))
        bindings.append(Binding(name, "Pusher", "settings", ("settings", dotted)))
    bindings.append(Binding("global_batch", "DataGate", "settings", ("global_batch",)))
    bindings.append(Binding("run_name", "Evaluator", ""))
    flat = config.flat()
    return Extras(
        parameters=(
            Parameter("data_files", "files", list(_files(config))),
            *(Parameter(name, kind, flat[dotted]) for name, (kind, dotted) in TRAINING.items()),
            # Of the run in MLflow; empty: KFP's id of the run.
            Parameter("run_name", "str", ""),
        ),
        bindings=tuple(bindings),
        texts=_texts(config),
        scratch={
            "Trainer": ("settings/checkpoints", "settings/folder"),
            "Pusher": ("settings/destination",),
        },
        digest_of="data_files",
        cached=frozenset(node.id for node in definition.NODES),
        facts=_facts(config),
    )


def _files(config: PipelineConfig) -> tuple[str, ...]:
    """Return where the cluster finds the data: on the volume, where there is one.

    Addresses in object storage stay as they are: a path of them would lose a slash.
    """
    base = Path(config.kubeflow.mount) if config.kubeflow.volume else config.base
    return tuple(
        one if remote_files.is_remote(one) else str(base / one) for one in config.data.files
    )


def _texts(config: PipelineConfig) -> dict[str, dict[str, str]]:
    """Return the files of the project that travel in the package, by node and place."""
    texts: dict[str, dict[str, str]] = {}
    if config.schema_path:
        text = Path(config.schema_path).read_text(encoding="utf-8")
        texts["SchemaGen"] = {"settings/schema": text}
    if own_model.is_own(config.model.kind):
        sources = own_model.sources(config.model.kind, config.base)
        texts["Trainer"] = {
            f"file/model/{path.relative_to(config.base).as_posix()}": path.read_text("utf-8")
            for path in sources
            if path.is_relative_to(config.base)
        }
    return texts


def _facts(config: PipelineConfig) -> dict[str, dict[str, Any]]:
    """Return what tasks are told for tracking and reports, by node; passwords are not in it.

    MLflow's user and password come to the tasks by the Secret that ``kubeflow.secret`` names.
    The settings go to the Evaluator, which is the last to tell MLflow: with all of them, no task
    before it would be found in the cache once one has changed.
    """
    flat = config.flat()
    hidden = ("kubeflow.", "root", "data.files", "training.epochs", "training.learning_rate",
              "training.global_batch")  # fmt: skip
    settings = {name: value for name, value in flat.items() if not name.startswith(hidden)}
    tracking_uri = flat["tracking.uri"].replace(f"{HIDDEN}@", "")
    columns = {"label": config.data.label, "ignored": list(config.data.ignore)}
    return {
        "ExampleValidator": columns,
        "DataGate": columns,
        "Trainer": {"tracking_uri": tracking_uri},
        "Evaluator": {"tracking_uri": tracking_uri, "settings": settings},
    }


def _gang(config: PipelineConfig) -> dict[str, str]:
    """Return what the Trainer's task is told of the pods that train."""
    asked = config.kubeflow
    gang = Gang(
        nodes=asked.nodes,
        gpus=asked.gpus_per_node,
        max_restarts=config.training.max_restarts,
        image=asked.image,
        cpu=asked.cpu,
        memory=memory.of_trainer(config),
        secret=asked.secret,
        volume=asked.volume,
        mount=asked.mount,
        shared_memory=asked.shared_memory,
        node_selector=asked.node_selector,
        tolerations=asked.tolerations,
    )
    return {
        "HEADRACE_GANG": gang_objects.to_text(gang),
        "HEADRACE_GANG_ROOM": f"{asked.mount}/{config.name}/gang",
    }


def placement(config: PipelineConfig) -> Placement:
    """Return where tasks run, as the configuration has it."""
    asked = config.kubeflow
    environment = {"TF_CPP_MIN_LOG_LEVEL": "1"}
    if asked.gpus_per_node:
        environment["HEADRACE_GPUS"] = str(asked.gpus_per_node)
    has_gang = asked.nodes > 1
    if has_gang:
        environment["HEADRACE_NODES"] = str(asked.nodes)
    return Placement(
        image=asked.image,
        pipeline_root=asked.pipeline_root,
        cpu=asked.cpu,
        trainer_memory=LIGHT_MEMORY if has_gang else memory.of_trainer(config),
        gpus=0 if has_gang else asked.gpus_per_node,
        shared_memory="" if has_gang else asked.shared_memory,
        node_selector={} if has_gang else asked.node_selector,
        tolerations=() if has_gang else asked.tolerations,
        trainer_environment=_gang(config) if has_gang else {},
        retries=asked.retries,
        secret=asked.secret,
        volume=asked.volume,
        mount=asked.mount,
        environment=environment,
    )
