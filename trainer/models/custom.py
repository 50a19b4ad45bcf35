"""A person's own Keras model: ``model.kind = "module:function"``.

The function is called with the columns and the label, and returns a `keras.Model`, or such a model
and the names of its blocks::

    def build(features: dict[str, FeatureSpec], label: LabelSpec):
        inputs = {name: one.input() for name, one in features.items()}
        ...
        return keras.Model(inputs, keras.layers.Dense(label.logits)(x))

The model's inputs are a dict by column name: numbers float32 [B, 1], standardised by the train
split, 0 where missing; categories int32 [B, 1], 0 missing, 1 unknown; texts int32 [B, S]; images
float32 [B, S, S, C], from -1 to 1. Its output is logits [B, C]. Recomputation is of the blocks that
are named, else of each layer of the model that holds weights. Losses besides (regularizers,
`add_loss`) are not added.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import HeadraceError, SettingError
from trainer.losses import logits_size
from trainer.models.built import Batch, Built
from trainer.models.foreign import Foreign, drawing_from
from trainer.models.image import standard_pixels
from trainer.models.running import Blocks
from trainer.models.tabular import label_sums
from trainer.precision import policy as policy_of
from trainer.settings import Features, LabelFeature, ModelSettings, NumberFeature, Techniques
from trainer.shard import Parameters
from trainer.tokens import token_ids
from trainer.transform import FIRST_KNOWN_ID

WHERE = "model.kind"


@dataclass(frozen=True)
class FeatureSpec:
    """A column as the model gets it.

    Attributes:
        name: the column's, and that of the model's input.
        kind: ``number``, ``category``, ``text`` or ``image``.
        shape: of an example: (1,), of a text (S,), of an image (S, S, C).
        dtype: ``float32`` of numbers and images, ``int32`` of ids.
        size: how many different ids there are; 0 of a number or an image.
    """

    name: str
    kind: Literal["number", "category", "text", "image"]
    shape: tuple[int, ...]
    dtype: Literal["float32", "int32"]
    size: int = 0

    def input(self) -> Any:
        """Return a `keras.Input` for it."""
        return keras.Input(self.shape, dtype=self.dtype, name=self.name)


@dataclass(frozen=True)
class LabelSpec:
    """What is predicted.

    Attributes:
        task: ``binary``, ``multiclass`` or ``regression``.
        classes: the label's values as text, in the order of their ids; empty for regression.
        logits: C, the model's outputs an example: one a class for multiclass, otherwise one.
    """

    task: str
    classes: tuple[str, ...]
    logits: int


def build(
    settings: ModelSettings,
    features: Features,
    techniques: Techniques,
    *,
    policy: str,
    seed: int,
    parameters: Parameters | None = None,
) -> Built:
    """Return the person's model; its first weights depend on `seed` alone.

    Args:
        settings: kind.
        features: the columns and the label.
        techniques: recompute.
        policy: float32, mixed_float16 or mixed_bfloat16: Keras's policy while it is built.
        seed: `keras.utils.set_random_seed` of it, before it is built.
        parameters: where the weights are when no worker holds all of them; None: each holds all.

    Raises:
        SettingError: when there is no such function, it raises, or what it returns cannot be
            trained; or attention is to be chunked, which is out of reach here.
    """
    if techniques.attention == "chunked":
        raise SettingError(
            "the attention of a model of your own cannot be chunked from outside",
            where="training.attention", holds='"chunked"', right='"plain" or "auto"',
        )  # fmt: skip
    # Keras would put an account of the call before the message of any error, ours too.
    keras.config.disable_traceback_filtering()
    running = Blocks(techniques.recompute, parameters)
    specs, label = feature_specs(features), label_spec(features.label)
    builder = find(settings.kind)
    with _built_with(policy, seed):
        made = running.build(lambda: _make(builder, specs, label, kind=settings.kind))
    model, blocks = made.model, made.blocks
    if parameters is not None:
        caught = [*blocks, *_others(model, blocks)]
    else:
        caught = blocks[: techniques.recompute]
    inputs = Inputs(features, model, turns=_has_batch_statistics(model))
    foreign = Foreign(model, caught, running)

    def logits(batch: Batch, *, seed: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
        return tf.cast(foreign(inputs(batch), seed=seed, training=training), tf.float32)

    built = Built(
        model=model,
        sums=label_sums(logits, features.label),
        predict=logits,
        blocks=len(blocks),
        tokens=features.text.sequence if features.text else 1,
        notes=tuple(_notes(model)),
        accumulation_notes=tuple(_accumulation_notes(model)),
    )
    if parameters is None and tf.executing_eagerly() and not made.is_empty:
        _try(built, features, kind=settings.kind)
    return built


# What the builder is told


def feature_specs(features: Features) -> dict[str, FeatureSpec]:
    """Return the columns by name, numbers first, then categories, the text and the image."""
    numbers = [FeatureSpec(one.name, "number", (1,), "float32") for one in features.numbers]
    categories = [
        FeatureSpec(one.name, "category", (1,), "int32", FIRST_KNOWN_ID + len(one.vocabulary))
        for one in features.categories
    ]
    text = features.text
    texts = (
        [FeatureSpec(text.name, "text", (text.sequence,), "int32", token_ids(text).size)]
        if text
        else []
    )
    image = features.image
    images = (
        [FeatureSpec(image.name, "image", (image.size, image.size, image.channels), "float32")]
        if image
        else []
    )
    return {one.name: one for one in (*numbers, *categories, *texts, *images)}


def label_spec(label: LabelFeature) -> LabelSpec:
    """Return what the builder is told of the label."""
    return LabelSpec(label.task, label.classes, logits_size(label))


# The builder


def find(kind: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names.

    Raises:
        SettingError: when the module or the function is missing, or importing it raises.
    """
    module_name, _, name = kind.partition(":")
    with _told(f'importing "{module_name}" raised', kind=kind):
        _check_found(module_name, kind=kind)
        module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise SettingError(
            f'the module "{module_name}" has no function "{name}"',
            where=WHERE, holds=f'"{kind}"', right="a function that returns a keras.Model",
        )  # fmt: skip
    return function


def _check_found(module_name: str, *, kind: str) -> None:
    """Refuse a module that is not there, or a package of its that is not.

    Raises:
        SettingError: naming the first that is missing.
    """
    names = module_name.split(".")
    for count in range(1, len(names) + 1):
        name = ".".join(names[:count])
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise SettingError(
                f'there is no module "{name}"',
                where=WHERE, holds=f'"{kind}"',
                right=f"{name}.py beside the configuration file, or an installed package",
            )  # fmt: skip


@dataclass(frozen=True)
class _Made:
    """What a builder returned.

    Attributes:
        model: a built Keras model.
        blocks: what recomputation applies to, in order.
    """

    model: Any
    blocks: list[Any]

    @property
    def variables(self) -> list[Any]:
        """The model's variables."""
        return self.model.variables

    @property
    def is_empty(self) -> bool:
        """Whether its variables have no values, since only their sizes are asked for."""
        return any(one._value is None for one in self.variables)


def _make(
    builder: Callable[..., Any], specs: Mapping[str, FeatureSpec], label: LabelSpec, *, kind: str
) -> _Made:
    with _told("your function raised", kind=kind):
        made = builder(dict(specs), label)
    model, names = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, keras.Model):
        raise SettingError(
            f"your function returned {_described(made)}",
            where=WHERE, holds=f'"{kind}"',
            right="a keras.Model, or (a keras.Model, [names of its blocks])",
        )  # fmt: skip
    _check_output(_output(model, specs, kind=kind), label, kind=kind)
    _check_weights(model, kind=kind)
    return _Made(model, _blocks(model, names, kind=kind))


def _output(model: Any, specs: Mapping[str, FeatureSpec], *, kind: str) -> Any:
    """Return the model's output as Keras foresees it; builds the model where it is not.

    Raises:
        SettingError: when it asks for an input that is no column, or raises.
    """
    asked = _asked(model)
    if asked is not None:
        for one in asked:
            if one not in specs:
                raise SettingError(
                    f'your model has an input "{one}", which is no column',
                    where=WHERE, holds=f'"{kind}"', right=f"inputs named {', '.join(specs)}",
                )  # fmt: skip
        return model.outputs[0] if len(model.outputs) == 1 else list(model.outputs)
    with _told("your model raised when it was called", kind=kind):
        return model({name: one.input() for name, one in specs.items()}, training=False)


def _asked(model: Any) -> list[str] | None:
    """Return the names of the inputs of a model that was made of its inputs; else None."""
    inputs = getattr(model, "inputs", None) if model.built else None
    return None if inputs is None else [one.name for one in inputs]


def _structure(model: Any) -> Any:
    """Return the inputs that a model was made of, as it takes them; None: a dict of all columns."""
    if _asked(model) is None:
        return None
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _check_output(output: Any, label: LabelSpec, *, kind: str) -> None:
    shape = getattr(output, "shape", None)
    if shape is None or tuple(shape) != (None, label.logits):
        raise SettingError(
            f"your model's output is {_described(output) if shape is None else list(shape)}",
            where=WHERE, holds=f'"{kind}"',
            right=f"logits [B, {label.logits}] for {label.task}",
        )  # fmt: skip


def _check_weights(model: Any, *, kind: str) -> None:
    kinds = {one._dtype for one in model.trainable_variables}
    if kinds != {"float32"}:
        raise SettingError(
            f"the weights of your model are of {', '.join(sorted(kinds))}" if kinds
            else "your model has no weights to train",
            where=WHERE, holds=f'"{kind}"', right="float32 weights, whatever the layers compute in",
        )  # fmt: skip


def _blocks(model: Any, names: Sequence[str] | None, *, kind: str) -> list[Any]:
    """Return the layers that recomputation applies to.

    Raises:
        SettingError: when a name is that of no layer or of several, or a block is in another.
    """
    if names is None:
        return [one for one in model.layers if one.trainable_variables]
    layers = list(_within(model))
    found = []
    for name in names:
        called = [one for one in layers if one.name == name]
        if len(called) != 1:
            raise SettingError(
                f'your model has {len(called) or "no"} layers named "{name}"',
                where=WHERE, holds=f'"{kind}"',
                right=f"names of {', '.join(one.name for one in layers)}",
            )  # fmt: skip
        found += called
    inner = {id(one): block for block in found for one in _within(block)}
    for one in found:
        if id(one) in inner:
            raise SettingError(
                f'the block "{one.name}" is within the block "{inner[id(one)].name}"',
                where=WHERE, holds=f'"{kind}"', right="blocks beside one another",
            )  # fmt: skip
    return found


def _others(model: Any, blocks: Sequence[Any]) -> list[Any]:
    """Return the model's layers with weights that are no blocks, hold none and are in none."""
    taken = {id(one) for block in blocks for one in (block, *_within(block))}
    return [
        one
        for one in model.layers
        if one.trainable_variables and not any(id(inner) in taken for inner in (one, *_within(one)))
    ]


def _within(layer: Any) -> Iterator[Any]:
    """Yield the layers in a layer, and those in them, once each."""
    return iter(layer._flatten_layers(include_self=False))


@contextmanager
def _built_with(policy: str, seed: int) -> Generator[None]:
    """Set Keras's policy and seed for a while; NumPy's and Python's draws go on as before."""
    before = keras.config.dtype_policy()
    states = random.getstate(), np.random.get_state()
    keras.config.set_dtype_policy(policy_of(policy))
    keras.utils.set_random_seed(seed % 2**32)
    try:
        with drawing_from(keras.random.SeedGenerator(seed)):
            yield
    finally:
        keras.config.set_dtype_policy(before)
        random.setstate(states[0])
        np.random.set_state(states[1])


# Its inputs


class Inputs:
    """A batch as the person's model takes it.

    Attributes:
        features: the columns.
        turns: whether rows of padding are to hold real rows again, for the sake of statistics that
            a layer makes of a whole batch.
    """

    def __init__(self, features: Features, model: Any, *, turns: bool) -> None:
        self.features, self.turns = features, turns
        self.structure = _structure(model)

    def __call__(self, batch: Batch) -> Any:
        """Return the inputs, in the structure that the model was made with, else a dict by name."""
        columns = self._columns(batch)
        if self.turns and "weight" in batch:
            real = tf.maximum(tf.math.count_nonzero(batch["weight"], dtype=tf.int32), 1)
            rows = tf.range(tf.shape(batch["weight"])[0]) % real
            columns = {name: tf.gather(one, rows) for name, one in columns.items()}
        if self.structure is None:
            return columns
        return keras.tree.map_structure(lambda one: columns[one.name], self.structure)

    def _columns(self, batch: Batch) -> dict[str, tf.Tensor]:
        found = {
            one.name: _standardised(
                batch["number_values"][:, place : place + 1],
                batch["number_present"][:, place : place + 1],
                one,
            )
            for place, one in enumerate(self.features.numbers)
        }
        for place, one in enumerate(self.features.categories):
            found[one.name] = batch["category_ids"][:, place : place + 1]
        if self.features.text:
            found[self.features.text.name] = batch["tokens"]
        if self.features.image:
            found[self.features.image.name] = standard_pixels(batch["pixels"])
        return found


def _standardised(values: tf.Tensor, present: tf.Tensor, feature: NumberFeature) -> tf.Tensor:
    """Return (value - mean) / scale, in float64 up to here, as float32; 0 where missing."""
    standard = tf.cast((values - feature.mean) / feature.scale, tf.float32)
    return tf.where(present, standard, 0.0)


# What the person should know


def _has_batch_statistics(model: Any) -> bool:
    return any(isinstance(one, keras.layers.BatchNormalization) for one in _within(model))


def _accumulation_notes(model: Any) -> Iterator[str]:
    if _has_batch_statistics(model):
        yield (
            "your model has BatchNormalization: its statistics are of one micro-batch, not of the "
            "global batch, so another micro_batch trains another model"
        )


def _notes(model: Any) -> Iterator[str]:
    variables, layers = model.trainable_variables, list(_within(model))
    if any(one.regularizer for one in variables) or any(
        getattr(one, "activity_regularizer", None) for one in layers
    ):
        yield "your model has regularizers: their losses are not added; training.weight_decay is"
    if any(one.constraint for one in variables):
        yield "your model has constraints on weights: they are not kept to"


def _try(built: Built, features: Features, *, kind: str) -> None:
    """Run the model on two rows: of the smallest ids, an empty text and black, and of the largest.

    Raises:
        SettingError: when it raises, or gives what is not finite.
    """
    scope = keras.StatelessScope(initialize_variables=False)
    with _told("your model raised when it was called", kind=kind), scope:
        loss, _ = built.sums(_two_rows(features), tf.constant([1, 2]), True)
    if not np.isfinite(loss):
        raise SettingError(
            "your model gives NaN or infinity before any training: for two rows, of numbers 0 and "
            "1, of no text and one of the last token of the vocabulary",
            where=WHERE, holds=f'"{kind}"', right="finite logits",
        )  # fmt: skip


def _two_rows(features: Features) -> dict[str, tf.Tensor]:
    numbers = [[one.mean, one.mean + one.scale] for one in features.numbers]
    categories = [[0, FIRST_KNOWN_ID + len(one.vocabulary) - 1] for one in features.categories]
    rows = {
        "number_values": tf.reshape(tf.transpose(tf.constant(numbers, tf.float64)), [2, -1])
        if numbers else tf.zeros([2, 0], tf.float64),
        "number_present": tf.ones([2, len(numbers)], tf.bool),
        "category_ids": tf.transpose(tf.constant(categories, tf.int32))
        if categories else tf.zeros([2, 0], tf.int32),
        "weight": tf.ones([2]),
        "label": tf.constant([features.label.mean] * 2, tf.float64)
        if features.label.task == "regression" else tf.constant([0, 1]),
    }  # fmt: skip
    if features.text:
        size, ids = features.text.sequence, token_ids(features.text)
        empty, full = [ids.end, *[ids.padding] * (size - 1)], [ids.size - 1] * size
        rows["tokens"], rows["lengths"] = tf.constant([empty, full]), tf.constant([1, size])
    if features.image:
        side, channels = features.image.size, features.image.channels
        levels = tf.constant([0, 255], tf.uint8)[:, None, None, None]
        rows["pixels"] = tf.tile(levels, [1, side, side, channels])
    return rows


@contextmanager
def _told(what: str, *, kind: str) -> Generator[None]:
    """Make one message of what a person's own code raises, with its place.

    Raises:
        SettingError: instead of anything that is no error of ours.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, HeadraceError):
            raise
        said = (str(error).strip() or "no message").split("\n")[0]
        frames = traceback.extract_tb(error.__traceback__)
        name = kind.partition(":")[0].rpartition(".")[2]
        theirs = [one for one in frames if _stem(one.filename) == name] or frames
        raise SettingError(
            f"{what} {type(error).__name__}: {said} (at {theirs[-1].filename}:{theirs[-1].lineno})",
            where=WHERE, holds=f'"{kind}"',
        ) from error  # fmt: skip


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def _described(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
