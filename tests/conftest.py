"""What every test may use: a clean environment and small real files."""

from __future__ import annotations

import csv
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from tensorflow_metadata.proto.v0 import statistics_pb2

from pipeline.examples import flights, penguins

# A suite that was started in the background would pass "ignore Ctrl-C" on to all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more of what else runs on the machine than of the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

PREFIXES = ("TF_CONFIG", "MLFLOW_", "AWS_", "HEADRACE_")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file, and those of the project's runs, in one process of two."""
    for item in items:
        file = item.nodeid.split("::")[0]
        group = "project" if "both" in getattr(item, "fixturenames", ()) else file
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would reach a cluster, a server or another run."""
    for name in list(os.environ):
        if name.startswith(PREFIXES):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def flights_1000_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 1,000 of the first 20,000 flights, in the file's order, `late` included."""
    rows = flights.rows()
    header = next(rows)
    first = list(itertools.islice(rows, 20_000))
    chosen = sorted(random.Random(7).sample(range(len(first)), 1000))
    return _write(
        tmp_path_factory.mktemp("flights") / "flights.csv",
        itertools.chain([header], (first[index] for index in chosen)),
    )


@pytest.fixture(scope="session")
def penguins_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CSV of all 344 penguins; eleven rows have missing values."""
    return _write(tmp_path_factory.mktemp("penguins") / "penguins.csv", penguins.rows())


def _write(path: Path, rows: Iterator[list[str]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


@pytest.fixture(scope="session")
def write_statistics() -> Callable[[Path, pd.DataFrame], Path]:
    """Write a FeatureStats.pb of a data frame, as TFDV lays it out, without TFDV."""
    return _write_statistics


def _write_statistics(path: Path, frame: pd.DataFrame) -> Path:
    statistics = statistics_pb2.DatasetFeatureStatisticsList()
    dataset = statistics.datasets.add(num_examples=len(frame))
    for name in frame.columns:
        feature = dataset.features.add()
        feature.path.step.append(str(name))
        fill = _fill_number if pd.api.types.is_numeric_dtype(frame[name]) else _fill_text
        fill(feature, frame[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(statistics.SerializeToString())
    return path


def _fill_common(common: statistics_pb2.CommonStatistics, column: pd.Series) -> None:
    common.num_non_missing = int(column.notna().sum())
    common.num_missing = int(column.isna().sum())
    common.min_num_values = common.max_num_values = 1
    common.tot_num_values = common.num_non_missing


def _fill_number(feature: statistics_pb2.FeatureNameStatistics, column: pd.Series) -> None:
    kinds = statistics_pb2.FeatureNameStatistics
    feature.type = kinds.INT if pd.api.types.is_integer_dtype(column) else kinds.FLOAT
    stats = feature.num_stats
    _fill_common(stats.common_stats, column)
    values = column.dropna().to_numpy(np.float64)
    stats.mean, stats.std_dev = float(values.mean()), float(values.std())
    stats.min, stats.max = float(values.min()), float(values.max())
    stats.median, stats.num_zeros = float(np.median(values)), int((values == 0).sum())
    counts, edges = np.histogram(values, bins=10)
    histogram = stats.histograms.add(type=statistics_pb2.Histogram.STANDARD)
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=count)


def _fill_text(feature: statistics_pb2.FeatureNameStatistics, column: pd.Series) -> None:
    feature.type = statistics_pb2.FeatureNameStatistics.STRING
    stats = feature.string_stats
    _fill_common(stats.common_stats, column)
    counts = column.dropna().value_counts()
    stats.unique, stats.avg_length = len(counts), float(column.dropna().str.len().mean())
    for rank, (value, count) in enumerate(counts.items()):
        if rank < 20:
            stats.top_values.add(value=str(value), frequency=float(count))
        stats.rank_histogram.buckets.add(
            low_rank=rank, high_rank=rank, label=str(value), sample_count=float(count)
        )
