"""NVIDIA DALI: the steps of `trainer.images` on a GPU, where it is installed.

JPEG is decoded by nvJPEG, whose levels may differ from libjpeg's by a few; everything after it is
the same mathematics as the `tf.data` way. Without a GPU the same graph runs on processors, which is
how it is tested. DALI's own pipeline is used, not its TensorFlow plugin: a batch is asked for by
its place, and the plugin, which has to be compiled beside TensorFlow, gives batches in a row.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.errors import SettingError
from trainer.settings import ImageFeature

PACKAGE = "nvidia.dali"


def is_installed() -> bool:
    """Tell whether DALI is there, without importing it."""
    try:
        return importlib.util.find_spec(PACKAGE) is not None
    except ModuleNotFoundError:
        # The package that it lies in is not there either.
        return False


def pipeline(feature: ImageFeature, *, rows: int, device_id: int | None) -> Any:
    """Return DALI's graph for batches of at most so many images, built.

    Its inputs are fed by name: ``encoded`` (uint8 [bytes] each) and ``across``, ``down`` and
    ``mirrored`` (float32 [], float32 [], int32 [] each). Its output is uint8 [S, S, C] each.

    Args:
        feature: sizes.
        rows: most images of a batch.
        device_id: number of the GPU; None: processors.

    Raises:
        SettingError: when DALI is not installed.
    """
    try:
        # An extra, which the environment that is checked does not have.
        from nvidia.dali import Pipeline, fn, math, types  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingError(
            f"DALI cannot be imported ({error})",
            where="trainer.dali", right='install it with: uv pip install "headrace[dali]"',
        ) from error  # fmt: skip
    made = Pipeline(
        batch_size=rows,
        num_threads=len(os.sched_getaffinity(0)),
        device_id=device_id,
        prefetch_queue_depth=1,
        exec_async=False,
        exec_pipelined=False,
    )
    with made:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        across = fn.external_source(name="across", dtype=types.FLOAT, ndim=0)
        down = fn.external_source(name="down", dtype=types.FLOAT, ndim=0)
        mirrored = fn.external_source(name="mirrored", dtype=types.INT32, ndim=0)
        image = fn.decoders.image(
            encoded,
            device="cpu" if device_id is None else "mixed",
            output_type=types.RGB,
            # As TensorFlow, which does not look at it.
            adjust_orientation=False,
        )
        if feature.channels == 1:
            image = fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY)
        # Not `resize_shorter`, which resizes to a size that is no whole number, then cuts it.
        sides = fn.peek_image_shape(encoded, dtype=types.INT32, adjust_orientation=False)
        height, width = (fn.cast(sides[axis], dtype=types.FLOAT) for axis in (0, 1))
        scale = float(feature.resize) / math.min(height, width)
        image = fn.resize(
            image,
            resize_y=math.max(math.floor(height * scale + 0.5), float(feature.resize)),
            resize_x=math.max(math.floor(width * scale + 0.5), float(feature.resize)),
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            dtype=types.FLOAT,
        )
        image = fn.crop(
            image,
            crop=(feature.size, feature.size),
            crop_pos_x=across,
            crop_pos_y=down,
            rounding="round",
        )
        image = fn.flip(image, horizontal=mirrored)
        # A cast rounds to the nearest level and keeps to 0..255.
        made.set_outputs(fn.cast(image, dtype=types.UINT8))
    made.build()
    return made


def decoder(
    feature: ImageFeature, *, device_id: int | None
) -> Callable[[list[bytes], np.ndarray], np.ndarray]:
    """Return what decodes a batch by DALI; see `trainer.images.Decode`.

    The graph is built for the largest batch so far, and again for a larger one.

    Args:
        feature: sizes.
        device_id: number of the GPU; None: processors.
    """
    built: list[tuple[int, Any]] = []

    def decode(encoded: list[bytes], drawn: np.ndarray) -> np.ndarray:
        if not built or built[0][0] < len(encoded):
            made = pipeline(feature, rows=len(encoded), device_id=device_id)
            built[:] = [(len(encoded), made)]
        graph = built[0][1]
        graph.feed_input("encoded", [np.frombuffer(one, np.uint8) for one in encoded])
        graph.feed_input("across", list(np.asarray(drawn[:, 0], np.float32)))
        graph.feed_input("down", list(np.asarray(drawn[:, 1], np.float32)))
        graph.feed_input("mirrored", list(np.asarray(drawn[:, 2], np.int32)))
        (pixels,) = graph.run()
        return pixels.as_cpu().as_array()

    return decode
