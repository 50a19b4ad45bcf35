"""Handwritten digits: which one is it?

The images are those of scikit-learn's digits (1,797 images of 8 x 8 pixels in 17 shades of grey;
the test set of Alpaydin and Kaynak 1998, doi:10.24432/C50P49, CC BY 4.0), each written as a PNG
into the folder of its digit.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

from pipeline.examples import folder

SIDE, SHADES = 8, 16


def images() -> dict[str, bytes]:
    """Return the path of each image within its folder of folders, and its PNG."""
    path = folder.package_file("sklearn", "datasets/data/digits.csv.gz")
    found = {}
    with gzip.open(path, "rt", encoding="ascii") as file:
        for number, line in enumerate(file):
            *levels, digit = (int(float(one)) for one in line.split(","))
            found[f"digits/{digit}/{number:04d}.png"] = png(bytes(
                round(one * 255 / SHADES) for one in levels
            ))  # fmt: skip
    return found


def png(levels: bytes) -> bytes:
    """Return a square grey image, uint8 [SIDE * SIDE], as PNG (ISO/IEC 15948)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + crc

    # Eight bits of grey; each line begins with its filter, none.
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + levels[at : at + SIDE] for at in range(0, len(levels), SIDE))
    return b"".join([
        b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines, 9)),
        chunk(b"IEND", b""),
    ])  # fmt: skip


def write(out: Path) -> list[Path]:
    """Write the images and their configuration into a folder.

    Returns: the folder of the images, and the configuration.
    """
    paths = folder.write(
        out, {**images(), "pipeline.toml": folder.configuration("digits").encode()}
    )
    return [out / "digits", paths[-1]]
