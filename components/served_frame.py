"""A pushed model over pandas frames, as MLflow loads it: TensorFlow, NumPy and pandas alone.

MLflow keeps a copy of this file beside each registered model (``loader_module``), so it imports
nothing of this house and loads where the house is not installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

NO_TEXT = b"\xff"
BATCH_ROWS = 1024


class ServedFrame:
    """A SavedModel with the signature ``columns``."""

    def __init__(self, folder: Path) -> None:
        described = json.loads((folder / "assets" / "columns.json").read_text("utf-8"))
        self.columns, self.model = described["columns"], tf.saved_model.load(str(folder))

    def predict(self, frame: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # ruff: ignore[unused-method-argument] - MLflow's
        """Return a row of answers a row, with the frame's index.

        Args:
            frame: columns in any order; those that are not there are missing in all rows, and so
                are None and NaN; others are not read. A category that was not learned is unknown.
            params: not read.
        """
        parts = [
            self._answers(frame.iloc[start : start + BATCH_ROWS])
            for start in range(0, max(len(frame), 1), BATCH_ROWS)
        ]
        return pd.concat(parts) if len(parts) > 1 else parts[0]

    def _answers(self, rows: pd.DataFrame) -> pd.DataFrame:
        fed = {one["key"]: tf.constant(_column(one, rows)) for one in self.columns}
        found = {name: one.numpy() for name, one in self.model.signatures["columns"](**fed).items()}
        made: dict[str, Any] = {}
        if "prediction" in found:
            made["prediction"] = _texts(found["prediction"])
        if "classes" in found:
            for at, name in enumerate(found["classes"][0] if len(rows) else ()):
                made[f"probability:{name.decode()}"] = found["probabilities"][:, at]
        else:
            plain = {name: one for name, one in found.items() if one.ndim == 1}
            made |= {name: _texts(one) for name, one in plain.items() if name not in made}
        return pd.DataFrame(made, index=rows.index)


def _column(column: dict[str, Any], rows: pd.DataFrame) -> np.ndarray:
    """Return a column as the model takes it.

    Raises:
        ValueError: when a column of numbers holds something else.
    """
    name, is_text = column["column"], column["kind"] in {"string", "image"}
    none = b"" if column["kind"] == "image" else NO_TEXT
    if name not in rows:
        return np.full(len(rows), none if is_text else np.nan, object if is_text else float)
    values = rows[name]
    if is_text:
        there = values.notna().to_numpy()
        return np.array(
            [_bytes(one) if is_there else none
             for one, is_there in zip(values.tolist(), there, strict=True)], object,
        )  # fmt: skip
    try:
        return pd.to_numeric(values).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column {name} must hold numbers: {error}") from None


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _texts(values: np.ndarray) -> Any:
    return [one.decode() for one in values] if values.dtype == object else values


def _load_pyfunc(path: str) -> ServedFrame:
    """Return the model that stands under a path; MLflow calls it by this name."""
    (saved,) = Path(path).rglob("saved_model.pb")
    return ServedFrame(saved.parent)
