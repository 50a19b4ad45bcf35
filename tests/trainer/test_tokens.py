"""Words by the documented rule; outside a graph and inside, the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import tokens
from trainer.settings import TextFeature

TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("aZ_09 \t\n\v\f\r\x00\x1f.,-(é漢İ")),
    max_size=60,
)


def _words(text: str) -> list[str]:
    return [word.decode() for word in tokens.words(text.encode())]


def test_a_word_is_a_run_of_letters_digits_and_what_is_not_ascii() -> None:
    assert _words("Don't STOP_2 naïve 漢字!\v(x)") == [
        "don", "'", "t", "stop_2", "naïve", "漢字", "!", "(", "x", ")",
    ]  # fmt: skip
    assert _words(" \t\r\n\f\v") == []
    assert _words("É") == ["É"], "only ASCII is lower-cased"


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_words_and_white_space_are_all_of_a_text(text: str) -> None:
    lowered = text.encode().lower()
    assert b"".join(tokens.words(text.encode())) == tokens.SPACE.sub(b"", lowered)


def test_a_long_text_is_cut_where_no_word_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"one two, three\nfour " * 20
    whole = list(tokens.words(text))
    monkeypatch.setattr(tokens, "PIECE_BYTES", 7)
    assert list(tokens.words(text)) == whole
    assert list(tokens.words(b"x" * 100)) == [b"x" * 100], "no white space to cut at"


def test_the_most_frequent_words_come_first_and_equal_ones_by_the_word() -> None:
    texts = [b"b a c", b"a c", b"c d"]
    assert tokens.learn_words(texts, most=10) == ("c", "a", "b", "d")
    assert tokens.learn_words(texts, most=2) == ("c", "a")


def test_words_seen_once_in_many_stay_unknown() -> None:
    assert tokens.learn_words([b"x " * 999 + b"once"], most=10) == ("x",)
    assert tokens.learn_words([b"x " * 998 + b"once"], most=10) == ("x", "once")


def test_ids_begin_after_padding_unknown_and_end() -> None:
    feature = TextFeature("t", 4, ("a", "b"))
    assert tokens.token_ids(feature) == tokens.TokenIds(size=5, end=2, padding=0)
    numbers = tokens.word_numbers(feature.vocabulary)
    np.testing.assert_array_equal(tokens.word_ids(b"b ? A", numbers), [4, 1, 3])
    assert tokens.token_ids(TextFeature("t", 4)) == tokens.TokenIds(257, 256, 256)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=5), is_words=st.booleans())
def test_a_graph_makes_the_same_tokens(texts: list[str], is_words: bool) -> None:
    import tensorflow as tf

    from trainer.text_transform import sequences, tokenize, word_table
    from trainer.texts import Texts

    raw = [text.encode() for text in texts]
    vocabulary = ("a", "0", "é", "漢", ".") if is_words else ()
    feature = TextFeature("t", 8, vocabulary)
    numbers = tokens.word_numbers(vocabulary)
    own = [tokens.word_ids(one, numbers) if is_words else np.frombuffer(one, np.uint8)
           for one in raw]  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in own])]).astype(np.int64)
    flat = np.concatenate([*own, np.zeros(0, np.int32 if is_words else np.uint8)])
    expected = Texts(flat, offsets, 8, tokens.token_ids(feature)).take(np.arange(len(raw)))
    found = sequences(
        feature, *tokenize(feature, tf.constant(raw, tf.string, [len(raw)]), word_table(feature))
    )
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
