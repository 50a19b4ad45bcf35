"""Examples of both splits to the column files that the trainer reads, and their description."""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from components import features, statistics, text_choice, text_features
from components.cleaning import EVERY, Rules
from components.features import Column
from components.text_features import Written
from trainer import journal
from trainer.errors import SettingError
from trainer.settings import Features, ImageFeature, LabelFeature, ModelSettings

KINDS: dict[str, features.Kind] = {"INT": "int", "FLOAT": "float", "BYTES": "string"}


def write_columns(
    folder: Path, *, examples: str, statistics: str, schema: str, settings: dict[str, Any]
) -> Features:
    """Write the column files of both splits under `folder`, and describe them.

    Args:
        folder: gets ``train/`` and ``eval/``.
        examples: place of the Examples artifact.
        statistics: place of the ExampleStatistics artifact.
        schema: place of the Schema artifact.
        settings: label, task, ignore, model and choice.

    Raises:
        SettingError: when no column is left to learn from, or the task does not fit the label.
    """
    shutil.rmtree(folder, ignore_errors=True)
    train = _read_statistics(Path(statistics), "train")
    chosen = choose_columns(
        Path(schema) / "schema.pbtxt", settings["ignore"], several=_hold_several(train)
    )
    chosen, text = _choose_text(chosen, settings)
    chosen, image = _choose_image(chosen, settings)
    label_name = settings["label"]
    rows = {
        name: int(_read_statistics(Path(statistics), name).num_examples)
        for name in ("train", "eval")
    }
    written = _Split(folder, examples, chosen, rows, label_name)
    if text_choice.is_language_model(settings.get("choice", {})):
        written.write("train")
        written.write("eval")
        return Written.find(folder, text).language(ModelSettings(**settings["model"]))
    written.write("train")
    values, _ = features.read_values(folder / "train", label_name)
    kind = next(one.kind for one in chosen if one.name == label_name)
    label = features.label_feature(label_name, kind, values, task=settings["task"])
    top_values = _top_values(train)
    described = served_as_cleaned(
        features.features_of(
            folder / "train",
            chosen,
            label,
            top_values=top_values,
            rows=rows["train"],
            is_by_time=settings.get("choice", {}).get("split", {}).get("by") == "time",
        ),
        Rules.of(settings.get("clean")),
    )
    if not (described.numbers or described.categories or text or image):
        raise SettingError(
            "no column is left to learn from: each is ignored, empty or constant",
            where="data.ignore",
            holds=json.dumps(settings["ignore"]),
            right="leave at least one column out of it",
        )
    written.write("eval", None if label.task == "regression" else _typed(label.classes, kind))
    for split in ("train", "eval"):
        _write_label(folder / split, label)
    _warn_of_long_texts(train, chosen, label)
    if image:
        described = dataclasses.replace(described, image=image_feature(image, settings))
    return _with_text(described, folder, text, settings) if text else described


def served_as_cleaned(described: Features, rules: Rules) -> Features:
    """Return the features with the rules by which the data were cleaned, for plain columns."""

    def pairs(name: str) -> tuple[tuple[str, str], ...]:
        return tuple(rules.map.get(name, {}).items())

    def is_named(name: str, names: tuple[str, ...]) -> bool:
        return name in names or EVERY in names

    numbers = [
        dataclasses.replace(one, clip=tuple(rules.clip.get(one.name, ())), replace=pairs(one.name))
        for one in described.numbers
    ]
    categories = [
        dataclasses.replace(
            one,
            trim=is_named(one.name, rules.trim),
            blank_to_missing=is_named(one.name, rules.blank_to_missing),
            replace=pairs(one.name),
        )
        for one in described.categories
    ]
    return dataclasses.replace(described, numbers=tuple(numbers), categories=tuple(categories))


def _warn_of_long_texts(train: Any, columns: list[Column], label: LabelFeature) -> None:
    counted = _top_values(train)
    texts = {
        one.name: bool(counted.get(one.name))
        for one in columns
        if one.kind == "string" and not one.is_text and _has_values(train, one.name)
    }
    for said in text_features.long_texts(texts, label):
        _warn(said)


def _choose_text(chosen: list[Column], settings: dict[str, Any]) -> tuple[list[Column], str]:
    """Return the columns that are written, the text that the model reads among them, and its name.

    A model of texts reads no other column but its label; which ones it leaves out is said.
    """
    choice = settings.get("choice", {})
    kinds = {one.name: one.kind for one in chosen}
    text = text_choice.choose(kinds, choice)
    if not text:
        return chosen, ""
    if others := text_choice.not_read(kinds, choice, text):
        _warn(text_features.not_read(choice, text, others))
    if choice.get("model") in text_choice.READS_TEXT:
        chosen = [one for one in chosen if one.name in {text, settings["label"]}]
    return [dataclasses.replace(one, is_text=one.name == text) for one in chosen], text


def _choose_image(chosen: list[Column], settings: dict[str, Any]) -> tuple[list[Column], str]:
    """Return the columns that are written, the image that the model reads among them, and its name.

    Other columns of images are left out, and said so.
    """
    choice = settings.get("choice", {})
    kinds = {one.name: one.kind for one in chosen}
    image = text_choice.choose_image(kinds, choice)
    if image and choice.get("model") == text_choice.READS_IMAGES:
        if others := text_choice.not_read(kinds, choice, image):
            _warn(text_features.not_read(choice, image, others))
        chosen = [one for one in chosen if one.name in {image, settings["label"]}]
    for one in chosen:
        if one.kind == "image" and one.name != image:
            _warn(f"column {one.name} holds images, which the model does not read")
    places = text_choice.places(kinds) if image else ()
    return [
        dataclasses.replace(one, is_text=one.is_text or one.name == image)
        for one in chosen
        if (one.kind != "image" or one.name == image) and one.name not in places
    ], image


def image_feature(name: str, settings: dict[str, Any]) -> ImageFeature:
    """Describe a column of images as the settings have it."""
    model, crop = ModelSettings(**settings["model"]), settings.get("augment", {}).get("crop", 0.0)
    resize = round(model.image_size * (1 + crop))
    return ImageFeature(name, model.image_size, model.channels, resize)


def _with_text(described: Features, folder: Path, text: str, settings: dict[str, Any]) -> Features:
    written = Written.find(folder, text)
    feature = written.describe(ModelSettings(**settings["model"]))
    for said in written.said_of_cuts(feature):
        _warn(said)
    return dataclasses.replace(described, text=feature)


def _typed(classes: tuple[str, ...], kind: features.Kind) -> list[Any]:
    convert = {"int": int, "float": float, "string": str.encode}[kind]
    return [convert(value) for value in classes]


@dataclass(frozen=True)
class _Split:
    """What is written of each split.

    Attributes:
        folder: gets a folder of each split's name.
        examples: place of the Examples artifact.
        columns: which columns.
        rows: by split.
        label: its column; empty: there is none, and every row is written.
    """

    folder: Path
    examples: str
    columns: list[Column]
    rows: Mapping[str, int]
    label: str

    def write(self, split: str, classes: list[Any] | None = None) -> None:
        """Write the columns of one split's rows that have a label which can be used."""
        writer = features.SplitWriter(self.folder / split, self.columns, rows=self.rows[split])
        for batch in statistics.read_examples(self.examples, split):
            kept = features.keep_rows(batch, self.label, classes) if self.label else batch
            writer.add(kept)
        writer.close()


def choose_columns(schema: Path, ignore: list[str], *, several: frozenset[str]) -> list[Column]:
    """Return the schema's columns that are not ignored, the label among them, by name.

    A column that holds several values in a row is left out, and said so.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    parsed = text_format.Parse(schema.read_text(), schema_pb2.Schema())
    chosen = []
    for feature in sorted(parsed.feature, key=lambda one: one.name):
        kind = KINDS.get(schema_pb2.FeatureType.Name(feature.type))
        if feature.name in ignore or kind is None:
            continue
        if feature.HasField("image_domain"):
            kind = "image"
        if feature.name in several:
            _warn(
                f"column {feature.name} holds several values in a row; the model does not read it"
            )
            continue
        chosen.append(Column(feature.name, kind))
    return chosen


def _warn(message: str) -> None:
    journal.append(os.environ.get("HEADRACE_EVENTS", ""), "warning", id="Trainer", message=message)


def _read_statistics(folder: Path, split: str) -> Any:
    """Return TFDV's statistics of one split (DatasetFeatureStatistics)."""
    from tensorflow_metadata.proto.v0 import statistics_pb2

    parsed = statistics_pb2.DatasetFeatureStatisticsList()
    parsed.ParseFromString((folder / f"Split-{split}" / "FeatureStats.pb").read_bytes())
    return parsed.datasets[0]


def _name(feature: Any) -> str:
    return feature.name or ".".join(feature.path.step)


def _hold_several(statistics: Any) -> frozenset[str]:
    """Return the columns that hold more than one value in some row."""
    return frozenset(
        _name(feature)
        for feature in statistics.features
        if getattr(feature, feature.WhichOneof("stats")).common_stats.max_num_values > 1
    )


def _top_values(statistics: Any) -> dict[str, dict[str, float]]:
    """Return TFDV's top values by text column, most frequent first."""
    return {
        _name(feature): {
            bucket.label: bucket.sample_count
            for bucket in feature.string_stats.rank_histogram.buckets
        }
        for feature in statistics.features
        if feature.HasField("string_stats")
    }


def _has_values(statistics: Any, name: str) -> bool:
    """Say whether a text column has a value in some row."""
    return any(
        _name(feature) == name and feature.string_stats.common_stats.num_non_missing > 0
        for feature in statistics.features
    )


def _write_label(folder: Path, label: LabelFeature) -> None:
    values, _ = features.read_values(folder, label.name)
    np.save(folder / "label.npy", features.class_ids(label, np.asarray(values)))
