"""Texts as rows and as windows over one stream, beside plain Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import texts as texts_module
from trainer.settings import TextFeature
from trainer.texts import Texts, Windows, unigram, windows_of
from trainer.tokens import token_ids

DOCUMENTS = st.lists(st.binary(max_size=9), max_size=6)


def _texts(documents: list[bytes], *, sequence: int = 4) -> Texts:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in documents])]).astype(np.int64)
    flat = np.frombuffer(b"".join(documents), np.uint8)
    return Texts(flat, offsets, sequence, token_ids(TextFeature("t", sequence)))


def _stream(documents: list[bytes]) -> list[int]:
    return [token for one in documents if one for token in [*one, 256]]


@settings(max_examples=100, deadline=None)
@given(documents=DOCUMENTS, sequence=st.integers(1, 12))
def test_a_text_is_its_bytes_an_end_and_padding_or_cut(
    documents: list[bytes], sequence: int
) -> None:
    tokens, lengths = _texts(documents, sequence=sequence).take(np.arange(len(documents)))
    assert tokens.dtype == lengths.dtype == np.int32
    for row, one in enumerate(documents):
        assert tokens[row].tolist() == [*one, *[256] * sequence][:sequence]
        assert lengths[row] == min(len(one) + 1, sequence)


@settings(max_examples=100, deadline=None)
@given(documents=DOCUMENTS, sequence=st.integers(1, 12))
def test_windows_predict_each_token_of_the_stream_but_the_first_once(
    documents: list[bytes], sequence: int
) -> None:
    windows, stream = Windows.of(_texts(documents, sequence=sequence)), _stream(documents)
    assert windows.tokens == len(stream)
    assert windows.rows == -(-max(len(stream) - 1, 0) // sequence)
    tokens, lengths = windows.take(np.arange(windows.rows))
    predicted = [one for row, n in zip(tokens[:, 1:], lengths, strict=True) for one in row[:n]]
    assert predicted == stream[1:]
    for row in range(windows.rows):
        whole = [*stream, *[256] * (2 * sequence)][row * sequence : row * sequence + sequence + 1]
        assert tokens[row].tolist() == whole


def test_rows_that_are_not_there_are_padding_and_predict_nothing() -> None:
    tokens, lengths = Windows.of(_texts([b"abc"])).take(np.asarray([7]))
    assert tokens.tolist() == [[256] * 5]
    assert lengths.tolist() == [0]


def test_no_text_makes_no_window() -> None:
    for documents in ([], [b""], [b"", b""]):
        windows = Windows.of(_texts(documents))
        assert (windows.tokens, windows.rows) == (0, 0)
        assert windows.labels(unigram(windows)).shape == (0, 4)
    assert windows_of(1, 4) == 0


@settings(max_examples=30, deadline=None)
@given(train=DOCUMENTS, documents=DOCUMENTS, chunk=st.sampled_from([3, 1 << 22]))
def test_labels_hold_what_the_unigram_says_of_each_window(
    train: list[bytes], documents: list[bytes], chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "CHUNK", chunk)
        shares = unigram(Windows.of(_texts(train)))
        counts = np.bincount(_stream(train), minlength=257) + 1
        np.testing.assert_allclose(shares, counts / counts.sum(), rtol=1e-12)
        labels = Windows.of(_texts(documents)).labels(shares)
    predicted = np.asarray(_stream(documents)[1:], int)
    right = [len(predicted), np.sum(predicted < 256), -np.log(shares)[predicted].sum(),
             np.sum(predicted == np.argmax(shares))]  # fmt: skip
    np.testing.assert_allclose(labels.sum(axis=0), right, rtol=1e-9)


def test_words_have_ends_padding_and_no_bytes() -> None:
    feature = TextFeature("t", 4, ("a", "b"))
    texts = Texts(np.asarray([3, 4, 3], np.int32), np.asarray([0, 1, 3]), 4, token_ids(feature))
    tokens, lengths = texts.take(np.arange(2))
    assert tokens.tolist() == [[3, 2, 0, 0], [4, 3, 2, 0]]
    assert lengths.tolist() == [2, 3]
    windows = Windows.of(texts)
    assert windows.take(np.arange(1))[0].tolist() == [[3, 2, 4, 3, 2]]
    assert windows.labels(unigram(windows))[0, :2].tolist() == [4, 0]


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "0.bytes.npy", np.zeros(3, np.uint8))
    np.save(tmp_path / "0.offsets.npy", np.asarray([0, 2]))
    with pytest.raises(ValueError, match="does not fit"):
        Texts.open(tmp_path, 0, TextFeature("t", 4))
    np.save(tmp_path / "0.bytes.npy", np.zeros(0, np.uint8))
    np.save(tmp_path / "0.offsets.npy", np.asarray([0, 0]))
    assert Texts.open(tmp_path, 0, TextFeature("t", 4)).rows == 1
