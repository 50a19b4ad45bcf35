"""SchemaGen: the schema that the data must keep to, inferred from train or read from a file.

Only the train split is looked at: a schema that was widened by the eval split would accept whatever
that holds.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components import text_choice
from components.schema_file import KEY, parse_schema, read_text, schema_text
from components.statistics import read_statistics
from trainer.errors import SettingError

SCHEMA_FILE = "schema.pbtxt"
KINDS = {"INT": "int", "FLOAT": "float", "BYTES": "string"}
NO_TEXT: Mapping[str, Any] = {"model": "tabular"}
"""No text column is chosen."""


@component
def SchemaGen(
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: OutputArtifact[standard_artifacts.Schema],
    settings: Parameter[str],
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument]
) -> None:
    """Write the schema of the train split, or the one that the settings name."""
    chosen = json.loads(settings)
    write_schema(
        statistics.uri, schema.uri, schema=chosen["schema"], label=chosen["label"], choice=chosen
    )


def write_schema(
    statistics: str,
    folder: str,
    *,
    schema: str,
    label: str,
    choice: Mapping[str, Any] = NO_TEXT,
) -> None:
    """Write ``schema.pbtxt`` into `folder`.

    Args:
        statistics: place of the ExampleStatistics artifact.
        folder: place of the Schema artifact.
        schema: ``infer``, or the path of a ``.pbtxt`` file, which is taken as it is.
        label: name of the label's column; empty: there is none.
        choice: what `text_choice` chooses the text column by.

    Raises:
        SettingError: when the file cannot be read or lacks a column that is needed, or it is not
            clear which column is the text.
    """
    if schema == "infer":
        text = schema_text(infer_schema(read_statistics(statistics, "train"), choice))
    else:
        text = read_text(schema)
        parsed = parse_schema(text, schema)
        if label:
            _require_label(parsed, schema, label)
        text_choice.choose(kinds_of(parsed), choice)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / SCHEMA_FILE).write_text(text, encoding="utf-8")


def infer_schema(
    train: statistics_pb2.DatasetFeatureStatistics, choice: Mapping[str, Any] = NO_TEXT
) -> schema_pb2.Schema:
    """Return TFDV's schema of these statistics, columns and values in the order of their names.

    The text that a model reads is told to be natural language, and has no list of known values;
    nor has the path of a document or an image. Columns of images are told to be such.

    Args:
        train: statistics of the train split.
        choice: what `text_choice` chooses the text column by.

    Raises:
        SettingError: when it is not clear which column is the text.
    """
    inferred = tfdv.infer_schema(statistics_pb2.DatasetFeatureStatisticsList(datasets=[train]))
    inferred.feature.sort(key=lambda feature: feature.name)
    inferred.string_domain.sort(key=lambda domain: domain.name)
    for domain in inferred.string_domain:
        domain.value.sort()
    for feature, seen in _with_statistics(inferred, train):
        if seen.type == statistics_pb2.FeatureNameStatistics.BYTES:
            feature.image_domain.SetInParent()
    _free_texts(inferred, choice)
    return inferred


def _with_statistics(
    schema: schema_pb2.Schema, train: statistics_pb2.DatasetFeatureStatistics
) -> Iterator[tuple[Any, statistics_pb2.FeatureNameStatistics]]:
    seen = {one.path.step[0]: one for one in train.features}
    yield from ((one, seen[one.name]) for one in schema.feature if one.name in seen)


def _free_texts(schema: schema_pb2.Schema, choice: Mapping[str, Any]) -> None:
    """Take the known values of texts away: another text is none the worse for being new."""
    kinds = kinds_of(schema)
    text = text_choice.choose(kinds, choice)
    free = {text, *text_choice.places(kinds)}
    for feature in schema.feature:
        if feature.name not in free or kinds.get(feature.name) == "image":
            continue
        lists = [one for one in schema.string_domain if one.name == feature.domain]
        feature.ClearField(feature.WhichOneof("domain_info") or "domain")
        if feature.name == text:
            feature.natural_language_domain.SetInParent()
        for one in lists:
            schema.string_domain.remove(one)


def kinds_of(schema: schema_pb2.Schema) -> dict[str, str]:
    """Return column to ``int``, ``float``, ``string`` or ``image``; others are not in it."""
    names = {feature.name: schema_pb2.FeatureType.Name(feature.type) for feature in schema.feature}
    images = {one.name for one in schema.feature if one.HasField("image_domain")}
    return {
        name: "image" if name in images else KINDS[kind]
        for name, kind in names.items()
        if kind in KINDS
    }


def read_schema(folder: str) -> schema_pb2.Schema:
    """Return the schema of a Schema artifact.

    Raises:
        SettingError: when it cannot be parsed.
    """
    path = Path(folder) / SCHEMA_FILE
    return parse_schema(path.read_text(encoding="utf-8"), str(path))


def _require_label(schema: schema_pb2.Schema, path: str, label: str) -> None:
    names = [feature.name for feature in schema.feature]
    if label not in names:
        raise SettingError(
            f"the schema has no feature for the label {label}",
            where=KEY,
            holds=f'"{path}" with {", ".join(names) or "no feature"}',
            right="add the label to the file, or name the schema of this data",
        )
