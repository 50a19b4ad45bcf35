"""Rows to batches: order, padding, missing values, and the thread that reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.batches import Batches, Columns, ahead, row_order
from trainer.errors import DataFileError
from trainer.settings import Features, LabelFeature, TextFeature


def _batches(columns: Columns, *, global_batch: int, seed: int = 7) -> Batches:
    return Batches(columns, seed=seed, global_batch=global_batch)


def _rows_of(batch: dict[str, np.ndarray]) -> list[int]:
    return batch["number_values"][batch["weight"] == 1, 0].astype(int).tolist()


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 60), seed=st.integers(0, 2**62), epoch=st.integers(0, 5))
def test_an_epoch_s_order_holds_each_row_once(rows: int, seed: int, epoch: int) -> None:
    order = row_order(rows, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(rows))
    np.testing.assert_array_equal(order, row_order(rows, seed=seed, epoch=epoch))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(row_order(50, seed=s, epoch=e)) for s in (7, 8) for e in (0, 1)]
    assert len(set(orders)) == 4


def test_a_resume_in_the_second_epoch_reads_the_rows_that_come_next(
    tmp_path: Path, write_columns: Any
) -> None:
    # cases/training.md, training-4: 20 rows, batch 2, seed 7, 3 epochs, killed at epoch 1, step 4
    features = write_columns(tmp_path, rows=20)
    columns = Columns.open(tmp_path, features)
    whole = [_rows_of(_batches(columns, global_batch=2).at(step)) for step in range(30)]
    resumed = _batches(Columns.open(tmp_path, features), global_batch=2)
    assert [_rows_of(resumed.at(step)) for step in range(14, 30)] == whole[14:]
    for epoch in range(3):
        seen = [row for rows in whole[10 * epoch : 10 * epoch + 10] for row in rows]
        assert sorted(seen) == list(range(20))


@pytest.mark.parametrize(
    ("rows", "global_batch", "sizes"),
    [(10, 16, [10]), (67, 16, [16, 16, 16, 16, 3]), (32, 16, [16, 16])],
)
def test_no_row_is_dropped(
    tmp_path: Path, write_columns: Any, rows: int, global_batch: int, sizes: list[int]
) -> None:
    # training-10
    columns = Columns.open(tmp_path, write_columns(tmp_path, rows=rows))
    batches = _batches(columns, global_batch=global_batch)
    made = [batches.at(step) for step in range(batches.steps_per_epoch)]
    assert [int(one["weight"].sum()) for one in made] == sizes
    assert {len(value) for one in made for value in one.values()} == {global_batch}
    assert sorted(row for one in made for row in _rows_of(one)) == list(range(rows))
    last = made[-1]
    assert not any(np.any(value[sizes[-1] :]) for value in last.values()), "padding is zeros"


def test_missing_values_and_unknown_texts_have_ids_of_their_own(
    tmp_path: Path, write_columns: Any
) -> None:
    features = write_columns(tmp_path, rows=30)
    values = np.load(tmp_path / "1.values.npy")
    values[3] = np.nan
    np.save(tmp_path / "1.values.npy", values)
    columns = Columns.open(tmp_path, features)
    inputs = columns.inputs(np.arange(30))
    codes = np.load(tmp_path / "2.codes.npy")
    # distinct: "a", "b" of the vocabulary (2, 3) and "never seen" (1); code -1 is missing (0)
    right = np.asarray([2, 3, 1, 0])[codes]
    np.testing.assert_array_equal(inputs["category_ids"][:, 0], right)
    present = np.load(tmp_path / "1.present.npy")
    present[3] = False
    np.testing.assert_array_equal(inputs["number_present"][:, 1], present)
    assert inputs["number_values"][3, 1] == 0.0
    assert {name: one.dtype.name for name, one in inputs.items()} == {
        "number_values": "float64", "number_present": "bool", "category_ids": "int32",
    }  # fmt: skip


def test_large_integers_keep_their_digits(tmp_path: Path, write_columns: Any) -> None:
    features = write_columns(tmp_path, rows=3)
    np.save(tmp_path / "0.values.npy", np.asarray([2**53 - 1, 2**24 + 1, -5]))
    values = Columns.open(tmp_path, features).inputs(np.arange(3))["number_values"][:, 0]
    assert values.tolist() == [2**53 - 1, 2**24 + 1, -5]


def test_no_text_column_and_no_rows_asked_for_are_fine(tmp_path: Path, write_columns: Any) -> None:
    features = write_columns(tmp_path, rows=3)
    inputs = Columns.open(tmp_path, features).inputs(np.zeros(0, np.int64))
    assert {name: one.shape for name, one in inputs.items()} == {
        "number_values": (0, 2), "number_present": (0, 2), "category_ids": (0, 1),
    }  # fmt: skip


def test_a_missing_file_is_named(tmp_path: Path, write_columns: Any) -> None:
    features = write_columns(tmp_path, rows=3)
    (tmp_path / "1.present.npy").unlink()
    with pytest.raises(DataFileError, match=r"1\.present\.npy"):
        Columns.open(tmp_path, features)


def test_columns_of_unequal_length_are_refused(tmp_path: Path, write_columns: Any) -> None:
    features = write_columns(tmp_path, rows=3)
    np.save(tmp_path / "label.npy", np.zeros(4, np.int32))
    with pytest.raises(DataFileError, match="differ in length"):
        Columns.open(tmp_path, features)


def test_reading_ahead_keeps_the_order_and_ends_its_thread() -> None:
    assert list(ahead(iter(range(50)))) == list(range(50))
    before = threading.active_count()
    reader = ahead(iter(range(1000)))
    assert [next(reader), next(reader)] == [0, 1]
    reader.close()
    assert threading.active_count() == before


def test_an_error_in_the_making_is_raised_at_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("row 2")

    reader = ahead(items())
    assert next(reader) == 1
    with pytest.raises(ValueError, match="row 2"):
        next(reader)


DOCUMENTS = [b"first", b"", b"the second text", b"3"]


def _write_texts(folder: Path, documents: list[bytes], *, task: str) -> Features:
    """Write a text column of these documents, S = 4, and labels 0, 1, 0, ..."""
    lengths = np.asarray([len(one) for one in documents])
    np.save(folder / "5.bytes.npy", np.frombuffer(b"".join(documents), np.uint8))
    np.save(folder / "5.offsets.npy", np.append(0, np.cumsum(lengths)))
    np.save(folder / "5.present.npy", lengths > 0)
    rows = len(documents)
    (folder / "columns.json").write_text(
        f'{{"rows": {rows}, "features": {{"body": {{"kind": "text", "index": 5}}}}}}'
    )
    windows = -(-(lengths.sum() + np.count_nonzero(lengths) - 1) // 4)
    is_language = task == "causal-lm"
    label = np.zeros((windows, 4)) if is_language else np.arange(rows, dtype=np.int32) % 2
    np.save(folder / "label.npy", label)
    classes = () if is_language else ("0", "1")
    described = LabelFeature("body" if is_language else "y", task, "string", classes)
    return Features((), (), described, TextFeature("body", 4))


def test_a_batch_of_texts_holds_tokens_and_lengths(tmp_path: Path) -> None:
    columns = Columns.open(tmp_path, _write_texts(tmp_path, DOCUMENTS, task="binary"))
    batch = _batches(columns, global_batch=6).at(0)
    assert set(batch) == {"tokens", "lengths", "label", "weight"}
    assert batch["weight"].tolist() == [1, 1, 1, 1, 0, 0]
    order = row_order(4, seed=7, epoch=0)
    for place, row in enumerate(order):
        assert batch["tokens"][place].tolist() == [*DOCUMENTS[row], *[256] * 4][:4]
    np.testing.assert_array_equal(batch["label"][:4], order % 2)
    assert batch["tokens"][4:].tolist() == [[256] * 4] * 2
    assert batch["lengths"][4:].tolist() == [1, 1], "no row is without a token"


def test_an_epoch_of_a_language_model_predicts_each_token_once(tmp_path: Path) -> None:
    columns = Columns.open(tmp_path, _write_texts(tmp_path, DOCUMENTS, task="causal-lm"))
    stream = [*b"first", 256, *b"the second text", 256, *b"3", 256]
    assert columns.rows == -(-(len(stream) - 1) // 4) == 6
    batches = _batches(columns, global_batch=4)
    made = [batches.at(step) for step in range(2, 2 + batches.steps_per_epoch)]
    assert set(made[0]) == {"tokens", "lengths", "weight"}
    assert made[0]["tokens"].shape == (4, 5)
    assert made[1]["weight"].tolist() == [1, 1, 0, 0]
    assert made[1]["tokens"][2:].tolist() == [[256] * 5] * 2
    assert made[1]["lengths"][2:].tolist() == [0, 0]
    predicted = [
        token
        for batch in made
        for row, n in zip(batch["tokens"], batch["lengths"], strict=True)
        for token in row[1 : n + 1]
    ]
    assert sorted(predicted) == sorted(stream[1:])


def test_texts_stand_beside_other_columns(tmp_path: Path, write_columns: Any) -> None:
    features = write_columns(tmp_path, rows=4)
    described = (tmp_path / "columns.json").read_text()
    text = _write_texts(tmp_path, DOCUMENTS, task="binary").text
    (tmp_path / "columns.json").write_text(
        described.replace('"features": {', '"features": {"body": {"kind": "text", "index": 5}, ', 1)
    )
    columns = Columns.open(
        tmp_path, Features(features.numbers, features.categories[:0], features.label, text)
    )
    assert set(columns.inputs(np.arange(4))) == {
        "number_values", "number_present", "category_ids", "tokens", "lengths",
    }  # fmt: skip


def test_a_damaged_text_column_is_named(tmp_path: Path) -> None:
    features = _write_texts(tmp_path, DOCUMENTS, task="binary")
    np.save(tmp_path / "5.offsets.npy", np.asarray([0, 1]))
    with pytest.raises(DataFileError, match=r"5\.offsets\.npy"):
        Columns.open(tmp_path, features)
