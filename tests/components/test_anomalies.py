from __future__ import annotations

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2

from components import anomalies, schema, statistics
from components.verdict import KINDS

TRAIN = {"color": ["red", "blue"] * 5, "x": list(range(10)), "label": [0, 1] * 5}


def test_every_kind_has_a_remedy_and_every_reason_is_one_of_tfdv() -> None:
    assert set(anomalies.TFDV_KINDS) <= set(KINDS)
    assert set(anomalies.KIND_OF) <= set(anomalies_pb2.AnomalyInfo.Type.keys())


def test_reasons_of_one_column_and_kind_become_one_anomaly() -> None:
    found = anomalies_pb2.Anomalies()
    info = found.anomaly_info["x"]
    info.path.step.append("x")
    types = anomalies_pb2.AnomalyInfo
    for kind in (types.INVALID_FEATURE_SHAPE, types.FEATURE_TYPE_LOW_FRACTION_PRESENT):
        info.reason.add(type=kind, description="few.")
    info.reason.add(type=types.INT_TYPE_BIG_INT, description="big.")
    info.reason.add(type=types.NLP_WRONG_LOCATION, description="odd.")
    told = [(one.feature, one.kind, one.message) for one in anomalies.translate(found, "eval")]
    assert told == [
        ("x", "MISSING_VALUES", "column x: few. few."),
        ("x", "OUT_OF_RANGE", "column x: big."),
        ("x", "OTHER", "column x: odd."),
    ]


def test_anomalies_of_every_split_are_those_of_tfdv(tmp_path, write_examples) -> None:
    eval_ = {"color": ["green", "red"] * 5, "x": [None] + [2] * 9, "z": [1] * 10}
    examples = write_examples(tmp_path / "e", {"train": TRAIN, "eval": eval_}, told=False)
    places = {name: str(tmp_path / name) for name in ("statistics", "schema", "anomalies")}
    statistics.write_statistics(examples, places["statistics"], ["train", "eval"])
    schema.write_schema(places["statistics"], places["schema"], schema="infer", label="label")
    blessed = anomalies.write_anomalies(**places, splits=["train", "eval"])
    assert blessed == {"train": 1, "eval": 0}

    parsed = anomalies_pb2.Anomalies()
    parsed.ParseFromString((tmp_path / "anomalies" / "Split-eval" / "SchemaDiff.pb").read_bytes())
    theirs = tfdv.validate_statistics(
        tfdv.load_stats_binary(str(tmp_path / "statistics" / "Split-eval" / "FeatureStats.pb")),
        tfdv.load_schema_text(str(tmp_path / "schema" / "schema.pbtxt")),
    )
    assert parsed == theirs
    assert anomalies.read_anomalies(places["anomalies"], "train") == []
    read = anomalies.read_anomalies(places["anomalies"], "eval")
    assert {(one.feature, one.kind) for one in read} == {
        ("color", "UNEXPECTED_VALUES"), ("label", "COLUMN_MISSING"),
        ("x", "MISSING_VALUES"), ("z", "NEW_COLUMN"),
    }  # fmt: skip
