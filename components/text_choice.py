"""Which column is the text that a model reads, and what is a long text anywhere.

Light: the same rule before a run and in each of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components import documents
from trainer.errors import SettingError

LONG_BYTES = 1024
"""A column with a value of more bytes holds texts: its values are not counted, nor kept."""
READS_TEXT = ("text", "causal-lm")
OF_THE_HOUSE = ("tabular", *READS_TEXT)


def is_language_model(told: Mapping[str, Any]) -> bool:
    """Say whether the settings ask for a language model, which has no label."""
    return told.get("model") == "causal-lm"


def reads_text_alone(told: Mapping[str, Any]) -> bool:
    """Say whether the settings ask for a model that reads no column but its text."""
    return told.get("model", "tabular") in READS_TEXT


def choose(kinds: Mapping[str, str], told: Mapping[str, Any]) -> str:
    """Return the text column that the model reads; empty where it reads none.

    The one that ``data.text`` names; else that of documents; else the only column of texts that
    is not the label, ignored, or the one that the split is made by.

    Args:
        kinds: column to ``int``, ``float`` or ``string``.
        told: ``model`` (its kind), ``text``, ``label``, ``ignore`` and ``split``.

    Raises:
        SettingError: when the column is not there or holds no texts, or several may be meant.
    """
    model, named = told.get("model", "tabular"), told.get("text", "")
    if model == "tabular":
        return ""
    if named:
        _check_named(named, kinds)
        return named
    if set(kinds) == set(documents.COLUMNS):
        return documents.TEXT
    if model not in READS_TEXT:
        return ""
    not_meant = {told["label"], *told["ignore"], told["split"]["column"]}
    texts = [name for name, kind in kinds.items() if kind == "string" and name not in not_meant]
    if len(texts) != 1:
        raise SettingError(
            "several columns hold texts" if texts else "no column holds texts",
            where="data.text",
            holds=", ".join(texts[:20]) if texts else f"the columns {', '.join(list(kinds)[:20])}",
            right=f"name the one that a {model} model reads as data.text"
            if texts
            else f"a {model} model reads a column of texts",
        )
    return texts[0]


def _check_named(name: str, kinds: Mapping[str, str]) -> None:
    """Refuse a column that is not there, or that holds numbers.

    Raises:
        SettingError: saying which columns hold texts.
    """
    texts = [one for one, kind in kinds.items() if kind == "string"]
    right = f"columns of texts are {', '.join(texts[:20])}" if texts else "no column holds texts"
    if name not in kinds:
        raise SettingError(
            "the data has no such column", where="data.text", holds=f'"{name}"', right=right
        )
    if kinds[name] != "string":
        raise SettingError(
            "the column holds numbers", where="data.text", holds=f'"{name}"', right=right
        )


def not_read(kinds: Mapping[str, str], told: Mapping[str, Any], text: str) -> list[str]:
    """Return the columns that a model does not read because it reads its text alone."""
    if not reads_text_alone(told):
        return []
    known = {text, told["label"], *told["ignore"], told["split"]["column"]}
    places = {documents.PATH} if set(kinds) == set(documents.COLUMNS) else set()
    return [name for name in kinds if name not in known | places]
