"""The text column of both splits, written and described; and what should be said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components import text_columns
from trainer.errors import SettingError
from trainer.settings import Features, LabelFeature, ModelSettings, TextFeature
from trainer.tokens import is_bytes

SPLITS = ("train", "eval")


@dataclass(frozen=True)
class Written:
    """A text column whose bytes stand in the column files of both splits.

    Attributes:
        folder: holds ``train/`` and ``eval/``.
        name: the column's.
        index: its number in the files.
    """

    folder: Path
    name: str
    index: int

    @classmethod
    def find(cls, folder: Path, name: str) -> Written:
        """Find a column of written splits by its name."""
        described = json.loads((folder / "train" / "columns.json").read_text(encoding="utf-8"))
        return cls(folder, name, described["features"][name]["index"])

    def describe(self, model: ModelSettings) -> TextFeature:
        """Describe the column from the train split, and write the words of both.

        Raises:
            SettingError: when the train split has no word.
        """
        feature = text_columns.describe(self.folder / "train", self.index, self.name, model=model)
        if is_bytes(feature) and model.vocabulary == "words":
            raise SettingError(
                f"column {self.name} has no word in the train split",
                where="model.vocabulary",
                holds='"words"',
                right="name another column as data.text",
            )
        for split in SPLITS:
            text_columns.write_words(self.folder / split, self.index, feature)
        return feature

    def language(self, model: ModelSettings) -> Features:
        """Describe what a language model reads and predicts; write ``label.npy`` of both splits.

        Raises:
            SettingError: when a split has no token to predict.
        """
        feature = self.describe(model)
        label = text_columns.language_label(self.folder / "train", self.index, feature)
        for split in SPLITS:
            place = self.folder / split
            if not text_columns.write_window_labels(place, self.index, feature, label):
                raise SettingError(
                    f"the {split} split has no token to predict",
                    where="data.text",
                    holds=f'"{self.name}"',
                    right="give more text, or change data.split so that both splits get some",
                )
        return Features((), (), label, feature)

    def said_of_cuts(self, feature: TextFeature) -> Iterator[str]:
        """Yield a sentence for each split some of whose texts are longer than a sequence."""
        unit = "bytes" if is_bytes(feature) else "words"
        longest = 0
        for split in SPLITS:
            rows, cut, most = text_columns.cut(self.folder / split, self.index, feature)
            longest = max(longest, most)
            if cut:
                yield (
                    f"{cut:,} of {rows:,} texts of the {split} split are longer than "
                    f"model.sequence ({feature.sequence:,} {unit}) and are cut after it; the "
                    f"longest has {most:,}"
                )
        if longest + 1 < feature.sequence:
            yield (
                f"the longest text has {longest:,} {unit}, so model.sequence = {longest + 1} "
                f"would do and take less time than {feature.sequence:,}"
            )


def not_read(choice: Mapping[str, Any], text: str, others: list[str]) -> str:
    """Return the sentence that says which columns a model of texts does not read."""
    return f"a {choice['model']} model reads column {text} alone; it does not read " + ", ".join(
        others
    )


def long_texts(columns: Mapping[str, bool], label: LabelFeature) -> Iterator[str]:
    """Yield a sentence for each column of long texts, which no column of categories can be.

    Args:
        columns: name of a text column to whether its values were counted.
        label: is no feature.
    """
    for name, is_counted in columns.items():
        if not is_counted and name != label.name:
            yield (
                f"column {name} holds long texts, which this model does not read; "
                'model.kind = "text" does'
            )
