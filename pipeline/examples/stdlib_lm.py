"""The source of Python's standard library, as documents: a small language model learns to write it.

The files are those of the installed Python (Python Software Foundation License), of the packages
that `stdlib` names, without their tests: about 2.1 MB.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.examples import folder, stdlib


def write(out: Path) -> list[Path]:
    """Write the sources and their configuration into a folder.

    Returns: the folder of the sources, and the configuration.
    """
    files = {f"stdlib/{stdlib.relative(path)}": path.read_bytes() for _, path in stdlib.sources()}
    *_, configuration = folder.write(
        out, {**files, "pipeline.toml": folder.configuration("stdlib_lm").encode()}
    )
    return [out / "stdlib", configuration]
