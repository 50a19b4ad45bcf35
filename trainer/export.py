"""The exported model: a SavedModel with two signatures and the training's feature code inside.

``serving_default`` takes serialized tf.Examples, under the key ``examples``: string [B]. The label
is not asked for. A feature that an Example lacks, or holds with no value, is missing.

``columns`` takes one tensor [B] a column, under the column's name. Missing values:

- numbers (int or float in the data): float64, NaN is missing;
- texts: string, UTF-8; the single byte 255, which is no UTF-8, is missing, and so is the empty text
  unless it is one of the column's known values. A text column's missing text is an empty one;
- images: string, encoded as PNG or JPEG; an empty one is missing, and read as black.

A name that cannot be a key (TensorFlow takes letters, digits and ``_``, a letter first) is changed
in a fixed way, see `column_keys`. ``assets/columns.json`` in the SavedModel says which key is which
column, and what stands for missing.

Both signatures give the same outputs. Classification: ``probabilities`` float32 [B, K] (K = 2 for
binary too), ``classes`` string [B, K], the label's values in that order, the same in each row (so
that a server can hand out rows), and ``prediction`` string [B], the likeliest class. Regression:
``prediction`` float64 [B] in the label's own unit. A language model: see `served_language`.
"""

from __future__ import annotations

import json
import keyword
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer import images, served_language
from trainer.errors import TrainingError
from trainer.losses import predictions
from trainer.models.built import Built
from trainer.settings import CategoryFeature, Features, ImageFeature, NumberFeature, TextFeature
from trainer.text_transform import sequences, tokenize, word_table
from trainer.transform import NO_TEXT, category_ids, category_table

COLUMNS_FILE = "columns.json"
_BLANKS = r"[\pZ\t-\r\x1c-\x1f\x{85}]"
"""What Unicode takes for blank, as the cleaning of data does."""

Values = Mapping[str, tuple[tf.Tensor, tf.Tensor]]
"""By column: values [B], and whether they are present, bool [B]."""


def export(built: Built, features: Features, path: str | os.PathLike[str]) -> None:
    """Write the SavedModel to `path`, whole or absent; what stood there before is replaced.

    Args:
        built: of `trainer.models`, called without training.
        features: the columns that it reads, and the label.
        path: the folder to be made; its parents are made too.

    Raises:
        TrainingError: when it cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as aside:
            written = _write(built, features, Path(aside))
            _flush(written)
            # Renaming onto a folder that holds something fails, so the former one goes first.
            shutil.rmtree(path, ignore_errors=True)
            written.rename(path)
    except (OSError, tf.errors.OpError) as error:
        raise TrainingError(
            "the exported model cannot be written",
            where=str(path),
            right=f"free space and the right to write there ({error})",
        ) from error


def column_keys(features: Features) -> dict[str, str]:
    """Return the key of each column in the ``columns`` signature, numbers first, the text last.

    A name of letters A-Z and a-z, digits and ``_`` that begins with a letter is its own key, unless
    it is a word of Python. In others, each other character becomes ``_``, and ``column_`` goes
    before one that begins with no letter. Where that key is taken, ``_2``, ``_3``, ... is added;
    ``x`` and ``X`` count as the same key, as they do for TensorFlow when it saves.
    """
    names = [one.name for one in features.numbers]
    # The parts of a time are of one column.
    names += dict.fromkeys(one.column for one in features.categories)
    names += [one.name for one in (*_text(features), *_image(features))]
    keys: dict[str, str] = {}
    for name in names:
        if _is_key(name) and _free(name, keys.values()) == name:
            keys[name] = name
    for name in names:
        if name not in keys:
            keys[name] = _free(_clean(name), keys.values())
    return {name: keys[name] for name in names}


def _text(features: Features) -> tuple[TextFeature, ...]:
    return () if features.text is None else (features.text,)


def _image(features: Features) -> tuple[ImageFeature, ...]:
    return () if features.image is None else (features.image,)


def _is_key(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)) and not _is_taken_word(name)


def _is_taken_word(name: str) -> bool:
    return keyword.iskeyword(name) or name == "self"


def _clean(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", name)
    starts_well = cleaned[:1].isalpha() and not _is_taken_word(cleaned)
    return cleaned if starts_well else f"column_{cleaned}"


def _free(key: str, taken: Iterable[str]) -> str:
    taken, number, free = {one.lower() for one in taken}, 2, key
    while free.lower() in taken:
        free, number = f"{key}_{number}", number + 1
    return free


def _write(built: Built, features: Features, aside: Path) -> Path:
    """Write the SavedModel in the folder `aside` and return where it is."""
    notes = aside / COLUMNS_FILE
    notes.write_text(json.dumps(_describe(features), ensure_ascii=False, indent=1), "utf-8")
    served = ServedModel(built, features, notes)
    written = aside / "model"
    tf.saved_model.save(
        served,
        str(written),
        signatures={
            "serving_default": served.from_examples.get_concrete_function(),
            "columns": served.from_columns.get_concrete_function(
                **_column_specs(features, column_keys(features))
            ),
        },
    )
    return written


def _describe(features: Features) -> dict[str, Any]:
    """Return what ``columns.json`` says."""
    keys = column_keys(features)
    numbers = [
        {"column": one.name, "key": keys[one.name], "kind": one.kind, "missing": ["NaN"]}
        for one in features.numbers
    ]
    texts = [
        {
            "column": one.column,
            "key": keys[one.column],
            "kind": "string",
            # As TensorFlow Serving writes bytes in JSON.
            "missing": [{"b64": "/w=="}, *([] if "" in one.vocabulary else [""])],
        }
        for one in {one.column: one for one in features.categories}.values()
    ]
    texts += [
        {"column": one.name, "key": keys[one.name], "kind": "string", "missing": [""]}
        for one in _text(features)
    ]
    texts += [
        {"column": one.name, "key": keys[one.name], "kind": "image", "missing": [""]}
        for one in _image(features)
    ]
    label = {"column": features.label.name, "task": features.label.task}
    return {"columns": numbers + texts, "label": label}


def _column_specs(features: Features, keys: Mapping[str, str]) -> dict[str, tf.TensorSpec]:
    numbers = {keys[one.name]: tf.float64 for one in features.numbers}
    texts = {keys[one.column]: tf.string for one in features.categories}
    texts |= {keys[one.name]: tf.string for one in (*_text(features), *_image(features))}
    return {key: tf.TensorSpec([None], kind, name=key) for key, kind in (numbers | texts).items()}


class ServedModel(tf.Module):
    """Raw values in, answers out: what the SavedModel holds."""

    def __init__(self, built: Built, features: Features, notes: Path) -> None:
        super().__init__(name="headrace")
        # The variables, not the Keras model: saving it would trace its layers one by one as well.
        self.weights = [variable.value for variable in built.model.variables]
        self.tables = [category_table(one) for one in features.categories]
        self.words = [word_table(one) for one in _text(features)]
        self.columns_file = tf.saved_model.Asset(str(notes))
        keys = column_keys(features)

        def answer(values: Values) -> dict[str, tf.Tensor]:
            if features.text is not None and features.label.task == "causal-lm":
                texts = values[features.text.name][0]
                return served_language.answer(built, features.text, texts, table=self.words[0])
            inputs = _model_inputs(features, self.tables, values)
            if features.text is not None:
                inputs |= _tokens(features.text, values, self.words[0])
            if features.image is not None:
                encoded = values[features.image.name][0]
                inputs["pixels"] = images.served(features.image, encoded)
            return _answer(built.predict(inputs), features)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def from_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return answer(_parse(examples, features))

        @tf.function
        def from_columns(**columns: tf.Tensor) -> dict[str, tf.Tensor]:
            return answer(_read_columns(columns, features, keys))

        self.from_examples, self.from_columns = from_examples, from_columns


def _parse(examples: tf.Tensor, features: Features) -> Values:
    """Read tf.Examples: absent or empty is missing."""
    kinds = {one.name: tf.int64 if one.kind == "int" else tf.float32 for one in features.numbers}
    kinds |= {one.column: tf.string for one in features.categories}
    kinds |= {one.name: tf.string for one in (*_text(features), *_image(features))}
    # Ragged, since a fixed-length feature refuses one that is there with no value.
    asked = {name: tf.io.RaggedFeature(kind) for name, kind in kinds.items()}
    parsed = tf.io.parse_example(examples, asked) if asked else {}
    return {name: _only(name, values) for name, values in parsed.items()}


def _only(name: str, values: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the one value of each row, and whether there is one."""
    counts = values.row_lengths()
    at_most_one = tf.debugging.assert_less_equal(
        counts, tf.ones_like(counts), message=f"{name}: an example holds more than one value"
    )
    with tf.control_dependencies([at_most_one]):
        present = counts > 0
    return values.to_tensor(shape=[None, 1])[:, 0], present


def _read_columns(
    columns: Mapping[str, tf.Tensor], features: Features, keys: Mapping[str, str]
) -> Values:
    """Read plain columns, by the rule for missing values that the module states."""
    numbers = {one.name: _read_number(one, columns[keys[one.name]]) for one in features.numbers}
    texts = {one.column: _read_text(one, columns[keys[one.column]]) for one in features.categories}
    for one in (*_text(features), *_image(features)):
        there = tf.not_equal(columns[keys[one.name]], NO_TEXT)
        texts[one.name] = tf.where(there, columns[keys[one.name]], ""), there
    return numbers | texts


def _read_number(number: NumberFeature, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    cleaned = values
    for old, new in number.replace:
        replacement = tf.constant(float(new) if new else float("nan"), values.dtype)
        cleaned = tf.where(tf.equal(values, float(old)), replacement, cleaned)
    values = cleaned
    if number.clip:
        values = tf.clip_by_value(values, *number.clip)
    if number.kind == "float":
        # A tf.Example holds float32, in training and in the other signature: here the same number.
        values = tf.cast(values, tf.float32)
    return values, tf.logical_not(tf.math.is_nan(values))


def _read_text(category: CategoryFeature, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if category.trim:
        texts = tf.strings.regex_replace(texts, f"^{_BLANKS}+|{_BLANKS}+$", "")
    if category.blank_to_missing:
        texts = tf.where(tf.strings.regex_full_match(texts, f"{_BLANKS}*"), NO_TEXT, texts)
    cleaned = texts
    for old, new in category.replace:
        cleaned = tf.where(tf.equal(texts, old), new.encode() or NO_TEXT, cleaned)
    texts = cleaned
    present = tf.not_equal(texts, NO_TEXT)
    if "" not in category.vocabulary:
        present = tf.logical_and(present, tf.not_equal(texts, ""))
    return texts, present


def _answer(logits: tf.Tensor, features: Features) -> dict[str, tf.Tensor]:
    predicted = predictions(logits, label_feature=features.label)
    if features.label.task == "regression":
        return {"prediction": predicted[:, 0]}
    if features.label.task == "binary":
        predicted = tf.concat([1 - predicted, predicted], axis=1)
    classes = tf.constant([text.encode() for text in features.label.classes])
    rows = tf.shape(predicted)[0]
    return {
        "probabilities": predicted,
        "classes": tf.tile(classes[None], [rows, 1]),
        "prediction": tf.gather(classes, tf.argmax(predicted, axis=1)),
    }


def _model_inputs(
    features: Features, tables: Sequence[tf.lookup.StaticHashTable], values: Values
) -> dict[str, tf.Tensor]:
    """Return the model's stacked inputs; a kind of column that there is none of has size 0.

    Where a text or image column is all there is, there are none at all.
    """
    has_other = features.text is not None or features.image is not None
    if has_other and not features.numbers and not features.categories:
        return {}
    rows = tf.shape(next(iter(values.values()))[0])[0] if values else 0
    numbers = [values[one.name] for one in features.numbers]
    ids = [
        category_ids(one, values[one.column][0], present=values[one.column][1], table=table)
        for one, table in zip(features.categories, tables, strict=True)
    ]
    return {
        "number_values": _stack([tf.cast(one, tf.float64) for one, _ in numbers], rows, tf.float64),
        "number_present": _stack([present for _, present in numbers], rows, tf.bool),
        "category_ids": _stack(ids, rows, tf.int32),
    }


def _tokens(
    feature: TextFeature, values: Values, table: tf.lookup.StaticHashTable | None
) -> dict[str, tf.Tensor]:
    tokens, lengths = sequences(feature, *tokenize(feature, values[feature.name][0], table))
    return {"tokens": tokens, "lengths": lengths}


def _stack(columns: list[tf.Tensor], rows: tf.Tensor | int, kind: tf.DType) -> tf.Tensor:
    return tf.stack(columns, axis=1) if columns else tf.zeros([rows, 0], kind)


def _flush(folder: Path) -> None:
    """Make the content of every file beneath `folder` reach the disk before it gets its name."""
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
