"""Columns as the report reads them from statistics and schema."""

from pathlib import Path

import palmerpenguins
import pandas as pd
import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2

from components.report_statistics import read_columns, read_schema

PENGUINS = Path(palmerpenguins.__file__).parent / "data" / "penguins.csv"


def test_an_empty_list_counts_as_missing(tmp_path):
    statistics = statistics_pb2.DatasetFeatureStatisticsList()
    feature = statistics.datasets.add(num_examples=10).features.add()
    feature.path.step.append("x")
    common = feature.num_stats.common_stats
    common.num_non_missing, common.tot_num_values = 10, 7
    common.min_num_values, common.max_num_values = 0, 1
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(statistics.SerializeToString())
    columns, rows, _ = read_columns({"train": path})
    assert rows == {"train": 10}
    assert columns[0].splits["train"].missing == 3


def test_a_value_that_was_not_counted_is_not_called_zero(tmp_path):
    statistics = statistics_pb2.DatasetFeatureStatisticsList()
    stats = statistics.datasets.add(num_examples=100).features.add(name="x", type=2).string_stats
    stats.common_stats.num_non_missing, stats.unique = 100, 40
    stats.top_values.add(value="a", frequency=60)
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(statistics.SerializeToString())
    column = read_columns({"train": path})[0][0].splits["train"]
    assert column.share_of("a") == pytest.approx(0.6)
    assert column.share_of("b") is None


def test_the_schema_is_told_in_words(tmp_path):
    path = tmp_path / "schema.pbtxt"
    path.write_text(
        'feature { name: "island" type: BYTES domain: "island" presence { min_fraction: 1.0 } }\n'
        'feature { name: "mass" type: INT int_domain { min: 1 max: 9 } }\n'
        'string_domain { name: "island" value: "Dream" value: "Biscoe" }\n'
    )
    told = read_schema(path)
    assert told["island"] == "bytes, in every row, one of 2 known values"
    assert told["mass"] == "int, 1 to 9"
    assert read_schema(tmp_path / "absent.pbtxt") == {}


@pytest.mark.slow
def test_statistics_of_tfdv_itself_are_read_right(tmp_path):
    import tensorflow_data_validation as tfdv

    frame = pd.read_csv(PENGUINS)
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(tfdv.generate_statistics_from_dataframe(frame).SerializeToString())
    columns, rows, unread = read_columns({"train": path})
    assert rows == {"train": 344}
    assert not unread
    by_name = {column.name: column.splits["train"] for column in columns}
    for name in frame.columns:
        assert by_name[name].missing == frame[name].isna().sum()
    mass = by_name["body_mass_g"]
    assert mass.mean == pytest.approx(frame["body_mass_g"].mean())
    assert mass.std_dev == pytest.approx(frame["body_mass_g"].std(ddof=0))
    assert (mass.minimum, mass.maximum) == (frame["body_mass_g"].min(), frame["body_mass_g"].max())
    assert sum(count for _, _, count in mass.buckets) == pytest.approx(mass.present, rel=0.01)
    assert by_name["species"].counts == frame["species"].value_counts().to_dict()
    assert by_name["species"].unique == 3
