"""A slice's metrics are scikit-learn's over the rows that pandas would pick."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn import metrics as sklearn_metrics

from components import slices
from trainer.errors import SettingError, TrainingError
from trainer.settings import LabelFeature

ROWS = 400
FEATURE = LabelFeature("late", "binary", "int", ("0", "1"), (0.7, 0.3))


def as_lists(values, kind) -> pa.Array:
    lists = [[] if value is None else [value] for value in values]
    return pa.array(lists, pa.large_list(kind))


@pytest.fixture
def table() -> pd.DataFrame:
    """400 rows; some have no label, which training and evaluation leave out."""
    random = np.random.default_rng(7)
    frame = pd.DataFrame({
        "carrier": random.choice(["UA", "AA", "9E"], ROWS, p=[0.5, 0.3, 0.2]).astype(object),
        "distance": random.integers(80, 3000, ROWS),
        "seats": random.choice([20, 150], ROWS),
        "late": (random.random(ROWS) < 0.3).astype(object),
    })
    frame.loc[::17, "carrier"] = None
    frame.loc[::29, "late"] = None
    return frame


def batches(table: pd.DataFrame):
    for start in range(0, len(table), 150):
        part = table.iloc[start : start + 150]
        yield pa.RecordBatch.from_arrays(
            [
                as_lists([None if x is None else x.encode() for x in part.carrier],
                         pa.large_binary()),
                as_lists(part.distance.tolist(), pa.int64()),
                as_lists(part.seats.tolist(), pa.int64()),
                as_lists([None if x is None else int(x) for x in part.late], pa.int64()),
            ],
            ["carrier", "distance", "seats", "late"],
        )  # fmt: skip


def test_each_slice_equals_scikit_learn_over_its_rows(table):
    names = ["carrier", "distance", "seats"]
    values = slices.read(batches(table), names, "late", [0, 1])
    kept = table[table.late.notna()]
    label = kept.late.astype(np.int32).to_numpy()
    random = np.random.default_rng(1)
    probability = np.clip(0.3 + 0.2 * label + 0.2 * random.normal(size=len(label)), 0.01, 0.99)
    found = slices.metrics(values, probability[:, None], label, label_feature=FEATURE)
    told = {(one["column"], one["value"]): one for one in found}
    for carrier, rows in {
        **{name: (kept.carrier == name).to_numpy() for name in ("UA", "AA", "9E")},
        "missing": kept.carrier.isna().to_numpy(),
    }.items():
        one = told["carrier", carrier]
        assert one["rows"] == rows.sum()
        assert one["metrics"]["auc"] == pytest.approx(
            sklearn_metrics.roc_auc_score(label[rows], probability[rows])
        )
        assert one["metrics"]["loss"] == pytest.approx(
            sklearn_metrics.log_loss(label[rows], probability[rows])
        )
        low, high = one["intervals"]["loss"]
        assert low < one["metrics"]["loss"] < high
    assert [one["value"] for one in found if one["column"] == "seats"] == (
        kept.seats.value_counts().index.astype(str).tolist()
    )
    quartiles = pd.qcut(kept.distance, 4).value_counts().sort_index()
    by_distance = [one for one in found if one["column"] == "distance"]
    assert len(by_distance) == 4
    assert sum(one["rows"] for one in by_distance) == len(kept)
    # A value on an edge belongs to the quartile above here, below there.
    for ours, theirs in zip(by_distance, quartiles, strict=True):
        assert abs(ours["rows"] - theirs) <= 2


def test_rare_values_are_one_slice_together():
    texts = pa.array([f"v{min(at // 10, 30)}".encode() for at in range(400)], pa.large_binary())
    found = list(slices.cut("tail", texts))
    assert len(found) == slices.MOST_VALUES + 1
    assert found[-1].value == slices.OTHERS
    assert np.sum([one.rows for one in found], axis=0).tolist() == [1] * 400


def test_every_row_is_in_one_slice_of_a_column(table):
    values = slices.read(batches(table), ["carrier", "distance"], "late", [0, 1])
    for name, column in values.items():
        whole = np.sum([one.rows for one in slices.cut(name, column)], axis=0)
        assert (whole == 1).all()


def test_a_column_that_is_not_there_is_named(table):
    with pytest.raises(SettingError, match="no column tail"):
        slices.read(batches(table), ["tail"], "late", [0, 1])


def test_other_rows_than_were_evaluated_are_refused(table):
    values = slices.read(batches(table), ["seats"], "late", [0, 1])
    with pytest.raises(TrainingError, match="differ in number"):
        slices.metrics(values, np.zeros((3, 1)), np.zeros(3, np.int32), label_feature=FEATURE)
