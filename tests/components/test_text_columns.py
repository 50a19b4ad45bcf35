"""Texts to column files and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components import text_columns
from components.text_columns import GrowingArray, TextFiles
from trainer.settings import ModelSettings, TextFeature
from trainer.texts import Texts

ROWS = st.lists(st.one_of(st.none(), st.binary(max_size=6)), max_size=5)


def _lists(rows: list[bytes | None]) -> pa.Array | None:
    if all(one is None for one in rows):
        return None
    kind = pa.large_list(pa.large_binary())
    return pa.array([None if one is None else [one] for one in rows], kind)


def _write(folder: Path, *batches: list[bytes | None]) -> None:
    files = TextFiles(folder, 3)
    for rows in batches:
        files.add(_lists(rows), len(rows))
    files.close()


def test_an_array_file_may_grow_past_any_number_of_digits(tmp_path: Path) -> None:
    array = GrowingArray(tmp_path / "a.npy", np.int32)
    for start in range(0, 12_000, 4_000):
        array.append(np.arange(start, start + 4_000))
    array.close()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", mmap_mode="r"), np.arange(12_000))


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(ROWS, max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, batches) -> None:
    folder = tmp_path_factory.mktemp("column")
    _write(folder, *batches)
    rows = [one for batch in batches for one in batch]
    assert [*text_columns.read_texts(folder, 3)] == [one or b"" for one in rows]
    assert np.load(folder / "3.present.npy").tolist() == [one is not None for one in rows]


def test_a_slice_of_a_batch_is_written_as_itself(tmp_path: Path) -> None:
    lists = _lists([b"ab", None, b"c", b"def"])
    assert lists is not None
    files = TextFiles(tmp_path, 0)
    files.add(lists.slice(1, 2), 2)
    files.close()
    assert [*text_columns.read_texts(tmp_path, 0)] == [b"", b"c"]


def test_words_are_learned_from_one_split_and_used_in_the_other(tmp_path: Path) -> None:
    for name in ("train", "eval"):
        (tmp_path / name).mkdir()
    _write(tmp_path / "train", [b"the cat the", None, b"the dog dog"])
    _write(tmp_path / "eval", [b"The mouse, the dog"])
    model = ModelSettings(kind="text", sequence=8, vocabulary="words", vocabulary_size=2)
    feature = text_columns.describe(tmp_path / "train", 3, "body", model=model)
    assert feature == TextFeature("body", 8, ("the", "dog"))
    for name in ("train", "eval"):
        text_columns.write_words(tmp_path / name, 3, feature)
    read = Texts.open(tmp_path / "eval", 3, feature)
    assert read.tokens.tolist() == [3, 1, 1, 3, 4]
    assert Texts.open(tmp_path / "train", 3, feature).offsets.tolist() == [0, 3, 3, 6]
    assert text_columns.cut(tmp_path / "eval", 3, TextFeature("body", 4, ("the",))) == (1, 1, 5)


def test_a_language_model_s_label_is_the_split_s_windows(tmp_path: Path) -> None:
    _write(tmp_path, [b"aab", b"", b"a"])
    feature = TextFeature("body", 4)
    label = text_columns.language_label(tmp_path, 3, feature)
    assert (label.name, label.task, len(label.frequencies)) == ("body", "causal-lm", 257)
    assert label.frequencies[ord("a")] == pytest.approx(4 / (6 + 257))
    assert text_columns.write_window_labels(tmp_path, 3, feature, label) == 2
    written = np.load(tmp_path / "label.npy")
    # a a b END a END: five predicted, three of them bytes, and two the likeliest, "a"
    assert written.sum(axis=0)[[0, 1, 3]].tolist() == [5, 3, 2]
