"""ExampleValidator: the statistics of every split against the schema, in TFX's layout.

Beside it, TFDV's anomalies in this house's terms: the kinds of `verdict`.
"""

from collections.abc import Iterator
from pathlib import Path

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import artifact_utils, standard_artifacts

from components.schema import read_schema
from components.schema_freeze import TRAINING
from components.statistics import read_statistics
from components.verdict import Anomaly

ANOMALIES_FILE = "SchemaDiff.pb"
TFDV_KINDS: dict[str, tuple[str, ...]] = {
    "UNEXPECTED_VALUES": (
        "ENUM_TYPE_UNEXPECTED_STRING_VALUES",
        "BOOL_TYPE_UNEXPECTED_STRING",
        "BOOL_TYPE_UNEXPECTED_FLOAT",
    ),
    "COLUMN_MISSING": ("SCHEMA_MISSING_COLUMN",),
    "NEW_COLUMN": ("SCHEMA_NEW_COLUMN",),
    "WRONG_TYPE": (
        "UNEXPECTED_DATA_TYPE",
        "BOOL_TYPE_BYTES_NOT_INT",
        "BOOL_TYPE_BYTES_NOT_STRING",
        "BOOL_TYPE_FLOAT_NOT_INT",
        "BOOL_TYPE_FLOAT_NOT_STRING",
        "BOOL_TYPE_INT_NOT_STRING",
        "BOOL_TYPE_STRING_NOT_INT",
        "ENUM_TYPE_BYTES_NOT_STRING",
        "ENUM_TYPE_FLOAT_NOT_STRING",
        "ENUM_TYPE_INT_NOT_STRING",
        "FLOAT_TYPE_NOT_FLOAT",
        "FLOAT_TYPE_STRING_NOT_FLOAT",
        "FLOAT_TYPE_NON_STRING",
        "FLOAT_TYPE_UNKNOWN_TYPE_NUMBER",
        "INT_TYPE_INT_EXPECTED",
        "INT_TYPE_NOT_INT_STRING",
        "INT_TYPE_NOT_STRING",
        "INT_TYPE_STRING_EXPECTED",
        "INT_TYPE_UNKNOWN_TYPE_NUMBER",
        "STRING_TYPE_NOW_FLOAT",
        "STRING_TYPE_NOW_INT",
        "VALUE_NESTEDNESS_MISMATCH",
    ),
    "MISSING_VALUES": (
        "FEATURE_TYPE_LOW_FRACTION_PRESENT",
        "FEATURE_TYPE_LOW_NUMBER_PRESENT",
        "FEATURE_TYPE_NOT_PRESENT",
        "FEATURE_TYPE_NO_VALUES",
        "FEATURE_TYPE_LOW_NUMBER_VALUES",
        "INVALID_FEATURE_SHAPE",
    ),
    "TOO_MANY_VALUES": ("FEATURE_TYPE_HIGH_NUMBER_VALUES", "FEATURE_TYPE_UNEXPECTED_REPEATED"),
    "OUT_OF_RANGE": (
        "BOOL_TYPE_BIG_INT",
        "BOOL_TYPE_SMALL_INT",
        "FLOAT_TYPE_BIG_FLOAT",
        "FLOAT_TYPE_SMALL_FLOAT",
        "INT_TYPE_BIG_INT",
        "INT_TYPE_SMALL_INT",
    ),
    "NOT_FINITE": ("FLOAT_TYPE_HAS_NAN", "FLOAT_TYPE_HAS_INF"),
    "NOT_UTF8": ("ENUM_TYPE_INVALID_UTF8",),
    "UNIQUE_VALUES": (
        "FEATURE_TYPE_HIGH_UNIQUE",
        "FEATURE_TYPE_LOW_UNIQUE",
        "FEATURE_TYPE_NO_UNIQUE",
    ),
    "DRIFT": (
        "COMPARATOR_CONTROL_DATA_MISSING",
        "COMPARATOR_TREATMENT_DATA_MISSING",
        "COMPARATOR_L_INFTY_HIGH",
        "COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH",
        "COMPARATOR_NORMALIZED_ABSOLUTE_DIFFERENCE_HIGH",
    ),
    "SKEW": ("SCHEMA_TRAINING_SERVING_SKEW",),
    "ROW_COUNT": (
        "COMPARATOR_LOW_NUM_EXAMPLES",
        "COMPARATOR_HIGH_NUM_EXAMPLES",
        "DATASET_LOW_NUM_EXAMPLES",
        "DATASET_HIGH_NUM_EXAMPLES",
        "NO_DATA_IN_SPAN",
    ),
    "INVALID_SCHEMA": (
        "BOOL_TYPE_INVALID_CONFIG",
        "DOMAIN_INVALID_FOR_TYPE",
        "FEATURE_MISSING_NAME",
        "FEATURE_MISSING_TYPE",
        "INVALID_DOMAIN_SPECIFICATION",
        "INVALID_SCHEMA_SPECIFICATION",
    ),
}
"""Kind in this house to the reasons of TFDV's anomalies; what is not here is ``OTHER``."""
KIND_OF = {reason: kind for kind, reasons in TFDV_KINDS.items() for reason in reasons}


@component
def ExampleValidator(
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: InputArtifact[standard_artifacts.Schema],
    anomalies: OutputArtifact[standard_artifacts.ExampleAnomalies],
    settings: Parameter[str],  # ruff: ignore[unused-function-argument]
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument]
) -> None:
    """Write TFDV's anomalies of every split."""
    splits = artifact_utils.decode_split_names(statistics.split_names)
    anomalies.split_names = artifact_utils.encode_split_names(splits)
    anomalies.span = statistics.span
    blessed = write_anomalies(statistics.uri, schema.uri, anomalies.uri, splits=splits)
    # As TFX's own ExampleValidator does.
    anomalies.set_json_value_custom_property("blessed", blessed)


def write_anomalies(
    statistics: str, schema: str, anomalies: str, *, splits: list[str]
) -> dict[str, int]:
    """Write ``Split-<name>/SchemaDiff.pb``; return 1 for each split without an anomaly, else 0."""
    expected = read_schema(schema)
    blessed = {}
    for split in splits:
        found = validate(read_statistics(statistics, split), expected)
        folder = Path(anomalies) / f"Split-{split}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ANOMALIES_FILE).write_bytes(found.SerializeToString(deterministic=True))
        blessed[split] = int(not found.anomaly_info and not found.HasField("dataset_anomaly_info"))
    return blessed


def validate(
    statistics: statistics_pb2.DatasetFeatureStatistics, schema: schema_pb2.Schema
) -> anomalies_pb2.Anomalies:
    """Return TFDV's anomalies of one split."""
    whole = statistics_pb2.DatasetFeatureStatisticsList(datasets=[statistics])
    environment = TRAINING if TRAINING in schema.default_environment else None
    return tfdv.validate_statistics(whole, schema, environment)


def read_anomalies(anomalies: str, split: str) -> list[Anomaly]:
    """Return one split's anomalies in this house's terms; rows and places are not known yet."""
    parsed = anomalies_pb2.Anomalies()
    parsed.ParseFromString((Path(anomalies) / f"Split-{split}" / ANOMALIES_FILE).read_bytes())
    return list(translate(parsed, split))


def translate(found: anomalies_pb2.Anomalies, split: str) -> Iterator[Anomaly]:
    """Yield an anomaly for each column and kind, in the order of the columns' names."""
    for key, info in sorted(found.anomaly_info.items()):
        feature = ".".join(info.path.step) or key
        texts: dict[str, list[str]] = {}
        for reason in info.reason:
            name = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
            texts.setdefault(KIND_OF.get(name, "OTHER"), []).append(reason.description)
        for kind, told in texts.items():
            yield Anomaly(feature, kind, split, f"column {feature}: {' '.join(told)}")
    for reason in found.dataset_anomaly_info.reason:
        yield Anomaly("", "ROW_COUNT", split, f"{split} split: {reason.description}")
