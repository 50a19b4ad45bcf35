"""Encoded images to pixels: decode, resize, crop, flip, by `tf.data`, or by DALI on a GPU.

Column files of an image column with index i are those of texts: ``i.bytes.npy`` (uint8 [total], all
encoded images one after the other) and ``i.offsets.npy`` (int64 [N + 1], where each begins).

The steps, the same in training, evaluation and serving, and by DALI (`trainer.dali`):

1. decode to red, green and blue, whatever the camera says of the orientation; to grey of them, by
   `LUMA`, where C is 1;
2. resize so that the shorter side has `ImageFeature.resize` pixels, by triangle filter, widened
   where the image shrinks (Pillow's ``BILINEAR``, `tf.image.resize` with ``antialias``);
3. cut S x S pixels out, from the middle unless a draw says where;
4. mirror, left to right, where a draw says so;
5. round to uint8, so that all ways agree within one level of 255.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer import dali, devices
from trainer.settings import AugmentSettings, ImageFeature
from trainer.texts import mapped

STREAM = 0x696D6167
"""Apart from the streams of random numbers that order the rows and change other columns."""
LUMA = (0.299, 0.587, 0.114)
"""Of red, green and blue in grey (ITU-R BT.601), as JPEG has it."""
MIDDLE = (0.5, 0.5, 0.0)
"""The draw of an image that is not moved: where the cut is, across and down, 0 to 1; mirrored."""

Decode = Callable[[list[bytes], np.ndarray], np.ndarray]
"""Takes encoded images [B] and draws float32 [B, 3]; returns pixels uint8 [B, S, S, C]."""


def draws(rows: int, settings: AugmentSettings, *, place: tuple[int, int, int]) -> np.ndarray:
    """Return where the images of a batch are cut out, and whether they are mirrored.

    Args:
        rows: of the batch.
        settings: whether they are moved, and mirrored.
        place: seed, epoch and index of the batch, on which alone the draws depend.
    Returns: float32 [rows, 3], as `MIDDLE`.
    """
    seed, epoch, index = place
    draw = np.random.Generator(np.random.Philox(key=[seed, STREAM], counter=[0, 0, epoch, index]))
    drawn = draw.random((rows, 3), np.float32)
    if not settings.crop:
        drawn[:, :2] = 0.5
    drawn[:, 2] = (drawn[:, 2] < 0.5) & settings.flip
    return drawn


def pixels(feature: ImageFeature, encoded: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Return the pixels of one image as the model reads them.

    Args:
        feature: sizes.
        encoded: string [], PNG or JPEG.
        draw: float32 [3], as `MIDDLE`.
    Returns: uint8 [S, S, C]. An image that cannot be decoded raises when this is run.
    """
    size = feature.size
    image = tf.io.decode_image(encoded, 3, expand_animations=False)
    if feature.channels == 1:
        image = tf.tensordot(tf.cast(image, tf.float32), tf.constant(LUMA), 1)[..., None]
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    scale = feature.resize / tf.reduce_min(sides)
    # Half up, as all do; never below what is cut out, whatever the rounding.
    resized = tf.maximum(tf.cast(tf.floor(sides * scale + 0.5), tf.int32), feature.resize)
    image = tf.image.resize(image, resized, method="bilinear", antialias=True)
    left = tf.cast(resized - size, tf.float32)
    # The draw's first number goes across, the image's first axis down. Half up.
    first = tf.cast(tf.floor(draw[1::-1] * left + 0.5), tf.int32)
    image = tf.slice(image, tf.concat([first, [0]], 0), [size, size, feature.channels])
    image = tf.where(draw[2] > 0, image[:, ::-1], image)
    levels = tf.clip_by_value(tf.round(image), 0, 255)
    return tf.ensure_shape(tf.cast(levels, tf.uint8), [size, size, feature.channels])


def served(feature: ImageFeature, encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels of encoded images, as in evaluation; of an empty text, all 0.

    Args:
        feature: sizes.
        encoded: string [B].
    Returns: uint8 [B, S, S, C].
    """
    shape = [feature.size, feature.size, feature.channels]

    def one(image: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf.strings.length(image) > 0,
            lambda: pixels(feature, image, tf.constant(MIDDLE)),
            lambda: tf.zeros(shape, tf.uint8),
        )

    made = tf.map_fn(one, encoded, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
    return tf.ensure_shape(made, [None, *shape])


def by_tf_data(feature: ImageFeature) -> Decode:
    """Return what decodes with `tf.data`, in order, as many images at once as there are cores."""
    at_once = len(os.sched_getaffinity(0))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None, 3], tf.float32)]
    )
    def run(encoded: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        rows = tf.data.Dataset.from_tensor_slices((encoded, drawn))
        made = rows.map(partial(pixels, feature), num_parallel_calls=at_once, deterministic=True)
        return made.batch(
            tf.cast(tf.maximum(tf.shape(encoded)[0], 1), tf.int64)
        ).get_single_element()

    def decode(encoded: list[bytes], drawn: np.ndarray) -> np.ndarray:
        with tf.device("CPU"):
            return run(tf.constant(encoded, tf.string), tf.constant(drawn, tf.float32)).numpy()

    return decode


def decoder(feature: ImageFeature) -> Decode:
    """Return DALI's decoder where DALI is installed and a GPU is there, else `tf.data`'s."""
    if devices.gpus() and dali.is_installed():
        return dali.decoder(feature, device_id=0)
    return by_tf_data(feature)


@dataclass(frozen=True)
class Images:
    """The encoded images of a split.

    Attributes:
        data: uint8 [total], one image after the other.
        offsets: where each begins, int64 [N + 1].
        feature: sizes.
        decode: of `decoder`.
    """

    data: np.ndarray
    offsets: np.ndarray
    feature: ImageFeature
    decode: Decode = field(repr=False)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], index: int, feature: ImageFeature) -> Images:
        """Map the files of the column with this index.

        Raises:
            OSError: one is missing.
            ValueError: one is damaged, or they do not fit together.
        """
        of_bytes, of_starts = (Path(folder) / f"{index}.{one}.npy" for one in ("bytes", "offsets"))
        data, offsets = mapped(of_bytes), mapped(of_starts)
        if len(offsets) == 0 or offsets[-1] != len(data):
            raise ValueError(f"{of_starts.name} does not fit {of_bytes.name}")
        return cls(data, offsets, feature, decoder(feature))

    @property
    def rows(self) -> int:
        """How many images there are."""
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the pixels of one image."""
        return self.feature.size, self.feature.size, self.feature.channels

    def take(self, rows: np.ndarray, drawn: np.ndarray | None = None) -> np.ndarray:
        """Return the pixels of these images (int64 [B]), uint8 [B, S, S, C].

        Args:
            rows: which.
            drawn: float32 [B, 3], as `draws`; None: none is moved.
        """
        if not len(rows):
            return np.zeros((0, *self.shape), np.uint8)
        if drawn is None:
            drawn = np.tile(np.asarray(MIDDLE, np.float32), (len(rows), 1))
        starts, ends = self.offsets[rows], self.offsets[np.asarray(rows) + 1]
        encoded = [self.data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
        return self.decode(encoded, drawn)
