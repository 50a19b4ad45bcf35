"""Drift is TFDV's: the same rows do not move, others do, by SciPy's and a hand sum's measure."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.spatial import distance

from components import shares as counted
from components.features import Column, SplitWriter
from components.shares import Drift, divergence
from trainer.settings import CategoryFeature, Features, LabelFeature, NumberFeature

FEATURES = Features(
    numbers=(
        NumberFeature("distance", "int", tuple(np.linspace(0, 4000, 48)), 1000, 700),
        NumberFeature("late", "int", (0, 1), 0.3, 0.5),
    ),
    categories=(CategoryFeature("carrier", ("UA", "AA", "9E")),),
    label=LabelFeature("y", "binary", "int"),
)


def rows(count: int, seed: int, *, shift=0.0, late=0.3, carriers=(0.5, 0.3, 0.2)) -> pa.RecordBatch:
    random = np.random.default_rng(seed)
    distance_ = (random.gamma(2, 500, count) * (1 + shift)).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(distance_),
            pa.array((random.random(count) < late).astype(np.int64)),
            pa.array(random.choice(["UA", "AA", "9E"], count, p=carriers)),
        ],
        ["distance", "late", "carrier"],
    )


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    """The shares of 20,000 rows, as a pushed folder has them."""
    batch, folder = rows(20_000, 1), tmp_path_factory.mktemp("columns")
    columns = [Column("distance", "int"), Column("late", "int"), Column("carrier", "string")]
    writer = SplitWriter(folder, columns, rows=20_000)
    lists = [
        pa.array([[one.encode() if isinstance(one, str) else one] for one in column.to_pylist()])
        for column in (batch.column(0), batch.column(1), batch.column(2))
    ]
    writer.add(pa.RecordBatch.from_arrays(lists, batch.schema.names))
    writer.close()
    counted.write(folder / counted.FILE, folder, FEATURES)
    return folder / counted.FILE


def moved(shares, *batches) -> dict[str, counted.Moved]:
    found = Drift(shares)
    for one in batches:
        found.add(one)
    return {one.column: one for one in found.moved(0.1)}


@pytest.mark.parametrize("count", [60, 1000, 50_000])
def test_rows_of_the_same_kind_do_not_move_however_few_they_are(shares, count):
    for seed in range(2, 12):
        assert moved(shares, rows(count, seed)) == {}


def test_rows_of_another_kind_move_and_the_columns_are_named(shares):
    assert list(moved(shares, rows(5000, 3, shift=1.5))) == ["distance"]
    assert list(moved(shares, rows(5000, 3, late=0.9))) == ["late"]
    found = moved(shares, rows(5000, 3, carriers=(0.1, 0.3, 0.6)))
    assert list(found) == ["carrier"]
    assert found["carrier"].value == pytest.approx(0.4, abs=0.03)
    assert "%" in found["carrier"].what


def test_values_that_were_never_seen_move_a_column_of_texts(shares):
    new = pa.RecordBatch.from_arrays([pa.array(["ZZ", "UA"] * 1000)], ["carrier"])
    assert moved(shares, new)["carrier"].what.startswith("other values 0% -> 50%")


def test_batches_count_as_one_and_missing_values_not_at_all(shares):
    whole = rows(3000, 5, shift=1.5)
    apart = [whole.slice(start, 700) for start in range(0, 3000, 700)]
    assert moved(shares, whole) == moved(shares, *apart)
    gaps = pa.RecordBatch.from_arrays(
        [pa.nulls(500, pa.int64()), pa.nulls(500, pa.string())], ["distance", "carrier"]
    )
    assert moved(shares, gaps) == {}
    assert moved(shares) == {}


def test_the_divergence_is_scipy_s():
    random = np.random.default_rng(7)
    for _ in range(20):
        a, b = random.dirichlet(np.full(8, 0.4), 2)
        expected = distance.jensenshannon(a, b, base=2) ** 2
        assert divergence(a, b) == pytest.approx(expected, abs=1e-12)
    assert divergence(np.array([1.0, 0]), np.array([0, 1.0])) == 1
