"""TFDV's statistics come from its Beam transform `GenerateStatistics`, on the same examples."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import statistics_pb2

from components import example_gen, readers, split, statistics
from pipeline.examples import flights, penguins
from trainer.errors import DataFileError

NUMBERS = ("mean", "std_dev", "min", "max", "num_zeros")
COMMON = ("num_missing", "num_non_missing", "min_num_values", "max_num_values", "tot_num_values")
QUANTILES = statistics_pb2.Histogram.QUANTILES
EPSILON = tfdv.StatsOptions().epsilon
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


def numbers_of(examples: str, split: str) -> dict[str, np.ndarray]:
    """Return the sorted values of each number column of a split, none missing, float64."""
    found: dict[str, list[np.ndarray]] = {}
    for batch in statistics.read_examples(examples, split):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_null(column.type) and pa.types.is_primitive(column.type.value_type):
                found.setdefault(name, []).append(np.asarray(column.flatten(), np.float64))
    return {name: np.sort(np.concatenate(parts)) for name, parts in found.items()}


def quantile_edges(stats) -> np.ndarray:
    (histogram,) = [one for one in stats.histograms if one.type == QUANTILES]
    return np.array([one.low_value for one in histogram.buckets]
                    + [histogram.buckets[-1].high_value])  # fmt: skip


def off_rank(edges: np.ndarray, values: np.ndarray) -> float:
    """Return by what share of the values the worst edge misses the rank that it stands for.

    Of equal values, one has every rank from the first of them to the last.
    """
    wanted = np.linspace(0, len(values), len(edges))
    first = np.searchsorted(values, edges, side="left")
    last = np.searchsorted(values, edges, side="right")
    return float(np.maximum(0, np.maximum(first - wanted, wanted - last)).max() / len(values))


def assert_quantiles_within_epsilon(ours, theirs, values: dict[str, np.ndarray]) -> None:
    """TFDV's sketch promises each quantile within `StatsOptions.epsilon` of its rank, 1 %."""
    assert {name for name, one in ours.items() if one.HasField("num_stats")} == set(values)
    for name, own in values.items():
        edges, right = (quantile_edges(one[name].num_stats) for one in (ours, theirs))
        assert len(edges) == len(right) == 11, name
        assert off_rank(edges, own) <= EPSILON, name
        assert off_rank(right, own) <= EPSILON, name
        assert (edges[0], edges[-1]) == (right[0], right[-1]), name


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
    for name in ("train", "eval"):
        ours = of(examples, name)
        assert ours.num_examples == len(splits[name]["species"])
        theirs = by_beam(examples, name, tmp_path / name)
        assert_equal_statistics(features_of(ours), theirs)
        assert_quantiles_within_epsilon(features_of(ours), theirs, numbers_of(examples, name))


def test_both_ways_of_reading_examples_give_the_same_columns(
    penguins_examples, tmp_path, write_examples
) -> None:
    examples, splits = penguins_examples
    untold = write_examples(tmp_path / "untold", splits, shards=3, told=False)
    assert statistics.column_kinds(untold) == {}
    for part in splits:
        ways = (statistics.read_examples(place, part) for place in (examples, untold))
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


@pytest.fixture(scope="module")
def flights_examples(tmp_path_factory) -> str:
    """All flight records, as ExampleGen writes them; a tenth is held back."""
    folder = tmp_path_factory.mktemp("flights")
    with open(folder / "flights.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(flights.rows())
    source = readers.inspect([str(folder / "flights.csv")], ["", "NA"])
    for name in split.SPLITS:
        (folder / "examples" / f"Split-{name}").mkdir(parents=True)
    is_eval = split.by_hash(source.layout.kinds, 0.1)
    example_gen.write(example_gen.Shards(source, is_eval, folder / "examples"), None)
    told = {"types": source.layout.kinds, "rows_read": sum(source.rows.values())}
    (folder / "examples" / "rows.json").write_text(json.dumps(told))
    return str(folder / "examples")


@pytest.mark.long
def test_statistics_of_all_flights_are_those_of_generate_statistics_and_exact(
    flights_examples, tmp_path
) -> None:
    """Beam takes half a minute; `tailnum` has more distinct values than TFDV's sketch counts."""
    parts = statistics.compute(flights_examples, ["train", "eval"])
    parts["train"].merge(parts["eval"])
    whole = features_of(parts["train"].statistics())
    theirs = by_beam(flights_examples, "*", tmp_path / "beam")
    assert whole["tailnum"].string_stats.unique > 1024
    assert whole["day"].num_stats.common_stats.num_non_missing == 327_346
    assert_equal_statistics(whole, theirs)
    by_split = [numbers_of(flights_examples, name) for name in ("train", "eval")]
    values = {
        name: np.sort(np.concatenate([one[name] for one in by_split])) for name in by_split[0]
    }
    assert_quantiles_within_epsilon(whole, theirs, values)
    columns = columns_of(list(flights.rows()))
    for name in ("carrier", "dest", "origin", "tailnum", "time_hour"):
        assert_exact_counts(whole[name].string_stats, columns[name])
    for name in ("air_time", "dep_time", "distance", "late"):
        assert_exact_numbers(whole[name].num_stats, columns[name])


def test_quantiles_of_merged_parts_of_values_that_all_differ_are_within_epsilon() -> None:
    """Flights have whole numbers alone, whose many equal values forgive a sketch its errors."""
    values = np.random.default_rng(7).lognormal(size=300_000)
    whole = statistics.PartialStatistics()
    for shard in np.array_split(values, 7):
        part = statistics.PartialStatistics()
        for batch in np.array_split(shard, 3):
            offsets = pa.array(np.arange(len(batch) + 1))
            lists = pa.LargeListArray.from_arrays(offsets, pa.array(batch.astype(np.float32)))
            part.add(pa.RecordBatch.from_arrays([lists], ["x"]))
        whole.merge(part)
    (feature,) = whole.statistics().features
    assert (
        0
        < off_rank(quantile_edges(feature.num_stats), np.sort(values.astype(np.float32)))
        < EPSILON
    )


def test_an_edge_that_misses_its_rank_is_seen() -> None:
    """What the quantile test above could not fail by would prove nothing."""
    values = np.sort(np.random.default_rng(7).lognormal(size=10_000))
    right = np.quantile(values, np.linspace(0, 1, 11))
    assert off_rank(right, values) < 1e-3
    wrong = right.copy()
    wrong[5] = np.quantile(values, 0.52)
    assert off_rank(wrong, values) == pytest.approx(0.02, abs=1e-3)
    assert off_rank(np.full(11, 3.0), np.full(50, 3.0)) == 0


def assert_exact_counts(stats, values: list) -> None:
    counted = Counter(value for value in values if value is not None)
    assert stats.common_stats.num_missing == values.count(None)
    assert stats.unique == len(counted)
    assert [top.frequency for top in stats.top_values] == sorted(counted.values())[:-21:-1]
    assert all(counted[top.value] == top.frequency for top in stats.top_values)
    assert all(counted[one.label] == one.sample_count for one in stats.rank_histogram.buckets)


def assert_exact_numbers(stats, values: list) -> None:
    there = np.array([value for value in values if value is not None], np.float64)
    assert stats.common_stats.num_missing == len(values) - len(there)
    assert (stats.min, stats.max, stats.num_zeros) == (there.min(), there.max(), (there == 0).sum())
    assert stats.mean == pytest.approx(there.mean(), rel=1e-12)
    assert stats.std_dev == pytest.approx(there.std(), rel=1e-9)
