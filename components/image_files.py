"""Image files: a file is a row with the columns ``image``, ``path`` and ``class``.

The image is the file's bytes as they are, PNG or JPEG. The path is relative to the folder that all
files are in, and says where a row stands. The class is the name of the folder that a file lies in.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from components.column_types import Seen
from components.documents import MOST_BYTES, is_temporary, shown_path
from trainer.errors import DataFileError

SUFFIXES = (".png", ".jpg", ".jpeg", ".PNG", ".JPG", ".JPEG")
OTHERS = (".gif", ".bmp", ".webp", ".tif", ".tiff", ".heic", ".avif")
"""Endings of images that are not read."""
IMAGE, PATH, CLASS = "image", "path", "class"
COLUMNS = (IMAGE, PATH, CLASS)
KINDS = "PNG or JPEG"
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_NAMES = {b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WebP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}


def is_image(path: Path) -> bool:
    """Say whether a file is an image by its name."""
    return path.name.endswith(SUFFIXES)


def is_encoded(data: bytes) -> bool:
    """Say whether bytes begin as an image does."""
    return data.startswith((_PNG, _JPEG))


def why_not(path: Path) -> str:
    """Return why a file is no image; empty when it is one."""
    if is_temporary(path):
        return "hidden or temporary"
    if not path.is_file():
        return "not a file"
    if path.name.lower().endswith(OTHERS):
        return f"an image, but no {KINDS}"
    return "" if is_image(path) else "not an image by its ending"


def read(path: Path, folder: str, *, most: int = 0) -> tuple[pa.RecordBatch, bool]:
    """Return an image as one row, and whether that is all of it.

    Args:
        path: the file.
        folder: what its path is relative to.
        most: bytes that are read, about; 0: all.

    Raises:
        DataFileError: when it cannot be read, or is too large for a row.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1 if most else MOST_BYTES + 1)
    except OSError as error:
        raise DataFileError(
            f"cannot be read: {error.strerror}", where=str(path),
            right="give the right to read it, or take it out of data.files",
        ) from error  # fmt: skip
    if len(data) > MOST_BYTES:
        raise DataFileError(
            "the image is too large to be a row", where=str(path),
            holds=f"more than {MOST_BYTES:,} bytes", right="save it smaller",
        )  # fmt: skip
    is_whole = not most or len(data) <= most
    # An empty file is no missing image, but a broken one.
    columns = [
        pa.array([data], pa.large_binary()),
        pa.array([shown_path(path, folder)]),
        pa.array([class_of(path)]),
    ]
    return pa.RecordBatch.from_arrays(columns, list(COLUMNS)), is_whole


def class_of(path: Path) -> str:
    """Return the name of the folder that an image lies in."""
    return os.fsencode(path.parent.name).decode(errors="replace")


def see() -> tuple[int, dict[str, Seen]]:
    """Return the one row of any image, and what its values show, without opening it."""
    texts = {name: Seen(has_values=True, is_text=True) for name in (PATH, CLASS)}
    return 1, {IMAGE: Seen(has_values=True, is_image=True), **texts}


def one_class(paths: Sequence[Path]) -> DataFileError | None:
    """Return the error of image files that all lie in one folder; None: they do not."""
    folders = {path.parent for path in paths}
    if len({class_of(path) for path in paths}) > 1:
        return None
    (first, *_) = sorted(folders)
    return DataFileError(
        "the images are of one class: the folder that an image lies in is its class",
        where=str(first), holds=f"{len(paths):,} images, and no other folder has any",
        right="name the folder above it, with one folder of images for each class, such as cats/ "
        "and dogs/",
    )  # fmt: skip


def problem(data: bytes | None) -> str:
    """Return why bytes are no image that a model can read; empty: they are one.

    Args:
        data: of the file, or the cell; None: there are none.
    """
    if not data:
        return "holds no image"
    if not is_encoded(data):
        name = next((name for start, name in _NAMES.items() if data.startswith(start)), "")
        return f"is {name}, not {KINDS}" if name else f"is no {KINDS}"
    # Imports TensorFlow, whose decoder is the model's.
    import tensorflow as tf

    try:
        with tf.device("CPU"):
            tf.io.decode_image(data, 3, expand_animations=False)
    except tf.errors.OpError as error:
        said = " ".join(error.message.split("[Op:")[0].split())[-120:]
        return f"is a broken image: {said}" if said else "is a broken image"
    return ""


def refused(what: str, place: str) -> DataFileError:
    """Return the error of an image that cannot be read.

    Args:
        what: of `problem`.
        place: the file, or file and row.
    """
    return DataFileError(
        what, where=place,
        right=f"save it again as {KINDS}, take it out of data.files, or set "
        "data.clean.drop_broken_images",
    )  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What the head of an image says: pixels, and whether it has colours."""

    width: int
    height: int
    has_colours: bool


def shape_of(data: bytes) -> Shape | None:
    """Return what the head of a PNG or JPEG says; None where it says nothing that is known."""
    if data.startswith(_PNG) and len(data) >= 26:
        width, height, _, colours = struct.unpack_from(">IIBB", data, 16)
        # Bits of the colour type: 1 palette, 2 colours, 4 transparency.
        return Shape(width, height, bool(colours & 3))
    return _of_jpeg(data) if data.startswith(_JPEG) else None


def _of_jpeg(data: bytes) -> Shape | None:
    at = 2
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker, size = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        # The frame's own marker: C0 to CF, but for C4 (Huffman), C8 and CC (arithmetic).
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            height, width, channels = struct.unpack_from(">HHB", data, at + 5)
            return Shape(width, height, channels > 1)
        at += 2 + size
    return None
