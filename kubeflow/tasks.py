"""From a TFX pipeline to tasks: what each node is told, what it reads and what it waits for.

TFX's own compiler does the reading. Its representation names, for each input, the contexts, type,
output and producer that the node will ask ML Metadata for; so a task can fill a throw-away store
from nothing but its own representation.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import SettingError

KINDS: Mapping[str, type] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
    "files": list,
}
"""Of a parameter; ``files`` are paths, patterns and addresses of data, found when a task starts."""
VIEWS = {
    "ExampleAnomalies": ("report",),
    "DataVerdict": ("report",),
    "ModelEvaluation": ("metrics", "classification"),
}
"""What a node shows in the KFP dashboard, by the type of what it makes."""
KFP_TYPES = {"Examples": "Dataset", "Model": "Model", "PushedModel": "Model"}
ROOT_PARAMETERS = frozenset({"pipeline-root", "pipeline-run-id"})


@dataclass(frozen=True)
class Parameter:
    """What a person may change from run to run.

    Attributes:
        name: of the KFP pipeline's input.
        kind: a key of `KINDS`.
        default: its value when nothing else is said.
    """

    name: str
    kind: str
    default: Any


@dataclass(frozen=True)
class Binding:
    """Where a parameter goes.

    Attributes:
        parameter: its name.
        node: the node's id.
        property: the node's execution property; empty: none, the step itself reads it.
        path: where in that property's JSON text; empty: the property itself.
        as_given: whether ``files`` stay what they were named by.
    """

    parameter: str
    node: str
    property: str
    path: tuple[str, ...] = ()
    as_given: bool = False


@dataclass(frozen=True)
class Extras:
    """What a pipeline asks for beside its nodes.

    Attributes:
        parameters: beside the pipeline's own runtime parameters.
        bindings: where they go.
        texts: node to place (``property/path``) to text: files that travel in the package.
        scratch: node to places that hold paths under the task's own folder.
        digest_of: the parameter whose files' content is a parameter of its own, `DIGEST`;
            empty: none is.
        cached: nodes whose cache key holds that digest, or what was made with it.
        facts: what a node's task is told beside its node, by node. It is part of the cache key, so
            a task is told of no setting that what it makes does not depend on.
    """

    parameters: tuple[Parameter, ...] = ()
    bindings: tuple[Binding, ...] = ()
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scratch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest_of: str = ""
    cached: frozenset[str] = frozenset()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


DIGEST = "data_digest"


@dataclass(frozen=True)
class Task:
    """A node as a KFP task.

    Attributes:
        id: the node's id in TFX.
        name: the component's name in Python, from which KFP makes the task's.
        spec: everything that the task is told; JSON values.
        inputs: name of the KFP input to the task's name and the name of its output.
        outputs: name of the KFP output to its KFP type.
        parameters: names of the parameters that it takes.
        after: names of tasks that it waits for without reading from them.
        is_cached: whether KFP may take an earlier result.
        trains: whether it makes a model from examples.
    """

    id: str
    name: str
    spec: dict[str, Any]
    inputs: Mapping[str, tuple[str, str]]
    outputs: Mapping[str, str]
    parameters: tuple[str, ...]
    after: tuple[str, ...]
    is_cached: bool
    trains: bool


def identifier(text: str) -> str:
    """Return a text in Python's small letters: ``ExampleGen`` becomes ``example_gen``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return name if name[:1].isalpha() else f"n_{name}"


def runtime_parameters(pipeline: Any) -> tuple[tuple[Parameter, ...], tuple[Binding, ...]]:
    """Return the runtime parameters of a pipeline's own, and where they go.

    TFX's representation drops defaults such as 0 and "", so they are read from the object.

    Raises:
        SettingError: two of one name have different defaults or types, or two names become one.
    """
    from tfx.orchestration import data_types

    found: dict[str, Parameter] = {}
    bindings: list[Binding] = []
    for node in pipeline.components:
        for key, value in getattr(node, "exec_properties", {}).items():
            if not isinstance(value, data_types.RuntimeParameter) or value.name in ROOT_PARAMETERS:
                continue
            name = identifier(value.name)
            one = Parameter(name, value.ptype.__name__, value.default)
            if found.setdefault(name, one) != one:
                raise SettingError(
                    "two runtime parameters of the pipeline become one in Kubeflow",
                    where=f"runtime parameter {value.name}",
                    holds=name,
                    right="give each name one type and one default",
                )
            bindings.append(Binding(name, node.id, key))
    return tuple(found.values()), tuple(bindings)


def tasks(pipeline: Any, extras: Extras) -> list[Task]:
    """Return a `tfx.dsl.Pipeline` as tasks, each after those that it needs.

    Raises:
        SettingError: two nodes have one name in Kubeflow, or a node is of no kind that runs there.
    """
    from tfx.dsl.compiler import compiler
    from tfx.orchestration.local import runner_utils

    representation = compiler.Compiler().compile(pipeline)
    deployment = runner_utils.extract_local_deployment_config(representation)
    nodes = [one.pipeline_node for one in representation.nodes]
    if any(one.WhichOneof("node") != "pipeline_node" for one in representation.nodes):
        raise SettingError(
            "has a pipeline within a pipeline, which does not run on Kubeflow",
            where=f"pipeline {representation.pipeline_info.id}",
            right="name its nodes one by one",
        )
    names = task_names([one.node_info.id for one in nodes])
    bindings = {
        one.node_info.id: [it for it in extras.bindings if it.node == one.node_info.id]
        for one in nodes
    }
    whole = _Whole(
        representation.pipeline_info.id, names, deployment, extras, _undeclared(nodes, names)
    )
    return keyed([_task(one, whole, bindings[one.node_info.id]) for one in nodes])


def keyed(made: Iterable[Task]) -> list[Task]:
    """Return tasks whose cache key holds all that the tasks before them were told.

    KFP's own key holds a task's parameters, command, image and environment, but of the artifacts
    that it reads nothing: another model, made by another training, would be the same hit. So each
    cached task also takes the parameters of those before it, and a digest of their specifications.

    Args:
        made: each after those that it needs.
    """
    from components import fingerprint

    done: dict[str, Task] = {}
    for one in made:
        before = [done[name] for name in dict.fromkeys((*_read(one), *one.after))]
        if one.is_cached:
            more = [name for up in before for name in up.parameters if name in _telling(up)]
            told = {up.name: fingerprint.digest(up.spec) for up in before}
            one = dataclasses.replace(
                one,
                parameters=tuple(dict.fromkeys((*one.parameters, *sorted(more)))),
                spec={**one.spec, "before": told},
            )
        done[one.name] = one
    return list(done.values())


def _read(task: Task) -> list[str]:
    return [name for name, _ in task.inputs.values()]


def _telling(task: Task) -> set[str]:
    """Return the parameters that change what a task, or one before it, makes."""
    own = {one["name"]: one["property"] for one in task.spec["parameters"]}
    return {name for name in task.parameters if own.get(name, "before")}


def task_names(ids: list[str]) -> dict[str, str]:
    """Return each node's component name.

    Raises:
        SettingError: two nodes become one.
    """
    names: dict[str, str] = {}
    taken: dict[str, str] = {identifier(DIGEST): DIGEST}
    for one in ids:
        name = identifier(one)
        if name in taken:
            raise SettingError(
                f"the nodes {taken[name]} and {one} have the same name in Kubeflow",
                where=f"node {one}",
                holds=name.replace("_", "-"),
                right="give one of them another id",
            )
        taken[name], names[one] = one, name
    return names


@dataclass(frozen=True)
class _Whole:
    """What all nodes share."""

    pipeline: str
    names: Mapping[str, str]
    deployment: Any
    extras: Extras
    undeclared: Mapping[str, Mapping[str, str]]


def _undeclared(nodes: list[Any], names: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return outputs that others read and TFX's representation does not list: those of a Resolver.

    Returns: by node, the type of each output.
    """
    declared = {one.node_info.id: set(one.outputs.outputs) for one in nodes}
    found: dict[str, dict[str, str]] = {}
    for one in nodes:
        for spec in one.inputs.inputs.values():
            for channel in spec.channels:
                producer, key = channel.producer_node_query.id, channel.output_key
                if producer in names and key not in declared[producer]:
                    found.setdefault(producer, {})[key] = channel.artifact_query.type.name
    return found


def _task(node: Any, whole: _Whole, bindings: list[Binding]) -> Task:
    one = node.node_info.id
    inputs = _inputs(node, whole.names)
    kinds = {key: _type(node, key) for key in node.outputs.outputs}
    kinds |= whole.undeclared.get(one, {})
    outputs = {identifier(key): key for key in sorted(kinds)}
    types = {name: kinds[key] for name, key in outputs.items()}
    views = sorted({view for kind in types.values() for view in VIEWS.get(kind, ())})
    read = {whole.names[producer] for producer, _ in inputs.values()}
    parameters = tuple(dict.fromkeys(binding.parameter for binding in bindings))
    spec = {
        "id": one,
        "pipeline": whole.pipeline,
        "node": _representation(node),
        **_executables(whole.deployment, one),
        "inputs": {name: list(source) for name, source in sorted(inputs.items())},
        "outputs": outputs,
        "views": views,
        "parameters": [
            {
                "name": it.parameter,
                "property": it.property,
                "path": list(it.path),
                "as_given": it.as_given,
            }
            for it in bindings
        ],
        "texts": dict(whole.extras.texts.get(one, {})),
        "scratch": list(whole.extras.scratch.get(one, ())),
        "facts": dict(whole.extras.facts.get(one, {})),
    }
    return Task(
        id=one,
        name=whole.names[one],
        spec=spec,
        inputs={
            name: (whole.names[producer], f"out_{identifier(key)}")
            for name, (producer, key) in inputs.items()
        },
        outputs={
            **{f"out_{name}": KFP_TYPES.get(kind, "Artifact") for name, kind in types.items()},
            **{f"view_{view}": _VIEW_TYPES[view] for view in views},
        },
        parameters=parameters,
        after=tuple(
            whole.names[up]
            for up in node.upstream_nodes
            if up in whole.names and whole.names[up] not in read
        ),
        is_cached=one in whole.extras.cached,
        trains="Model" in types.values() and any(key == "examples" for _, key in inputs.values()),
    )


_VIEW_TYPES = {"report": "HTML", "metrics": "Metrics", "classification": "ClassificationMetrics"}


def _inputs(node: Any, names: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return each KFP input with the producer and the output that it comes from, once each."""
    found: dict[str, tuple[str, str]] = {}
    for _, spec in sorted(node.inputs.inputs.items()):
        for channel in spec.channels:
            source = (channel.producer_node_query.id, channel.output_key)
            # What another pipeline made, or nobody, is not there to be read.
            if source[0] in names and source not in found.values():
                name = f"in_{names[source[0]]}_{identifier(source[1])}"
                while name in found:
                    name += "_"
                found[name] = source
    return found


def _type(node: Any, key: str) -> str:
    return node.outputs.outputs[key].artifact_spec.type.name


def _representation(node: Any) -> dict[str, Any]:
    """Return a node's own representation, with nothing of its neighbours.

    So a node that is added elsewhere in the pipeline changes no cache key of this one.
    """
    from google.protobuf import json_format

    own = type(node)()
    own.CopyFrom(node)
    del own.upstream_nodes[:]
    del own.downstream_nodes[:]
    # KFP decides what is cached; the store is new in every task.
    own.execution_options.caching_options.enable_cache = False
    return json_format.MessageToDict(own, preserving_proto_field_name=True)


def _executables(deployment: Any, node: str) -> dict[str, Any]:
    """Return what runs a node, and its driver, by the name of the proto.

    Raises:
        SettingError: it is a container, which TFX's launcher would start by Docker.
    """
    from google.protobuf import json_format

    found: dict[str, Any] = {}
    for name, specs in (
        ("executor", deployment.executor_specs),
        ("driver", deployment.custom_driver_specs),
    ):
        if node in specs:
            kind = specs[node].WhichOneof("spec")
            if kind == "container_executable_spec":
                raise SettingError(
                    "runs in a container of its own, which is not supported here",
                    where=f"node {node}",
                    right="make it a Python component",
                )
            found[name] = json_format.MessageToDict(specs[node], preserving_proto_field_name=True)
    return found


def spec_text(spec: Mapping[str, Any]) -> str:
    """Return a task's specification as JSON text that no template engine changes.

    ``{{`` begins a placeholder in KFP and Argo, and kfp.local replaces the word ``python3``;
    outside of texts JSON has neither.
    """
    text = json.dumps(spec, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    text = text.replace("{{", "\\u007b\\u007b")
    return text.replace("python3", "python\\u0033")
