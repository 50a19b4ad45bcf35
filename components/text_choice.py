"""Which column is the text or the image that a model reads, and what is a long text anywhere.

Light: the same rule before a run and in each of its nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from components import documents, image_files
from components.column_types import Layout
from trainer.errors import SettingError

LONG_BYTES = 1024
"""A column with a value of more bytes holds texts: its values are not counted, nor kept."""
READS_TEXT = ("text", "causal-lm")
READS_IMAGES = "image"


def is_language_model(told: Mapping[str, Any]) -> bool:
    """Say whether the settings ask for a language model, which has no label."""
    return told.get("model") == "causal-lm"


def reads_text_alone(told: Mapping[str, Any]) -> bool:
    """Say whether the settings ask for a model that reads no column but its text or its image."""
    return told.get("model", "tabular") in (*READS_TEXT, READS_IMAGES)


def places(kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that say where a row stands, of documents and of image files."""
    whole = (documents.COLUMNS, image_files.COLUMNS)
    return (documents.PATH,) if any(set(kinds) == set(one) for one in whole) else ()


def with_places(found: Layout) -> Layout:
    """Return a layout that knows which column says where a row stands.

    A document or image that stands twice has equal rows, which share a split: its path is not
    looked at.
    """
    return dataclasses.replace(found, places=frozenset(places(found.kinds)))


def choose_image(kinds: Mapping[str, str], told: Mapping[str, Any]) -> str:
    """Return the image column that the model reads; empty where it reads none.

    The one that ``data.image`` names; else, for an image model, the only one.

    Args:
        kinds: column to ``int``, ``float``, ``string`` or ``image``.
        told: ``model``, ``image``, ``label`` and ``ignore``.

    Raises:
        SettingError: when the column is not there or holds no images, or several may be meant.
    """
    model, named = told.get("model", "tabular"), told.get("image", "")
    images = [name for name, kind in kinds.items() if kind == "image"]
    if named and named not in images:
        is_there = named in kinds
        raise SettingError(
            "the column holds no images" if is_there else "the data has no such column",
            where="data.image", holds=f'"{named}"',
            right=f"columns of images are {', '.join(images[:20])}" if images
            else "no column holds images, which are bytes, or base64 in a CSV",
        )  # fmt: skip
    if named or model != READS_IMAGES:
        return named
    meant = [name for name in images if name not in {told["label"], *told["ignore"]}]
    if len(meant) != 1:
        raise SettingError(
            "several columns hold images" if meant else "no column holds images",
            where="data.image",
            holds=", ".join(meant[:20]) if meant else f"the columns {', '.join(list(kinds)[:20])}",
            right="name the one that the model reads as data.image" if meant
            else "an image model reads a folder of images, or a column of their bytes",
        )  # fmt: skip
    return meant[0]


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
    if model in {"tabular", READS_IMAGES}:
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
    """Return the columns that a model does not read because it reads its text or image alone.

    Args:
        kinds: as for `choose`.
        told: as for `choose`.
        text: the column that it reads.
    """
    if not reads_text_alone(told):
        return []
    known = {text, told["label"], *told["ignore"], told["split"]["column"], *places(kinds)}
    return [name for name in kinds if name not in known]
