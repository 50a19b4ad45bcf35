"""TFDV's statistics come from its Beam transform `GenerateStatistics`, on the same examples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import statistics_pb2

from components import statistics
from pipeline.examples import flights, penguins
from trainer.errors import DataFileError

NUMBERS = ("mean", "std_dev", "min", "max", "num_zeros")
COMMON = ("num_missing", "num_non_missing", "min_num_values", "max_num_values", "tot_num_values")
TOLERANCE = 0.02
"""Of the number of rows: TFDV's quantiles are within 0.01, and both sides have that error."""


def columns_of(rows) -> dict[str, list]:
    """Read CSV rows as columns: whole numbers, numbers or text; empty cells and NA are missing."""
    header, *cells = rows
    return {
        name: typed([None if value in {"", "NA"} else value for value in column])
        for name, column in zip(header, zip(*cells, strict=True), strict=True)
    }


def typed(values: list) -> list:
    for kind in (int, float):
        try:
            return [None if value is None else kind(value) for value in values]
        except ValueError:
            continue
    return values


def in_splits(table: dict[str, list], share: float) -> dict[str, dict[str, list]]:
    rows = len(next(iter(table.values())))
    train = np.random.default_rng(7).random(rows) < share
    return {
        split: {
            name: [one for one, keep in zip(column, kept, strict=True) if keep]
            for name, column in table.items()
        }
        for split, kept in (("train", train), ("eval", ~train))
    }


def by_beam(
    examples: str, split: str, out: Path
) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    import apache_beam as beam
    from tfx_bsl.tfxio.tf_example_record import TFExampleRecord

    source = TFExampleRecord(f"{examples}/Split-{split}/*", telemetry_descriptors=["test"])
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | source.BeamSource()
            | tfdv.GenerateStatistics()
            | tfdv.WriteStatisticsToBinaryFile(str(out))
        )
    dataset = tfdv.load_stats_binary(str(out)).datasets[0]
    return {feature.path.step[0]: feature for feature in dataset.features}


def assert_equal_statistics(ours, theirs) -> None:
    assert list(ours) == sorted(theirs)
    for name, feature in ours.items():
        other = theirs[name]
        assert feature.type == other.type, name
        if feature.HasField("num_stats"):
            assert_equal_numbers(feature.num_stats, other.num_stats, name)
        else:
            assert_equal_text(feature.string_stats, other.string_stats, name)


def assert_equal_common(ours, theirs, name: str) -> None:
    for field in COMMON:
        assert getattr(ours, field) == getattr(theirs, field), (name, field)
    assert ours.avg_num_values == pytest.approx(theirs.avg_num_values, rel=1e-12)


def assert_equal_numbers(ours, theirs, name: str) -> None:
    assert_equal_common(ours.common_stats, theirs.common_stats, name)
    for field in NUMBERS:
        # Means of parts are added up in another order.
        assert getattr(ours, field) == pytest.approx(getattr(theirs, field), rel=1e-9), name
    rows = ours.common_stats.num_non_missing
    for one, other in zip(ours.histograms, theirs.histograms, strict=True):
        assert one.type == other.type
        assert one.num_nan == other.num_nan
        if one.type == statistics_pb2.Histogram.STANDARD:
            for bucket, right in zip(one.buckets, other.buckets, strict=True):
                assert bucket.low_value == pytest.approx(right.low_value, rel=1e-9)
                assert abs(bucket.sample_count - right.sample_count) <= TOLERANCE * rows, name


def assert_equal_text(ours, theirs, name: str) -> None:
    assert_equal_common(ours.common_stats, theirs.common_stats, name)
    assert ours.unique == theirs.unique, name
    assert ours.avg_length == pytest.approx(theirs.avg_length, rel=1e-6)
    assert list(ours.top_values) == list(theirs.top_values), name
    assert ours.rank_histogram == theirs.rank_histogram, name


def stored(value):
    """Return a value as a tf.Example holds it."""
    if isinstance(value, str):
        return value.encode()
    return float(np.float32(value)) if isinstance(value, float) else value


def of(examples: str, split: str) -> statistics_pb2.DatasetFeatureStatistics:
    return statistics.compute(examples, [split])[split].statistics()


def features_of(dataset) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    return {feature.path.step[0]: feature for feature in dataset.features}


@pytest.fixture(scope="module")
def penguins_examples(tmp_path_factory, write_examples) -> tuple[str, dict[str, dict[str, list]]]:
    splits = in_splits(columns_of(penguins.rows()), 0.75)
    folder = tmp_path_factory.mktemp("penguins") / "examples"
    return write_examples(folder, splits, shards=3), splits


@pytest.mark.slow
def test_statistics_of_the_penguins_are_those_of_generate_statistics(
    penguins_examples, tmp_path
) -> None:
    examples, splits = penguins_examples
    for split in ("train", "eval"):
        ours = of(examples, split)
        assert ours.num_examples == len(splits[split]["species"])
        assert_equal_statistics(features_of(ours), by_beam(examples, split, tmp_path / split))


def test_both_ways_of_reading_examples_give_the_same_columns(
    penguins_examples, tmp_path, write_examples
) -> None:
    examples, splits = penguins_examples
    untold = write_examples(tmp_path / "untold", splits, shards=3, told=False)
    assert statistics.column_kinds(untold) == {}
    for split in splits:
        ways = (statistics.read_examples(place, split) for place in (examples, untold))
        for one, other in zip(*ways, strict=True):
            assert one.schema.names == sorted(other.schema.names)
            for name in one.schema.names:
                assert one.column(name).to_pylist() == other.column(name).to_pylist(), name


def test_examples_read_back_equal_the_values_that_were_written(penguins_examples) -> None:
    examples, splits = penguins_examples
    batches = list(statistics.read_examples(examples, "eval"))
    for name, values in splits["eval"].items():
        read = [row for batch in batches for row in batch.column(name).to_pylist()]
        plain = [None if row is None else row[0] for row in read]
        written = [stored(one) for shard in range(3) for one in values[shard::3]]
        assert plain == written, name


def test_statistics_do_not_depend_on_the_number_of_shards(tmp_path, write_examples) -> None:
    rows = 3000
    table = {
        "name": [f"n{number % 1500}" for number in range(rows)],
        "size": [None if number % 7 == 0 else number % 100 for number in range(rows)],
        "share": [number / rows for number in range(rows)],
    }
    one, five = (
        features_of(of(write_examples(tmp_path / str(n), {"train": table}, shards=n), "train"))
        for n in (1, 5)
    )
    assert_equal_statistics(one, five)
    assert one["name"].string_stats.unique == 1500
    assert {top.frequency for top in one["name"].string_stats.top_values} == {2}


def test_an_empty_split_has_statistics_of_no_rows(tmp_path, write_examples) -> None:
    examples = write_examples(tmp_path / "e", {"train": {"x": [1, 2]}, "eval": {"x": []}})
    statistics.write_statistics(examples, str(tmp_path / "s"), ["train", "eval"])
    assert statistics.read_statistics(str(tmp_path / "s"), "eval").num_examples == 0
    assert statistics.read_values(str(tmp_path / "s")) == {
        "train": {"x": [(2, 1), (1, 1)]}, "eval": {}
    }  # fmt: skip


def test_a_damaged_shard_is_named(tmp_path, write_examples) -> None:
    examples = write_examples(tmp_path / "e", {"train": {"x": list(range(1000))}})
    shard = statistics.shard_paths(examples, "train")[0]
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(DataFileError, match=shard.name):
        of(examples, "train")


@pytest.mark.slow
def test_statistics_of_the_flights_are_exact(tmp_path, write_examples) -> None:
    columns = columns_of(list(flights.rows()))
    part = in_splits(columns, 0.9)["eval"]
    examples = write_examples(tmp_path / "e", {"whole": columns, "part": part}, shards=4)
    # Beam takes a minute for the whole; a tenth has more distinct values than TFDV's sketch too.
    ours = features_of(of(examples, "part"))
    assert ours["tailnum"].string_stats.unique > 1024
    assert_equal_statistics(ours, by_beam(examples, "part", tmp_path / "beam"))

    tailnum = features_of(of(examples, "whole"))["tailnum"].string_stats
    counted = Counter(value for value in columns["tailnum"] if value is not None)
    assert tailnum.unique == len(counted)
    assert [top.frequency for top in tailnum.top_values] == sorted(counted.values())[:-21:-1]
    assert all(counted[top.value] == top.frequency for top in tailnum.top_values)
    assert all(counted[one.label] == one.sample_count for one in tailnum.rank_histogram.buckets)
