"""Texts as rows of tokens, and as windows over one long stream; NumPy alone, memory-mapped.

Column files of a text column with index i: ``i.bytes.npy`` (uint8 [total], all texts one after the
other), ``i.offsets.npy`` (int64 [N + 1], where each begins) and ``i.present.npy`` (bool [N]; a
missing text is empty as well). Where the tokens are words, ``i.tokens.npy`` (int32 [total words])
and ``i.token_offsets.npy`` (int64 [N + 1]) stand beside them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.settings import TextFeature
from trainer.tokens import TokenIds, is_bytes, token_ids

CHUNK = 1 << 22
"""Tokens that are looked at at once, where all of them are."""
WINDOW_LABEL = ("tokens", "bytes", "baseline_loss", "baseline_right")
"""What is known of a window before any model: its predicted tokens, how many of them are bytes of
a text, and the summed loss (nats) and the right ones of the train split's unigram."""


@dataclass(frozen=True)
class Texts:
    """The texts of a split as tokens, without their ends.

    Attributes:
        tokens: uint8 or int32 [total], one text after the other.
        offsets: where each begins, int64 [N + 1].
        sequence: S, tokens that the model sees at once.
        ids: of the feature.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    sequence: int
    ids: TokenIds

    @classmethod
    def open(cls, folder: str | os.PathLike[str], index: int, feature: TextFeature) -> Texts:
        """Map the files of the column with this index.

        Raises:
            OSError: one is missing.
            ValueError: one is damaged, or they do not fit together.
        """
        of_tokens, of_starts = (
            ("bytes", "offsets") if is_bytes(feature) else ("tokens", "token_offsets")
        )
        texts = cls(
            tokens=mapped(Path(folder) / f"{index}.{of_tokens}.npy"),
            offsets=mapped(Path(folder) / f"{index}.{of_starts}.npy"),
            sequence=feature.sequence,
            ids=token_ids(feature),
        )
        if len(texts.offsets) == 0 or texts.offsets[-1] != len(texts.tokens):
            raise ValueError(f"{index}.{of_starts}.npy does not fit {index}.{of_tokens}.npy")
        return texts

    @property
    def rows(self) -> int:
        """How many texts there are."""
        return len(self.offsets) - 1

    def lengths(self) -> np.ndarray:
        """Return the tokens of each text, int64 [N], without its end."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these texts (int64 [B]), cut or padded to S, and their lengths.

        A text ends with the end token where there is room, so no length is 0.

        Returns: int32 [B, S] and int32 [B].
        """
        starts = self.offsets[rows]
        lengths = self.offsets[np.asarray(rows) + 1] - starts
        place = np.arange(self.sequence)
        inside = place < lengths[:, None]
        tokens = np.full(inside.shape, self.ids.padding, np.int32)
        tokens[inside] = self.tokens[(starts[:, None] + place)[inside]]
        tokens[place == lengths[:, None]] = self.ids.end
        return tokens, np.minimum(lengths + 1, self.sequence).astype(np.int32)


@dataclass(frozen=True)
class Windows:
    """A split's texts as one stream, each followed by the end token, cut into windows.

    Window r holds the stream's tokens r*S to r*S + S: S inputs, and the S tokens after each of
    them to be predicted. So every token but the first is predicted once. The last window may be
    short. Empty texts are not in the stream.

    Attributes:
        texts: the texts.
        ends: place in the stream of each text's end token, int64, increasing.
    """

    texts: Texts
    ends: np.ndarray

    @classmethod
    def of(cls, texts: Texts) -> Windows:
        """Lay the windows over texts."""
        kept = texts.offsets[1:][texts.lengths() > 0]
        return cls(texts, kept + np.arange(len(kept)))

    @property
    def tokens(self) -> int:
        """Tokens of the stream, ends included."""
        return int(self.ends[-1]) + 1 if len(self.ends) else 0

    @property
    def rows(self) -> int:
        """How many windows there are."""
        return windows_of(self.tokens, self.texts.sequence)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these windows (int64 [B]) and how many each one predicts.

        Returns: int32 [B, S + 1], padded, and int32 [B].
        """
        size, ids = self.texts.sequence, self.texts.ids
        place = np.asarray(rows)[:, None] * size + np.arange(size + 1)
        # The place of a byte in its file is behind by the ends before it.
        text = np.searchsorted(self.ends, place)
        inside = text < len(self.ends)
        is_end = np.zeros_like(inside)
        is_end[inside] = self.ends[text[inside]] == place[inside]
        is_token = inside & ~is_end
        tokens = np.full(place.shape, ids.padding, np.int32)
        tokens[is_token] = self.texts.tokens[(place - text)[is_token]]
        tokens[is_end] = ids.end
        return tokens, np.maximum(inside.sum(axis=1) - 1, 0).astype(np.int32)

    def labels(self, shares: np.ndarray) -> np.ndarray:
        """Return what `WINDOW_LABEL` names of each window, float64 [windows, 4].

        Args:
            shares: of each token in the train split, as `unigram` returns them.
        """
        result = np.zeros((self.rows, len(WINDOW_LABEL)))
        surprise, likeliest = -np.log(shares), int(np.argmax(shares))
        of_text = is_text_byte(self.texts.ids)
        step = max(1, CHUNK // (self.texts.sequence + 1))
        for first in range(0, self.rows, step):
            rows = np.arange(first, min(first + step, self.rows))
            tokens, lengths = self.take(rows)
            predicted = tokens[:, 1:]
            counts = np.arange(predicted.shape[1]) < lengths[:, None]
            result[rows, 0] = lengths
            result[rows, 1] = (of_text[predicted] & counts).sum(axis=1)
            result[rows, 2] = (surprise[predicted] * counts).sum(axis=1)
            result[rows, 3] = ((predicted == likeliest) & counts).sum(axis=1)
        return result


def windows_of(tokens: int, sequence: int) -> int:
    """Return the windows over a stream of so many tokens: none where nothing is to be predicted."""
    return max(0, -(-(tokens - 1) // sequence))


def is_text_byte(ids: TokenIds) -> np.ndarray:
    """Return which tokens are a byte of a text, bool [V]; of words none is."""
    is_byte = np.full(ids.size, ids.end == ids.padding)
    is_byte[ids.end] = False
    return is_byte


def unigram(windows: Windows) -> np.ndarray:
    """Return the share of each token in the stream, float64 [V], each counted once more.

    So a token that the train split does not have is unlikely, not impossible (Laplace).
    """
    size = windows.texts.ids.size
    counts = np.zeros(size, np.int64)
    for first in range(0, len(windows.texts.tokens), CHUNK):
        counts += np.bincount(windows.texts.tokens[first : first + CHUNK], minlength=size)
    counts[windows.texts.ids.end] += len(windows.ends)
    return (counts + 1) / (counts.sum() + size)


def mapped(path: Path) -> np.ndarray:
    """Return an array file without reading it; one without a value is read."""
    # As a plain array: indexing through the class np.memmap costs several times as much.
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except ValueError:
        return np.load(path)
