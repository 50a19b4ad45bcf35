import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from components import features
from components.features import Column, SplitWriter, time_parts
from trainer.errors import SettingError


def lists(values, kind):
    return pa.array([[] if value is None else [value] for value in values], pa.large_list(kind))


@pytest.fixture
def four_rows():
    return pa.record_batch(
        [
            lists([1, None, 3, 2**60], pa.int64()),
            lists([1.5, float("nan"), None, -2.5], pa.float32()),
            lists([b"a", "größe".encode(), None, b"a"], pa.large_binary()),
            lists([0, 1, 1, None], pa.int64()),
        ],
        ["whole", "real", "text", "label"],
    )


COLUMNS = [
    Column("whole", "int"),
    Column("real", "float"),
    Column("text", "string"),
    Column("label", "int"),
    Column("absent", "float"),
]


def written(folder, batches, rows):
    writer = features.SplitWriter(folder, COLUMNS, rows=rows)
    for batch in batches:
        writer.add(batch)
    writer.close()
    return {
        one.name: [np.asarray(part).tolist() for part in features.read_values(folder, one.name)]
        for one in COLUMNS
    }


def test_values_come_back_and_missing_stays_missing(tmp_path, four_rows):
    found = written(tmp_path, [four_rows], 4)
    assert found["whole"] == [[1, 0, 3, 2**60], [True, False, True, True]]
    assert found["real"] == [[1.5, 0.0, 0.0, -2.5], [True, False, False, True]]
    assert found["text"] == [["a", "größe", "", "a"], [True, True, False, True]]
    assert found["absent"][1] == [False] * 4


def test_the_same_text_has_the_same_code_in_every_batch(tmp_path, four_rows):
    found = written(tmp_path, [four_rows.slice(2), four_rows.slice(0, 2)], 4)
    assert found["text"][0] == ["", "a", "a", "größe"]


def test_rows_without_a_label_or_with_an_unknown_one_are_left_out(tmp_path, four_rows):
    kept = features.keep_rows(four_rows, "label", None)
    assert kept.num_rows == 3
    found = written(tmp_path, [features.keep_rows(four_rows, "label", [1])], 4)
    assert found["label"] == [[1, 1], [True, True]]
    assert found["whole"] == [[0, 3], [False, True]]


def test_few_distinct_numbers_have_an_edge_each():
    values = np.array([3, 1, 2, 2, 9])
    present = np.array([True, True, True, True, False])
    found = features.number_feature(Column("n", "int"), values, present)
    assert found.edges == (1.0, 2.0, 3.0)
    assert found.mean == 2.0
    assert found.scale == pytest.approx(np.std([3, 1, 2, 2]))


def test_many_distinct_numbers_have_increasing_quantile_edges():
    values = np.random.default_rng(0).exponential(size=5000)
    found = features.number_feature(Column("n", "float"), values, np.ones(5000, bool))
    assert len(found.edges) <= features.EDGES
    assert (np.diff(found.edges) > 0).all()
    assert found.edges[0] == values.min()
    assert found.edges[-1] == values.max()


def test_a_constant_number_says_nothing_unless_it_is_sometimes_missing():
    column, sevens = Column("n", "int"), np.full(3, 7)
    assert features.number_feature(column, sevens, np.array([True] * 3)) is None
    found = features.number_feature(column, sevens, np.array([True, False, True]))
    assert found.edges == (7.0, 8.0)
    assert found.scale == 1.0


@pytest.mark.parametrize(
    ("kind", "values", "classes", "ids"),
    [
        ("int", [-1, 1, 1, -1], ("-1", "1"), [0, 1, 1, 0]),
        ("int", [1, 3, 2, 3], ("1", "2", "3"), [0, 2, 1, 2]),
        ("int", [0, 5, 1, 10], ("0", "1", "5", "10"), [0, 2, 1, 3]),
        ("string", ["no", "yes", "yes", "None"], ("None", "no", "yes"), [1, 2, 2, 0]),
    ],
)
def test_labels_map_to_sorted_classes(kind, values, classes, ids):
    label = features.label_feature("y", kind, np.array(values), task="auto")
    assert label.classes == classes
    assert features.class_ids(label, np.array(values)).tolist() == ids
    assert sum(label.frequencies) == pytest.approx(1)


def test_a_task_that_does_not_fit_the_label_is_refused():
    with pytest.raises(SettingError, match=r"data\.task.*3 distinct values.*binary"):
        features.label_feature("y", "int", np.array([0, 1, 2]), task="binary")
    with pytest.raises(SettingError, match=r"text label"):
        features.label_feature("y", "string", np.array(["a", "b"]), task="regression")


def test_a_float_label_is_a_quantity():
    label = features.label_feature("y", "float", np.array([1.0, 2.0, 4.0]), task="auto")
    assert label.task == "regression"
    assert label.mean == pytest.approx(7 / 3)


def times_columns(folder: Path, *, days: int, first: str = "2013-01-01") -> Path:
    """Write 40 rows a day over so many days, at hours 5 and 17, as a column ``when``."""
    start = datetime.datetime.fromisoformat(first)
    texts = [
        (start + datetime.timedelta(days=day, hours=hour)).isoformat() + "Z"
        for day in range(days)
        for hour in (5, 17)
        for _ in range(20)
    ]
    writer = SplitWriter(folder, [Column("when", "string")], rows=len(texts))
    lists = pa.array([[one.encode()] for one in texts], pa.large_list(pa.large_binary()))
    writer.add(pa.RecordBatch.from_arrays([lists], ["when"]))
    writer.close()
    return folder


def test_times_as_text_are_read_as_parts_that_come_again(tmp_path):
    folder = times_columns(tmp_path / "a", days=60)
    found = {one.part: one for one in time_parts(folder, "when", is_by_time=False)}
    assert set(found) == {"date", "month", "day", "weekday", "hour"}
    assert found["hour"].vocabulary == ("05", "17")
    assert set(found["weekday"].vocabulary) == set("1234567")
    assert len(found["date"].vocabulary) == 60
    assert all(one.column == "when" for one in found.values())
    # Of later rows, date, month and day are none that were learned from.
    later = time_parts(folder, "when", is_by_time=True)
    assert [one.part for one in later] == ["weekday", "hour"]
    long = times_columns(tmp_path / "b", days=800)
    assert "month" in [one.part for one in time_parts(long, "when", is_by_time=True)]


def test_other_texts_are_no_times(tmp_path):
    writer = SplitWriter(tmp_path, [Column("when", "string")], rows=40)
    lists = [[f"2013-01-{at % 28 + 1:02}x".encode()] for at in range(40)]
    values = pa.array(lists, pa.large_list(pa.large_binary()))
    writer.add(pa.RecordBatch.from_arrays([values], ["when"]))
    writer.close()
    assert time_parts(tmp_path, "when", is_by_time=False) == []
