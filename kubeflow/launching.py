"""A node by TFX's portable launcher, over a store that holds nothing but the node's own inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubeflow.task import TFX_KEY
from trainer.errors import HeadraceError, TrainingError

RESOLVER = "Resolver"
EXTERNAL = "is_external"


def launch(
    spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path
) -> dict[str, dict[str, Any]]:
    """Run the node and return metadata, and places where they differ, of its outputs for KFP.

    Args:
        spec: of the task, its parameters bound.
        given: the arguments of the task: each artifact's path and metadata.
        scratch: the task's own folder.

    Raises:
        TrainingError: the node did not run to its end.
    """
    from google.protobuf import json_format
    from tfx.orchestration import metadata
    from tfx.orchestration.portable import launcher, runtime_parameter_utils
    from tfx.proto.orchestration import pipeline_pb2

    if spec["node"]["node_info"]["type"]["name"].endswith(f".{RESOLVER}"):
        # Without a history there is nothing that it could find.
        for name in spec["outputs"]:
            Path(given[f"out_{name}"]["path"]).mkdir(parents=True, exist_ok=True)
        return {f"out_{name}": {"metadata": {TFX_KEY: "null"}} for name in spec["outputs"]}
    node = json_format.ParseDict(spec["node"], pipeline_pb2.PipelineNode())
    run = pipeline_pb2.PipelineRuntimeSpec()
    run.pipeline_root.field_value.string_value = str(scratch / "tfx")
    run.pipeline_run_id.field_value.string_value = "kubeflow"
    runtime_parameter_utils.substitute_runtime_parameter(
        node, {"pipeline-run-id": "kubeflow", "pipeline-root": str(scratch / "tfx")}
    )
    for name, key in spec["outputs"].items():
        path = _output_path(node, key, Path(given[f"out_{name}"]["path"]))
        node.outputs.outputs[key].artifact_spec.external_artifact_uris.append(str(path))
    connection = metadata.sqlite_metadata_connection_config(str(scratch / "metadata.sqlite"))
    with metadata.Metadata(connection) as store:
        _seed(store, node, _inputs(spec, given))
    made = launcher.Launcher(
        pipeline_node=node,
        mlmd_connection=metadata.Metadata(connection),
        pipeline_info=pipeline_pb2.PipelineInfo(id=spec["pipeline"]),
        pipeline_runtime_spec=run,
        executor_spec=_executable(spec.get("executor")),
        custom_driver_spec=_executable(spec.get("driver")),
    ).launch()
    with metadata.Metadata(connection) as store:
        return _made(store, node, spec, made)


def cause(error: BaseException) -> HeadraceError | None:
    """Return the error of ours behind what TFX raised; None: there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, HeadraceError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _executable(told: Mapping[str, Any] | None) -> Any:
    from google.protobuf import json_format
    from tfx.proto.orchestration import local_deployment_config_pb2

    if told is None:
        return None
    spec = json_format.ParseDict(told, local_deployment_config_pb2.ExecutableSpec())
    return getattr(spec, spec.WhichOneof("spec"))


def _output_path(node: Any, key: str, path: Path) -> Path:
    """Make the place of an output: the launcher makes none that it is told of.

    A value is one file; KFP uploads whatever there is, and warns where there is nothing.
    """
    if _is_value(node.outputs.outputs[key].artifact_spec.type):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    else:
        path.mkdir(parents=True, exist_ok=True)
    return path


def _is_value(kind: Any) -> bool:
    return kind.name in {"String", "Integer", "Float", "Boolean", "JsonValue", "Bytes"}


def _inputs(
    spec: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[tuple[str, str], tuple[dict[str, Any], Path]]:
    """Return what TFX knows of each input and where it is, by producer and output key.

    Raises:
        TrainingError: an input was not made by a task of ours.
    """
    found = {}
    for name, (producer, key) in spec["inputs"].items():
        held, path = given[name]["metadata"], Path(given[name]["path"])
        if TFX_KEY not in held:
            raise TrainingError(
                f"the input {key} of {producer} has no metadata {TFX_KEY}",
                where=spec["id"],
                right="run the whole pipeline anew",
            )
        told = json.loads(held[TFX_KEY])
        if told is None:
            continue
        if not path.exists():
            # Object storage keeps no empty folders.
            path.mkdir(parents=True)
        found[producer, key] = (told, path)
    return found


def _seed(
    store: Any, node: Any, inputs: Mapping[tuple[str, str], tuple[dict[str, Any], Path]]
) -> None:
    """Fill the store with what the node's own input channels will ask it for."""
    from ml_metadata.proto import metadata_store_pb2
    from tfx.orchestration.portable import execution_publish_utils
    from tfx.orchestration.portable.mlmd import context_lib
    from tfx.proto.orchestration import pipeline_pb2

    done = set()
    for spec in node.inputs.inputs.values():
        for channel in spec.channels:
            source = (channel.producer_node_query.id, channel.output_key)
            if source not in inputs or source in done:
                continue
            done.add(source)
            contexts = pipeline_pb2.NodeContexts()
            for query in channel.context_queries:
                contexts.contexts.add(type=query.type, name=query.name)
            made = context_lib.prepare_contexts(store, contexts)
            execution = execution_publish_utils.register_execution(
                store, metadata_store_pb2.ExecutionType(name=source[0]), made
            )
            execution_publish_utils.publish_succeeded_execution(
                store, execution.id, made, {source[1]: [_artifact(*inputs[source])]}
            )


def _artifact(told: Mapping[str, Any], path: Path) -> Any:
    from google.protobuf import json_format
    from ml_metadata.proto import metadata_store_pb2
    from tfx.types import artifact_utils

    kind = json_format.ParseDict(told["type"], metadata_store_pb2.ArtifactType())
    held = json_format.ParseDict(told["artifact"], metadata_store_pb2.Artifact())
    held.uri = str(path)
    # Not `from_json_dict`: it would import the module that the type was declared in.
    return artifact_utils.deserialize_artifact(kind, held)


def _made(store: Any, node: Any, spec: Mapping[str, Any], info: Any) -> dict[str, dict[str, Any]]:
    """Read back what the launcher published.

    Raises:
        TrainingError: it published no outputs; it returns as if all were well when inputs are
            missing.
    """
    from ml_metadata.proto import metadata_store_pb2

    kinds = metadata_store_pb2.Event
    execution = info.execution_id if info is not None else None
    if execution is None:
        raise TrainingError("did not run: an input that it needs is missing", where=spec["id"])
    (held,) = store.store.get_executions_by_id([execution])
    good = {metadata_store_pb2.Execution.COMPLETE, metadata_store_pb2.Execution.CACHED}
    if held.last_known_state not in good:
        said = held.custom_properties["__execution_result__"].string_value.strip()
        raise TrainingError(f"did not run: {said.splitlines()[-1] if said else held}")
    events = store.store.get_events_by_execution_ids([execution])
    keys = {
        event.artifact_id: event.path.steps[0].key
        for event in events
        if event.type in {kinds.OUTPUT, kinds.INTERNAL_OUTPUT} and event.path.steps
    }
    artifacts = {keys[one.id]: one for one in store.store.get_artifacts_by_id(list(keys))}
    return {
        f"out_{name}": _told(node, key, artifacts.get(key)) for name, key in spec["outputs"].items()
    }


def _told(node: Any, key: str, artifact: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    if artifact is None:
        return {"metadata": {TFX_KEY: "null"}}
    spec = node.outputs.outputs[key].artifact_spec
    own = type(artifact)()
    own.CopyFrom(artifact)
    for field in ("id", "type_id", "uri", "create_time_since_epoch",
                  "last_update_time_since_epoch"):  # fmt: skip
        own.ClearField(field)
    own.custom_properties.pop(EXTERNAL, None)
    text = json.dumps(
        {
            "type": json_format.MessageToDict(spec.type, preserving_proto_field_name=True),
            "artifact": json_format.MessageToDict(own, preserving_proto_field_name=True),
        },
        sort_keys=True,
    )
    made = {TFX_KEY: text, "tfx_type": spec.type.name, "made": f"{time.time():.0f}"}
    for properties in (artifact.properties, artifact.custom_properties):
        for name, value in properties.items():
            if name != EXTERNAL and value.WhichOneof("value") == "string_value":
                made.setdefault(name, value.string_value)
    answer: dict[str, Any] = {"metadata": made}
    if list(spec.external_artifact_uris) and artifact.uri not in spec.external_artifact_uris:
        # An importer's artifact stays where it is.
        answer["uri"] = artifact.uri
    return answer
