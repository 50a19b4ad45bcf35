"""Tokens of texts: the bytes of UTF-8, or words by one simple rule; no TensorFlow.

Bytes: ids 0..255 are the bytes, 256 ends a document and pads.

Words: ASCII letters are lower-cased; a word is a run of letters a-z, digits, ``_`` and everything
that is not ASCII; every other character that is no white space (tab, line feed, vertical tab, form
feed, carriage return, space) is a word by itself. Ids: 0 pads, 1 is any unknown word, 2 ends a
document, the vocabulary begins at 3. `trainer.text_transform` does the same inside a graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from trainer.settings import TextFeature

BYTES = 256
UNKNOWN_WORD = 1
FIRST_WORD = 3
WORD = re.compile(rb"[a-z0-9_\x80-\xff]+|[^\t-\r ]")
SPACE = re.compile(rb"[\t-\r ]")
PIECE_BYTES = 1 << 20
"""Bytes of a text whose words are held at once."""
MANY_WORDS = 1000
"""In a split with so many words, those seen once stay unknown, so that unknown is learned too."""


@dataclass(frozen=True)
class TokenIds:
    """The ids of a text feature.

    Attributes:
        size: V, how many there are.
        end: ends a document.
        padding: fills what is left of a sequence.
    """

    size: int
    end: int
    padding: int


def token_ids(feature: TextFeature) -> TokenIds:
    """Return the ids of a feature's tokens."""
    if is_bytes(feature):
        return TokenIds(size=BYTES + 1, end=BYTES, padding=BYTES)
    return TokenIds(size=FIRST_WORD + len(feature.vocabulary), end=2, padding=0)


def is_bytes(feature: TextFeature) -> bool:
    """Say whether a feature's tokens are bytes."""
    return not feature.vocabulary


def words(text: bytes) -> Iterator[bytes]:
    """Yield the words of a text, in order."""
    return chain.from_iterable(WORD.findall(piece.lower()) for piece in _pieces(text))


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield a text in pieces that end with white space, where there is some."""
    start = 0
    while len(text) - start > PIECE_BYTES:
        space = SPACE.search(text, start + PIECE_BYTES)
        if space is None:
            break
        yield text[start : space.end()]
        start = space.end()
    yield text[start:]


def learn_words(texts: Iterable[bytes], *, most: int) -> tuple[str, ...]:
    """Return the words of texts, most frequent first, equal ones by the word; at most `most`.

    A word seen once among `MANY_WORDS` and more is left out.
    """
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(words(text))
    least = 2 if counts.total() >= MANY_WORDS else 1
    kept = [(-count, word) for word, count in counts.items() if count >= least]
    return tuple(word.decode(errors="replace") for _, word in sorted(kept)[:most])


def word_numbers(vocabulary: Sequence[str]) -> Mapping[bytes, int]:
    """Return the id of each word of a vocabulary."""
    return {word.encode(): FIRST_WORD + place for place, word in enumerate(vocabulary)}


def word_ids(text: bytes, numbers: Mapping[bytes, int]) -> np.ndarray:
    """Return the ids of a text's words, int32; `numbers` as of `word_numbers`."""
    found = [numbers.get(word, UNKNOWN_WORD) for word in words(text)]
    return np.asarray(found, np.int32)
