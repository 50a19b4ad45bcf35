"""Imports that a process can do without: half of TensorFlow's start-up time is not TensorFlow.

Keras imports scikit-learn, pandas, matplotlib and IPython wherever they are installed, for wrappers
and plots that are not used here (measured: 13.8 s of processor time to import TensorFlow with them,
8.0 without). `tfx.components` loads all of TFX's sixteen components, with what they need of a model
analysis and of clusters, when one of its submodules is wanted (36 s against 19 for the rest).
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

OF_KERAS = ("sklearn", "pandas", "matplotlib", "IPython")
"""What Keras takes when it is there."""


@contextmanager
def without(*names: str) -> Generator[None, None, None]:
    """Make these packages look absent while the block imports others.

    Those that are imported already stay. After the block they can be imported as ever.
    """
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def as_namespace(package: str) -> None:
    """Import a package without running its ``__init__``: its submodules can then be imported alone.

    Nothing happens when it is imported already, or is not installed.
    """
    if package in sys.modules:
        return
    parent, _, name = package.rpartition(".")
    # Looking a submodule up would import its parent; looking the parent up imports nothing.
    spec = importlib.util.find_spec(parent)
    if spec is None or spec.origin is None:
        return
    module = types.ModuleType(package)
    module.__path__ = [str(Path(spec.origin).parent / name)]
    sys.modules[package] = module
