"""Column files of texts, as `trainer.texts` reads them; written batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer import texts, tokens
from trainer.settings import LabelFeature, TextFeature
from trainer.texts import Windows


class GrowingArray:
    """A one-dimensional ``.npy`` file that is written piece by piece, whatever its length."""

    def __init__(self, path: Path, kind: type) -> None:
        self._kind = np.dtype(kind)
        self._count = 0
        self._file = open(path, "wb")  # ruff: ignore[open-file-with-context-handler] - see close
        self._write_header()
        self._start = self._file.tell()

    def append(self, values: np.ndarray) -> None:
        """Write more values."""
        self._file.write(memoryview(np.ascontiguousarray(values, self._kind)).cast("B"))
        self._count += len(values)

    def close(self) -> None:
        """Write how many values there are, and close the file."""
        self._file.seek(0)
        self._write_header()
        # NumPy leaves room for a length that grows, so the header keeps its size.
        assert self._file.tell() == self._start
        self._file.close()

    def _write_header(self) -> None:
        described: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(self._kind),
            "fortran_order": False,
            "shape": (self._count,),
        }
        np.lib.format.write_array_header_1_0(self._file, described)


class TextFiles:
    """Writes a text column: ``i.bytes.npy``, ``i.offsets.npy`` and ``i.present.npy``."""

    def __init__(self, folder: Path, index: int) -> None:
        self._bytes = GrowingArray(folder / f"{index}.bytes.npy", np.uint8)
        self._offsets = GrowingArray(folder / f"{index}.offsets.npy", np.int64)
        self._present = GrowingArray(folder / f"{index}.present.npy", np.bool_)
        self._offsets.append(np.zeros(1, np.int64))
        self._end = 0

    def add(self, lists: pa.Array | None, rows: int) -> None:
        """Write the texts of one batch.

        Args:
            lists: large lists of binary with at most one value each, null where missing; None:
                all are missing.
            rows: of the batch.
        """
        lengths = np.zeros(rows, np.int64)
        present = np.zeros(rows, np.bool_)
        if lists is not None and lists.null_count < rows:
            values = lists.flatten().cast(pa.large_binary())
            present = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)) > 0
            lengths[present] = np.asarray(pc.binary_length(values))
            self._bytes.append(_joined(values))
        ends = self._end + np.cumsum(lengths)
        self._offsets.append(ends)
        self._present.append(present)
        self._end = int(ends[-1]) if rows else self._end

    def close(self) -> None:
        """Finish the files."""
        for one in (self._bytes, self._offsets, self._present):
            one.close()


def _joined(values: pa.LargeBinaryArray) -> np.ndarray:
    """Return the bytes of all values, one after the other, uint8, without a copy."""
    offsets = np.frombuffer(values.buffers()[1], np.int64)
    start, end = offsets[values.offset], offsets[values.offset + len(values)]
    data = values.buffers()[2]
    return np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[start:end]


def describe(folder: Path, index: int, name: str, *, model: Any) -> TextFeature:
    """Describe a written text column of the train split.

    Args:
        folder: of the split.
        index: of the column.
        name: of the column.
        model: `trainer.settings.ModelSettings`.
    """
    if model.vocabulary == "bytes":
        return TextFeature(name, model.sequence)
    words = tokens.learn_words(read_texts(folder, index), most=model.vocabulary_size)
    return TextFeature(name, model.sequence, words)


def write_words(folder: Path, index: int, feature: TextFeature) -> None:
    """Write the tokens of a text column whose tokens are words; nothing where they are bytes."""
    if tokens.is_bytes(feature):
        return
    numbers = tokens.word_numbers(feature.vocabulary)
    of_tokens = GrowingArray(folder / f"{index}.tokens.npy", np.int32)
    of_starts = GrowingArray(folder / f"{index}.token_offsets.npy", np.int64)
    end = 0
    of_starts.append(np.zeros(1, np.int64))
    for text in read_texts(folder, index):
        ids = tokens.word_ids(text, numbers)
        end += len(ids)
        of_tokens.append(ids)
        of_starts.append(np.asarray([end]))
    of_tokens.close()
    of_starts.close()


def language_label(folder: Path, index: int, feature: TextFeature) -> LabelFeature:
    """Describe what a language model predicts: the text, and how frequent its tokens are."""
    shares = texts.unigram(_windows(folder, index, feature))
    return LabelFeature(
        feature.name, "causal-lm", "string", frequencies=tuple(float(one) for one in shares)
    )


def write_window_labels(folder: Path, index: int, feature: TextFeature, label: LabelFeature) -> int:
    """Write ``label.npy`` of a language model's windows; return how many there are."""
    windows = _windows(folder, index, feature)
    np.save(folder / "label.npy", windows.labels(np.asarray(label.frequencies)))
    return windows.rows


def cut(folder: Path, index: int, feature: TextFeature) -> tuple[int, int, int]:
    """Return how many texts there are, how many have more tokens than S, and the most tokens."""
    lengths = texts.Texts.open(folder, index, feature).lengths()
    return len(lengths), int((lengths > feature.sequence).sum()), int(lengths.max(initial=0))


def _windows(folder: Path, index: int, feature: TextFeature) -> Windows:
    return Windows.of(texts.Texts.open(folder, index, feature))


def read_texts(folder: Path, index: int) -> Iterator[bytes]:
    """Yield the texts of a column that is written."""
    data = texts.mapped(folder / f"{index}.bytes.npy")
    offsets = texts.mapped(folder / f"{index}.offsets.npy")
    for start, end in pairwise(offsets.tolist()):
        yield data[start:end].tobytes()
