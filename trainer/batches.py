"""Column files to batches: memory-mapped, in an order that (seed, epoch) alone decides.

A split's folder holds ``columns.json`` and, for column i, ``i.values.npy`` and ``i.present.npy``
(numbers), ``i.codes.npy`` and ``i.distinct.json`` (categories) or the files of `trainer.texts`
(texts) or `trainer.images` (images), and ``label.npy``. No `tf.data` shuffle buffer: the position
(epoch, index) is all that a resumed run needs to go on with the rows that come next.

The rows of a language model are the windows of `trainer.texts.Windows`.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from trainer.errors import DataFileError
from trainer.images import Images
from trainer.settings import CategoryFeature, Features, NumberFeature
from trainer.texts import Texts, Windows, mapped
from trainer.transform import MISSING_ID, category_ids

T = TypeVar("T")
Augment = Callable[[dict[str, np.ndarray], int, int], dict[str, np.ndarray]]
Draw = Callable[[int, int, int], np.ndarray]
AHEAD = 2
"""Batches prepared while the step runs."""


@dataclass(frozen=True)
class NumberColumn:
    """Memory-mapped values (int64 or float64 [N]) and presence (bool [N])."""

    values: np.ndarray
    present: np.ndarray

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return float64 values (0 where missing) and presence of these rows."""
        values = self.values[rows].astype(np.float64)
        present = self.present[rows] & ~np.isnan(values)
        return np.where(present, values, 0.0), present


@dataclass(frozen=True)
class CategoryColumn:
    """Memory-mapped codes (int32 [N], -1 missing) and the model's id of each code."""

    codes: np.ndarray
    ids: np.ndarray

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids, int32: 0 missing, 1 unknown, 2 and up the vocabulary."""
        # The last entry of `ids` is the missing one's, so that code -1 reaches it.
        return self.ids[self.codes[rows]]


@dataclass(frozen=True)
class Columns:
    """The rows of one split as the model reads them.

    Attributes:
        rows: how many there are; of a language model, its windows.
        numbers, categories: in the order of `Features`.
        label: int32 class ids, or float64 values for regression, [N]; of a language model, what
            `trainer.texts.WINDOW_LABEL` names, float64 [N, 4].
        text: the text column, where there is one; a language model's as windows.
        image: the image column, where there is one.
    """

    rows: int
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    label: np.ndarray
    text: Texts | Windows | None = None
    image: Images | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str], features: Features) -> Columns:
        """Map the column files of `folder`; nothing but the distinct texts is read.

        Raises:
            DataFileError: when a file is missing or is not what ``columns.json`` says.
        """
        folder = Path(folder)
        try:
            described = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
            text = _text(folder, described, features)
            columns = cls(
                rows=text.rows if isinstance(text, Windows) else int(described["rows"]),
                numbers=tuple(_number(folder, described, one) for one in features.numbers),
                categories=tuple(_category(folder, described, one) for one in features.categories),
                label=mapped(folder / "label.npy"),
                text=text,
                image=_image(folder, described, features),
            )
        except (OSError, ValueError, KeyError) as error:
            raise DataFileError(
                f"the column files cannot be read: {error}", where=str(folder),
                right="run again with --no-cache Trainer to write them anew",
            ) from error  # fmt: skip
        columns.check(folder)
        return columns

    def check(self, folder: Path) -> None:
        """Refuse columns of unequal length.

        Raises:
            DataFileError: naming how many rows there should be.
        """
        lengths = {len(self.label), *(len(one.values) for one in self.numbers),
                   *(len(one.codes) for one in self.categories),
                   *(one.rows for one in (self.text, self.image) if one)}  # fmt: skip
        if lengths != {self.rows}:
            raise DataFileError(
                "the column files differ in length", where=str(folder),
                holds=f"{sorted(lengths)} rows", right=f"{self.rows} in each",
            )  # fmt: skip

    def inputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the model's inputs of these rows (int64 [B]), in this order.

        ``number_values`` float64 [B, n], ``number_present`` bool [B, n], ``category_ids`` int32
        [B, m], unless a text or image column is all there is. Of a text column ``tokens`` int32
        [B, S] (windows: [B, S + 1]) and ``lengths`` int32 [B]; of an image column ``pixels`` uint8
        [B, S, S, C], from the middle of each image.
        """
        found = self._flat(rows)
        return found if self.image is None else {**found, "pixels": self.image.take(rows)}

    def batch(
        self,
        rows: np.ndarray,
        size: int,
        *,
        drawn: np.ndarray | None = None,
        own: slice = slice(None),
    ) -> dict[str, np.ndarray]:
        """Return inputs, label and weight of these rows, padded to `size`.

        A padding row is all zeros but for its ``tokens``, which are padding, and the length 1 of
        its empty text. A language model has no label beside its tokens.

        Args:
            rows: int64 [B].
            size: rows of the batch.
            drawn: how images are moved, as `trainer.images.draws`; None: not at all.
            own: the rows of the batch whose images are decoded; those of others are zeros.
        """
        batch = {**self._flat(rows), "weight": np.ones(len(rows), np.float32)}
        if self.image is not None:
            moved = None if drawn is None else drawn[: len(rows)][own]
            pixels = self.image.take(rows[own], moved)
            batch["pixels"] = pixels
            if len(pixels) < len(rows):
                batch["pixels"] = np.zeros((len(rows), *self.image.shape), np.uint8)
                batch["pixels"][own] = pixels
        if not isinstance(self.text, Windows):
            batch["label"] = self.label[rows]
        missing = size - len(rows)
        fill = self._fill()
        return {name: _padded(one, missing, fill.get(name, 0)) for name, one in batch.items()}

    def _flat(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs that are no images."""
        is_all = self.text is None and self.image is None
        found = self._columns(rows) if is_all or self.numbers or self.categories else {}
        if self.text is None:
            return found
        tokens, lengths = self.text.take(rows)
        return {**found, "tokens": tokens, "lengths": lengths}

    def _fill(self) -> dict[str, int]:
        if self.text is None:
            return {}
        if isinstance(self.text, Windows):
            return {"tokens": self.text.texts.ids.padding}
        return {"tokens": self.text.ids.padding, "lengths": 1}

    def _columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        values = np.zeros((len(rows), len(self.numbers)), np.float64)
        present = np.zeros((len(rows), len(self.numbers)), bool)
        ids = np.zeros((len(rows), len(self.categories)), np.int32)
        for place, number in enumerate(self.numbers):
            values[:, place], present[:, place] = number.take(rows)
        for place, category in enumerate(self.categories):
            ids[:, place] = category.take(rows)
        return {"number_values": values, "number_present": present, "category_ids": ids}


def _text(folder: Path, described: Mapping[str, Any], features: Features) -> Texts | Windows | None:
    if features.text is None:
        return None
    index = described["features"][features.text.name]["index"]
    texts = Texts.open(folder, index, features.text)
    return Windows.of(texts) if features.label.task == "causal-lm" else texts


def _image(folder: Path, described: Mapping[str, Any], features: Features) -> Images | None:
    if features.image is None:
        return None
    index = described["features"][features.image.name]["index"]
    return Images.open(folder, index, features.image)


def _number(folder: Path, described: Mapping[str, Any], feature: NumberFeature) -> NumberColumn:
    index = described["features"][feature.name]["index"]
    return NumberColumn(
        mapped(folder / f"{index}.values.npy"), mapped(folder / f"{index}.present.npy")
    )


def _category(
    folder: Path, described: Mapping[str, Any], feature: CategoryFeature
) -> CategoryColumn:
    index = described["features"][feature.column]["index"]
    distinct = json.loads((folder / f"{index}.distinct.json").read_text(encoding="utf-8"))
    texts = tf.constant([text.encode() for text in distinct], tf.string, shape=[len(distinct)])
    ids = np.append(category_ids(feature, texts).numpy(), MISSING_ID).astype(np.int32)
    return CategoryColumn(mapped(folder / f"{index}.codes.npy"), ids)


def row_order(rows: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order of rows in one epoch: a permutation of 0..rows-1, int64.

    It depends on its arguments alone, so any epoch's can be made without those before it.
    """
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(rows)


class Batches:
    """The batches of a training, by (epoch, index).

    Attributes:
        columns: of the train split.
        seed: of the order.
        global_batch: rows of each batch, the epoch's last one padded to it.
        augment: takes a batch, its epoch and its index, and returns it changed; None: none is.
        draw: of rows, epoch and index: how the images of a batch are moved; None: not at all.
        own: the rows of a batch that this process trains with; images of others are not decoded.
    """

    def __init__(
        self,
        columns: Columns,
        *,
        seed: int,
        global_batch: int,
        augment: Augment | None = None,
        draw: Draw | None = None,
        own: slice = slice(None),
    ) -> None:
        self.augment, self.draw, self.own = augment, draw, own
        self.columns = columns
        self.seed = seed
        self.global_batch = global_batch
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every row once."""
        return -(-self.columns.rows // self.global_batch)

    def at(self, step: int) -> dict[str, np.ndarray]:
        """Return the batch of one step, counted from 0 over all epochs.

        Returns: the model's inputs, ``label`` and ``weight`` (float32 [global_batch]: 1 a real
            row, 0 padding, which comes last), as `Columns.batch`.
        """
        epoch, index = divmod(step, self.steps_per_epoch)
        start = index * self.global_batch
        rows = self.order(epoch)[start : start + self.global_batch]
        drawn = None if self.draw is None else self.draw(self.global_batch, epoch, index)
        batch = self.columns.batch(rows, self.global_batch, drawn=drawn, own=self.own)
        return batch if self.augment is None else self.augment(batch, epoch, index)

    def order(self, epoch: int) -> np.ndarray:
        """Return `row_order` of an epoch; the last one asked for is kept."""
        kept, order = self._order
        if kept != epoch:
            order = row_order(self.columns.rows, seed=self.seed, epoch=epoch)
            self._order = (epoch, order)
        return order


def _padded(value: np.ndarray, rows: int, fill: int) -> np.ndarray:
    if not rows:
        return value
    return np.pad(value, [(0, rows)] + [(0, 0)] * (value.ndim - 1), constant_values=fill)


def ahead(items: Iterable[T], *, depth: int = AHEAD) -> Generator[T, None, None]:
    """Yield `items` in order, made by a thread that keeps up to `depth` of them ready.

    An exception in the making is raised at its place. Closing the generator ends the thread.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
    ended = threading.Event()
    thread = threading.Thread(target=_make, args=(items, ready, ended), name="batches", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        ended.set()
        thread.join()


def _make(items: Iterable[Any], ready: queue.Queue[Any], ended: threading.Event) -> None:
    """Put every item into the queue, then how it ended."""
    try:
        for item in items:
            if not _put(("item", item), ready, ended):
                return
    except BaseException as error:  # ruff: ignore[blind-except] - raised where it is awaited
        _put(("error", error), ready, ended)
    else:
        _put(("end", None), ready, ended)


def _put(entry: tuple[str, Any], ready: queue.Queue[Any], ended: threading.Event) -> bool:
    """Wait for room; tell whether the entry was taken before the reader went away."""
    while not ended.is_set():
        try:
            ready.put(entry, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
