"""A person's own builder: what it is told, what is refused, what is kept to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import SettingError
from trainer.models import custom, kinds
from trainer.models.built import Built
from trainer.settings import (
    CategoryFeature,
    Features,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    Techniques,
    TextFeature,
)

FEATURES = Features(
    (NumberFeature("delay", "float", (0.0, 1.0), 3.0, 2.0),),
    (CategoryFeature("carrier", ("a", "b")),),
    LabelFeature("late", "binary", "int", ("no", "yes"), (0.5, 0.5)),
    TextFeature("said", 4, ("x", "y", "z")),
)
HEAD = "import keras\nimport tensorflow as tf\nfrom keras import layers\n"
SUM = """
def build(features, label):
    inputs = {name: one.input() for name, one in features.items() if one.kind != "text"}
    carrier = layers.Flatten()(layers.Embedding(4, 2)(inputs["carrier"]))
    x = layers.Concatenate()([carrier, inputs["delay"]])
    BODY
    return keras.Model(inputs, layers.Dense(label.logits)(x))
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Write]:
    """Write a module with a `build`; return its kind."""
    name = "own_" + "".join(one if one.isalnum() else "_" for one in request.node.name)
    sys.path.insert(0, str(tmp_path))

    def written(text: str) -> str:
        Path(tmp_path, f"{name}.py").write_text(HEAD + text, encoding="utf-8")
        return f"{name}:build"

    yield written
    sys.path.remove(str(tmp_path))
    sys.modules.pop(name, None)


def build(kind: str, *, policy: str = "float32", **techniques) -> Built:
    return kinds.build(
        ModelSettings(kind), FEATURES, Techniques(2, **techniques), policy=policy, seed=7
    )


def batch_of(rows: int = 6, real: int = 6) -> dict[str, tf.Tensor]:
    random = np.random.default_rng(1)
    return {
        "number_values": tf.constant(random.normal(3, 2, (rows, 1))),
        "number_present": tf.constant(np.arange(rows)[:, None] != 1),
        "category_ids": tf.constant(random.integers(0, 4, (rows, 1)), tf.int32),
        "tokens": tf.constant(random.integers(1, 6, (rows, 4)), tf.int32),
        "lengths": tf.fill([rows], 4),
        "label": tf.constant(np.arange(rows) % 2, tf.int32),
        "weight": tf.constant(np.arange(rows) < real, tf.float32),
    }


def test_a_builder_is_told_of_columns_and_label() -> None:
    specs = custom.feature_specs(FEATURES)
    assert [(one.name, one.kind, one.shape, one.dtype, one.size) for one in specs.values()] == [
        ("delay", "number", (1,), "float32", 0),
        ("carrier", "category", (1,), "int32", 4),
        ("said", "text", (4,), "int32", 6),
    ]
    assert custom.label_spec(FEATURES.label) == custom.LabelSpec("binary", ("no", "yes"), 1)


def test_numbers_arrive_standardised_and_0_where_missing() -> None:
    model = keras.Sequential()
    found = custom.Inputs(FEATURES, model, turns=False)(batch_of())
    values = batch_of()["number_values"].numpy()[:, 0]
    expected = np.where(np.arange(6) == 1, 0, (values - 3) / 2)
    np.testing.assert_allclose(found["delay"][:, 0], expected, rtol=1e-6)
    assert found["delay"].dtype == tf.float32
    assert found["carrier"].shape == (6, 1)
    assert found["said"].shape == (6, 4)


@pytest.mark.parametrize(("text", "words"), [
    ("def build(features, label):\n    raise KeyError('oh')\n", ("KeyError", "oh", ".py:5")),
    ("def build(features, label):\n    return 3\n", ("returned int", "keras.Model")),
    ("def build(features):\n    return 3\n", ("TypeError", "positional")),
    ("other = 3\n", ("no function", '"build"')),
    ("import no_such_package\n", ("importing", "ModuleNotFoundError", "no_such_package", ".py:4")),
    ("1 / 0\n", ("importing", "ZeroDivisionError", ".py:4")),
    (SUM.replace("label.logits", "3").replace("BODY", "pass"), ("[None, 3]", "[B, 1]")),
    (SUM.replace("BODY", "x = layers.Lambda(lambda x: x / 0.0, output_shape=(3,))(x)"), ("NaN",)),
    (SUM.replace("BODY", "x = layers.Dense(2, dtype='float16')(x)"), ("float16", "float32")),
    (SUM.replace("Embedding(4,", "Embedding(3,").replace("BODY", "pass"), ("raised", "indices")),
    (SUM.replace("keras.Model(", "(keras.Model(").replace("(x))", "(x)), ['no such'])")
     .replace("BODY", "pass"), ("no layers", '"no such"')),
    ("def build(features, label):\n    x = keras.Input((1,), name='other')\n"
     "    return keras.Model(x, layers.Dense(1)(x))\n", ('"other"', "no column", "delay")),
    ("def build(features, label):\n    x = features['delay'].input()\n"
     "    return keras.Model(x, layers.Activation('relu')(x))\n", ("no weights",)),
], ids=lambda one: "words" if isinstance(one, tuple) else "text")  # fmt: skip
def test_what_cannot_be_trained_is_told_in_one_message(write: Write, text: str, words) -> None:
    kind = write(text)
    with pytest.raises(SettingError) as caught:
        build(kind)
    assert caught.value.where == "model.kind"
    assert "\n" not in str(caught.value)
    for word in (kind, *words):
        assert word in str(caught.value), str(caught.value)


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(SettingError, match='there is no module "nowhere"'):
        build("nowhere:build")
    with pytest.raises(SettingError, match=r'there is no module "trainer.nowhere"'):
        build("trainer.nowhere:build")


def test_attention_of_ones_own_cannot_be_chunked_from_outside(write: Write) -> None:
    with pytest.raises(SettingError, match="cannot be chunked") as caught:
        build(write(SUM.replace("BODY", "pass")), attention="chunked")
    assert caught.value.where == "training.attention"


def test_random_numbers_without_a_seed_cannot_be_recomputed(write: Write) -> None:
    body = "x = layers.Dense(3, name='d')(x)"
    noise = (
        "class Noise(layers.Dense):\n    def call(self, x):\n"
        "        return super().call(x) + tf.random.normal([1, 3])\n"
    )
    kind = write(noise + SUM.replace("BODY", body.replace("layers.Dense", "Noise")))
    batch = batch_of()

    def loss(built: Built) -> tf.Tensor:
        run = tf.function(lambda: built.sums(batch, tf.constant([1, 2]), True)[0], autograph=False)
        return run.get_concrete_function()

    loss(build(kind))
    with pytest.raises(SettingError, match='"d" draws random numbers with no seed'):
        loss(build(kind, recompute=2))


@pytest.mark.parametrize("recompute", [0, 9])
def test_moving_statistics_move_once_and_only_in_training(write: Write, recompute: int) -> None:
    built = build(
        write(SUM.replace("BODY", "x = layers.BatchNormalization(name='norm')(x)")),
        recompute=recompute,
    )
    norm = built.model.get_layer("norm")
    batch = batch_of()

    @tf.function
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss, _ = built.sums(batch, tf.constant([1, 2]), True)
        return tape.gradient(loss, [one.value for one in built.model.trainable_variables])

    built.sums(batch, tf.constant([1, 2]), False)
    np.testing.assert_array_equal(norm.moving_mean, np.zeros(3))
    gradients()
    values = custom.Inputs(FEATURES, built.model, turns=False)(batch)["delay"]
    # momentum 0.99, once
    expected = 0.01 * float(tf.reduce_mean(values))
    assert float(norm.moving_mean.numpy()[2]) == pytest.approx(expected, rel=1e-4)


def test_in_a_scope_nothing_moves_and_the_new_statistics_can_be_read(write: Write) -> None:
    built = build(write(SUM.replace("BODY", "x = layers.BatchNormalization(name='norm')(x)")))
    mean = built.model.get_layer("norm").moving_mean
    with keras.StatelessScope([(mean, tf.ones([3]))]) as scope:
        built.sums(batch_of(), tf.constant([1, 2]), True)
    np.testing.assert_array_equal(mean, np.zeros(3))
    moved = scope.get_current_value(mean).numpy()
    assert np.all(moved > 0.9)
    assert np.any(moved < 0.999)


def test_rows_of_padding_do_not_count_in_batch_statistics(write: Write) -> None:
    built = build(write(SUM.replace("BODY", "x = layers.BatchNormalization(name='norm')(x)")))
    batch = batch_of(real=3)
    three = {name: one[:3] for name, one in batch.items()}
    found = built.sums(batch, tf.constant([1, 2]), True)
    expected = built.sums(three, tf.constant([1, 2]), True)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "BatchNormalization" in built.accumulation_notes[0]


def test_losses_and_constraints_of_layers_are_told_not_to_count(write: Write) -> None:
    body = "x = layers.Dense(2, kernel_regularizer='l2', kernel_constraint='non_neg')(x)"
    notes = build(write(SUM.replace("BODY", body))).notes
    assert "regularizers" in notes[0]
    assert "constraints" in notes[1]
    assert not build(write(SUM.replace("BODY", "pass"))).accumulation_notes


def test_the_policy_and_the_draws_of_others_are_as_before(write: Write) -> None:
    kind = write(SUM.replace("BODY", "x = layers.Dense(2, name='d')(x)"))
    np.random.seed(5)
    expected = np.random.uniform()
    np.random.seed(5)
    built = build(kind, policy="mixed_bfloat16")
    assert built.model.get_layer("d").compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"
    assert np.random.uniform() == expected
    assert built.predict(batch_of()).dtype == tf.float32


def test_dropout_from_keras_global_generator_is_replayed(write: Write) -> None:
    drop = (
        "class Drop(layers.Dense):\n    def call(self, x, training=False):\n"
        "        x = super().call(x)\n"
        "        return keras.random.dropout(x, 0.5) if training else x\n"
    )
    kind = write(drop + SUM.replace("BODY", "x = Drop(8, name='d')(x)\n    x = Drop(8)(x)"))
    batch = batch_of()

    def gradients(recompute: int, seed: int) -> list[np.ndarray]:
        built = build(kind, recompute=recompute)
        weights = [one.value for one in built.model.trainable_variables]

        @tf.function
        def run() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss, _ = built.sums(batch, tf.constant([1, seed]), True)
            return [tf.convert_to_tensor(one) for one in tape.gradient(loss, weights)]

        return [one.numpy() for one in run()]

    plain = gradients(0, 2)
    for one, other in zip(plain, gradients(9, 2), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert any(np.abs(one - other).max() > 1e-3
               for one, other in zip(plain, gradients(0, 3), strict=True))  # fmt: skip
