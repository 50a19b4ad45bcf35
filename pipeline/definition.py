"""From a configuration to the pipeline: the one list of nodes, for this machine and for a cluster.

What a node is told and what its result depends on is known here without importing TFX; `build`
turns the same list into a `tfx.dsl.Pipeline`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from components import fingerprint
from components.csv_records import Dialect
from components.fingerprint import Fingerprint
from pipeline import own_model
from pipeline.config import PipelineConfig
from trainer.settings import parse_bytes, to_json

Settings = dict[str, Any]


@dataclass(frozen=True)
class Node:
    """One node of the pipeline.

    Attributes:
        id: name of the node, and of the component function in `module`.
        module: where the component is.
        inputs: argument of the component to ``Node.output``.
        settings: what the component is told, from the configuration and the data files.
        keys: configuration keys, or sections, that its result depends on.
        text_keys: more of them, where the model is of another kind than ``tabular``: what chooses
            the text column that it reads.
        also: modules that run in another process, so that no import leads to them.
    """

    id: str
    module: str
    settings: Callable[[PipelineConfig, list[str]], Settings]
    inputs: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    text_keys: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def upstream(self) -> tuple[str, ...]:
        """Nodes whose outputs this one reads."""
        return tuple(dict.fromkeys(source.split(".")[0] for source in self.inputs.values()))


@dataclass(frozen=True)
class Step:
    """A node with everything that a run decided about it: what `build` needs."""

    id: str
    module: str
    inputs: Mapping[str, str]
    settings: Settings
    fingerprint: Fingerprint


def _example_gen(config: PipelineConfig, files: list[str]) -> Settings:
    return {
        "files": files,
        "label": config.data.label,
        "null_values": list(config.data.null_values),
        "csv": dataclasses.asdict(dialect(config)),
        "clean": _clean(config),
        "memory_bytes": parse_bytes(config.data.memory, name="memory"),
        "split": _split(config),
    }


def _clean(config: PipelineConfig) -> Settings:
    return json.loads(json.dumps(to_json(config.data.clean)))


def dialect(config: PipelineConfig) -> Dialect:
    """Return how the CSV files are written."""
    return Dialect(config.data.delimiter, config.data.quote, config.data.encoding)


def _split(config: PipelineConfig) -> Settings:
    split = config.data.split
    return {"by": split.by, "column": split.column, "eval": split.eval}


def _nothing(config: PipelineConfig, files: list[str]) -> Settings:
    return {}


def choice(config: PipelineConfig) -> Settings:
    """Return what `components.text_choice` chooses the text or image column by."""
    return {
        "model": config.model.kind,
        "text": config.data.text,
        "image": config.data.image,
        "label": config.data.label,
        "ignore": list(config.data.ignore),
        "split": _split(config),
    }


def _schema_gen(config: PipelineConfig, files: list[str]) -> Settings:
    return {**choice(config), "schema": config.schema_path or "infer"}


def _data_gate(config: PipelineConfig, files: list[str]) -> Settings:
    return {
        **_example_gen(config, files),
        **choice(config),
        "task": config.data.task,
        "sequence": config.model.sequence,
        "vocabulary": config.model.vocabulary,
        "on_anomaly": config.validation.on_anomaly,
        "rules": dict(config.validation.rules),
        "drift": to_json(config.validation.drift),
        "skew": to_json(config.validation.skew),
        "global_batch": config.training.global_batch,
    }


def _trainer(config: PipelineConfig, files: list[str]) -> Settings:
    return {
        "choice": choice(config),
        "label": config.data.label,
        "task": config.data.task,
        "ignore": list(config.data.ignore),
        "clean": _clean(config),
        "folder": str(config.base) if own_model.is_own(config.model.kind) else "",
        "model": to_json(config.model),
        "training": to_json(config.training),
        "checkpoint": to_json(config.checkpoint),
        "checkpoints": str(config.folder / "checkpoints"),
        "monitoring": to_json(config.monitoring),
        "augment": to_json(config.data.augment),
    }


def _evaluator(config: PipelineConfig, files: list[str]) -> Settings:
    return {
        "slices": list(config.evaluation.slices),
        "margin": config.evaluation.margin,
        "models": str(config.folder / "models"),
    }


def _pusher(config: PipelineConfig, files: list[str]) -> Settings:
    return {
        "destination": str(config.folder / "models"),
        "name": config.name,
        "settings": config.flat(),
    }


CHOICE = ("data.text", "data.image", "data.ignore", "data.split.by", "data.split.column")
"""Keys that choose the text or image column, beside the label and the kind of model."""

NODES: tuple[Node, ...] = (
    Node(
        "ExampleGen",
        "components.example_gen",
        _example_gen,
        keys=(
            "data.files",
            "data.label",
            "data.null_values",
            "data.delimiter",
            "data.quote",
            "data.encoding",
            "data.clean",
            "data.split",
        ),
    ),
    Node(
        "StatisticsGen",
        "components.statistics",
        _nothing,
        inputs={"examples": "ExampleGen.examples"},
    ),
    Node(
        "SchemaGen",
        "components.schema",
        _schema_gen,
        inputs={"statistics": "StatisticsGen.statistics"},
        keys=("validation.schema", "data.label"),
        text_keys=("model.kind", *CHOICE),
    ),
    Node(
        "ExampleValidator",
        "components.anomalies",
        _nothing,
        inputs={"statistics": "StatisticsGen.statistics", "schema": "SchemaGen.schema"},
    ),
    Node(
        "DataGate",
        "components.gate",
        _data_gate,
        inputs={
            "examples": "ExampleGen.examples",
            "statistics": "StatisticsGen.statistics",
            "schema": "SchemaGen.schema",
            "anomalies": "ExampleValidator.anomalies",
        },
        keys=(
            "data.label",
            "data.task",
            "data.ignore",
            "validation.on_anomaly",
            "validation.rules",
            "validation.drift",
            "validation.skew",
            "training.global_batch",
        ),
        text_keys=("model.kind", "model.sequence", "model.vocabulary", *CHOICE),
    ),
    Node(
        "Trainer",
        "components.training",
        _trainer,
        inputs={
            "examples": "ExampleGen.examples",
            "statistics": "StatisticsGen.statistics",
            "schema": "SchemaGen.schema",
            "verdict": "DataGate.verdict",
        },
        keys=(
            "data.label",
            "data.task",
            "data.ignore",
            "data.clean",
            "data.augment",
            "model",
            "training",
        ),
        text_keys=CHOICE,
        also=("trainer.worker",),
    ),
    Node(
        "Evaluator",
        "components.evaluator",
        _evaluator,
        inputs={
            "examples": "ExampleGen.examples",
            "model": "Trainer.model",
            "model_run": "Trainer.model_run",
        },
        keys=("evaluation",),
    ),
    Node(
        "Pusher",
        "components.pusher",
        _pusher,
        inputs={
            "model": "Trainer.model",
            "blessing": "Evaluator.blessing",
            "examples": "ExampleGen.examples",
            "statistics": "StatisticsGen.statistics",
            "schema": "SchemaGen.schema",
            "evaluation": "Evaluator.evaluation",
            "model_run": "Trainer.model_run",
        },
        # Named later, the model is pushed once more, so that the registry gets it.
        keys=("tracking.register",),
    ),
)

TRAINER = next(node for node in NODES if node.id == "Trainer")


def plan_nodes(measured_steps: int = 0) -> tuple[Node, ...]:
    """Return what `headrace plan` runs: the data's nodes, then in the Trainer's place a planner.

    Args:
        measured_steps: that each lever is measured with; 0: nothing is trained.
    """
    told = {"purpose": "plan"}
    if measured_steps:
        told = {"purpose": "measure", "measured_steps": measured_steps}

    def settings(config: PipelineConfig, files: list[str]) -> Settings:
        return {**TRAINER.settings(config, files), **told}

    return (
        *NODES[: NODES.index(TRAINER)],
        replace(TRAINER, id="MemoryPlanner", module="components.planning", settings=settings),
    )


IRRELEVANT = ("training.max_restarts",)
"""Keys of a section above that change no result."""


BEAM_RUNNERS = {"flink": "FlinkRunner", "spark": "SparkRunner", "dataflow": "DataflowRunner"}


def beam_args(config: PipelineConfig) -> list[str]:
    """Return the arguments of Beam: of this process's own runner, or of a cluster's."""
    if config.beam.runner == "local":
        return list(LOCAL_BEAM)
    return [f"--runner={BEAM_RUNNERS[config.beam.runner]}", *config.beam.args]


LOCAL_BEAM = (
    # Beam's own default downloads another runner; this one runs in the process.
    "--runner=FnApiRunner",
    "--direct_num_workers=1",
    # Not read by this runner. Without it, TFX packs itself for workers elsewhere, for 8 s a node.
    "--sdk_container_image=local",
)


def own_part(
    node: Node, config: PipelineConfig, digests: Mapping[str, str], flat: Mapping[str, Any]
) -> Fingerprint:
    """Return a node's fingerprint without what comes from the nodes before it.

    Args:
        node: which node.
        config: the configuration.
        digests: content hash of each data file.
        flat: the configuration as dotted keys.
    """
    data: dict[str, str] = {}
    if node.id == "ExampleGen":
        data = dict(digests)
    elif node.id == "SchemaGen" and config.schema_path:
        data = fingerprint.data_digests([config.schema_path])
    kind = config.model.kind
    keys = node.keys if kind == "tabular" else (*node.keys, *node.text_keys)
    code = fingerprint.code_digests([node.module, *node.also])
    if node.id == "Trainer" and own_model.is_own(kind):
        code |= own_model.digests(kind, config.base)
    return {
        "data": data,
        "settings": {name: value for name, value in flat.items() if _concerns(keys, name)},
        "code": code,
        "packages": dict(fingerprint.package_versions()),
    }


def _concerns(keys: Iterable[str], name: str) -> bool:
    if name in IRRELEVANT:
        return False
    return any(name == one or name.startswith(one + ".") for one in keys)


def build(
    *, name: str, folder: Path, steps: Iterable[Step], beam: Iterable[str] = LOCAL_BEAM
) -> Any:
    """Return the `tfx.dsl.Pipeline` of these steps, in their order.

    Args:
        name: the pipeline's name.
        folder: where its artifacts and its ML Metadata stand.
        steps: the nodes, each after those that it reads from.
        beam: arguments of Beam, for the nodes that run on it.
    """
    from tfx.orchestration import metadata
    from tfx.orchestration import pipeline as tfx_pipeline

    made: dict[str, Any] = {}
    for step in steps:
        component = getattr(importlib.import_module(step.module), step.id)
        inputs = {
            argument: made[source.split(".")[0]].outputs[source.split(".")[1]]
            for argument, source in step.inputs.items()
        }
        made[step.id] = component(
            **inputs,
            settings=json.dumps(step.settings, sort_keys=True),
            fingerprint=json.dumps(step.fingerprint, sort_keys=True),
        ).with_id(step.id)
    return tfx_pipeline.Pipeline(
        pipeline_name=name,
        pipeline_root=str(folder),
        components=list(made.values()),
        enable_cache=True,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(
            str(folder / "metadata.sqlite")
        ),
        beam_pipeline_args=list(beam),
    )
