"""What holds for every kind of model: one routine over kinds, policies and techniques."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from trainer.accumulation import Sums, accumulate
from trainer.models import kinds
from trainer.models.built import Built
from trainer.precision import POLICIES
from trainer.settings import (
    CategoryFeature,
    Features,
    ImageFeature,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    Techniques,
    TextFeature,
)

LAYERS, ROWS, SEQUENCE = 3, 7, 9
NUMBERS = (
    NumberFeature("delay", "float", (0.0, 1.0, 2.0), 1.0, 1.0),
    NumberFeature("km", "int", (0.0, 5.0), 1.0, 2.0),
)
CATEGORIES = (CategoryFeature("carrier", ("a", "b")),)
BINARY = LabelFeature("late", "binary", "int", ("0", "1"), (0.7, 0.3))
CLASSES = LabelFeature("kind", "multiclass", "int", ("0", "1", "2"), (0.5, 0.3, 0.2))
BYTES, WORDS = TextFeature("said", SEQUENCE), TextFeature("said", SEQUENCE, ("a", "b", "c"))

PICTURE = ImageFeature("picture", 12, 3, 12)

OWN = '''
import keras


class Mixer(keras.layers.Layer):
    """Attention with a mask and dropout, then a normalised map."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attend = keras.layers.MultiHeadAttention(2, width // 2, dropout=0.3)
        self.drop = keras.layers.Dropout(0.3)
        self.norm = keras.layers.LayerNormalization()
        self.dense = keras.layers.Dense(width, activation="gelu")

    def build(self, shape):
        self.attend.build(shape, shape)
        self.norm.build(shape)
        self.dense.build(shape)

    def call(self, x):
        x = x + self.drop(self.attend(x, x))
        return x + self.drop(self.dense(self.norm(x)))


def functional(features, label):
    inputs = {name: one.input() for name, one in features.items()}
    x = keras.layers.Embedding(features["said"].size, 8, mask_zero=True)(inputs["said"])
    for layer in range(3):
        x = Mixer(8, name=f"mixer_{layer}")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Concatenate()([x, inputs["delay"], inputs["km"]])
    model = keras.Model(inputs, keras.layers.Dense(label.logits)(x))
    return model, [f"mixer_{layer}" for layer in range(3)]


def sequential(features, label):
    return keras.Sequential([
        keras.Input((features["said"].shape[0],), dtype="int32", name="said"),
        keras.layers.Embedding(features["said"].size, 8),
        keras.layers.Conv1D(8, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Conv1D(8, 3, padding="same"),
        keras.layers.GlobalMaxPooling1D(),
        keras.layers.Dense(label.logits),
    ])


class Subclassed(keras.Model):
    def __init__(self, features, label):
        super().__init__()
        self.names = [name for name, one in features.items() if one.kind == "number"]
        self.table = keras.layers.Embedding(features["carrier"].size, 8)
        self.lift = keras.layers.Dense(8)
        self.mixers = [Mixer(8, name=f"mixer_{layer}") for layer in range(3)]
        self.head = keras.layers.Dense(label.logits)

    def call(self, inputs, training=False):
        numbers = keras.ops.stack([inputs[name] for name in self.names], axis=1)
        x = keras.ops.concatenate([self.table(inputs["carrier"]), self.lift(numbers)], axis=1)
        for mixer in self.mixers:
            x = mixer(x)
        return self.head(x[:, 0])


def subclassed(features, label):
    return Subclassed(features, label), [f"mixer_{layer}" for layer in range(3)]
'''

FEATURES = {
    "tabular": Features(NUMBERS, CATEGORIES, BINARY),
    "text": Features((), (), CLASSES, BYTES),
    "text of words": Features((), (), BINARY, WORDS),
    "causal-lm": Features((), (), LabelFeature("said", "causal-lm", "string"), BYTES),
    "image": Features((), (), CLASSES, image=PICTURE),
    "image by vit": Features((), (), BINARY, image=PICTURE),
    "own_models:functional": Features(NUMBERS, (), CLASSES, WORDS),
    "own_models:sequential": Features((), (), BINARY, WORDS),
    "own_models:subclassed": Features(NUMBERS, CATEGORIES, BINARY),
}
KINDS = list(FEATURES)
OURS = [kind for kind in KINDS if not kind.startswith("own_models")]


@pytest.fixture(scope="module", autouse=True)
def own_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("own")
    Path(folder, "own_models.py").write_text(OWN, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("own_models", None)


def built_of(
    kind: str, *, policy: str = "float32", seed: int = 7, dropout: float = 0.3, **techniques
) -> Built:
    settings = ModelSettings(
        kind.partition(" ")[0], layers=LAYERS, width=8, heads=2, dropout=dropout, sequence=SEQUENCE,
        network="vit" if kind.endswith("vit") else "conv", image_size=12,
        patch=4 if kind.endswith("vit") else 1,
    )  # fmt: skip
    chosen = Techniques(ROWS, **techniques)
    return kinds.build(settings, FEATURES[kind], chosen, policy=policy, seed=seed)


def batch_of(kind: str, rows: int = ROWS, real: int = ROWS) -> dict[str, tf.Tensor]:
    features, random = FEATURES[kind], np.random.default_rng(3)
    is_language = features.label.task == "causal-lm"
    weight = np.arange(rows) < real
    batch = {
        "number_values": random.normal(size=(rows, len(features.numbers))),
        "number_present": random.uniform(size=(rows, len(features.numbers))) < 0.8,
        "category_ids": random.integers(0, 4, (rows, len(features.categories))).astype(np.int32),
        "weight": weight.astype(np.float32),
    }
    if features.text:
        size = 3 + len(features.text.vocabulary) if features.text.vocabulary else 257
        width = SEQUENCE + 1 if is_language else SEQUENCE
        batch["tokens"] = random.integers(0, size, (rows, width)).astype(np.int32)
        batch["lengths"] = random.integers(1, SEQUENCE + 1, rows).astype(np.int32)
        if is_language:
            batch["lengths"] *= weight
    if features.image:
        batch["pixels"] = random.integers(0, 256, (rows, 12, 12, 3)).astype(np.uint8)
    if not is_language:
        batch["label"] = random.integers(0, max(2, len(features.label.classes)), rows)
        batch["label"] = batch["label"].astype(np.int32)
    return {name: tf.constant(value) for name, value in batch.items()}


def whole(built: Built, batch: dict, micro_batch: int = ROWS) -> list[np.ndarray]:
    """Loss, weight and gradients of a batch, in micro-batches, all with the same seed."""
    weights = [one.value for one in built.model.trainable_variables]

    def local(part: dict, index: tf.Tensor, buffers: list) -> Sums:
        with tf.GradientTape() as tape:
            loss, weight = built.sums(part, tf.constant([3, 4]), True)
        found = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return Sums(found, loss, weight, [])

    @tf.function(autograph=False)
    def run(batch: dict) -> list[tf.Tensor]:
        sums = accumulate(
            local, batch, micro_batch=micro_batch, shapes=[one.shape for one in weights]
        )
        return [sums.loss, sums.examples, *sums.gradients]

    return [one.numpy() for one in run(batch)]


def assert_equal(found: list, expected: list, *, atol: float, rtol: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_is_plain_with_dropout_on(kind: str) -> None:
    plain, batch = built_of(kind), batch_of(kind)
    expected = whole(plain, batch)
    assert np.isfinite(np.concatenate([one.ravel() for one in expected])).all()
    assert plain.blocks >= LAYERS
    for count in (1, plain.blocks):
        found = whole(built_of(kind, recompute=count), batch)
        # Float32 sums of other orders; gradients are of size 1.
        assert_equal(found, expected, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_is_plain_outside_of_a_function_too(kind: str) -> None:
    batch = batch_of(kind)
    losses = [float(built_of(kind, recompute=count).sums(batch, tf.constant([3, 4]), True)[0])
              for count in (0, LAYERS)]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("micro_batch", [2, 3])
@pytest.mark.parametrize("kind", [one for one in KINDS if one != "own_models:sequential"])
def test_accumulated_is_whole_with_ragged_micro_batches(kind: str, micro_batch: int) -> None:
    # No dropout, whose masks are of a micro-batch; BatchNormalization is left out for the same.
    batch = batch_of(kind, rows=ROWS, real=ROWS - 2)
    built = built_of(kind, dropout=0.0)
    for layer in built.model._flatten_layers():
        if hasattr(layer, "_dropout"):
            layer._dropout = 0.0
        if type(layer).__name__ == "Dropout":
            layer.rate = 0.0
    assert_equal(whole(built, batch, micro_batch), whole(built, batch), atol=2e-6)


@pytest.mark.parametrize("kind", [one for one in OURS if one != "image"])
def test_chunked_attention_is_plain(kind: str) -> None:
    batch = batch_of(kind)
    expected = whole(built_of(kind), batch)
    assert_equal(whole(built_of(kind, attention="chunked"), batch), expected, atol=2e-6)
    both = built_of(kind, attention="chunked", recompute=LAYERS)
    assert_equal(whole(both, batch), expected, atol=2e-6)


def test_chunked_token_loss_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.models.causal_lm.pick_chunk", lambda _: 13)
    batch = batch_of("causal-lm")
    expected = whole(built_of("causal-lm"), batch)
    assert_equal(whole(built_of("causal-lm", token_loss="chunked"), batch), expected, atol=2e-6)


@pytest.mark.parametrize("policy", [one for one in POLICIES if one != "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_16_bits_are_finite_and_near_float32(kind: str, policy: str) -> None:
    batch = batch_of(kind)
    exact = float(built_of(kind).sums(batch, tf.constant([3, 4]), False)[0])
    for count in (0, LAYERS):
        built = built_of(kind, policy=policy, recompute=count)
        assert {one.dtype for one in built.model.trainable_variables} == {"float32"}
        assert all(np.isfinite(one).all() for one in whole(built, batch))
        # Without dropout, for which Keras draws in 16 bits; a few roundings of 2^-8.
        loss = built.sums(batch, tf.constant([3, 4]), False)[0]
        assert float(loss) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_depend_on_the_seed_alone(kind: str) -> None:
    first, again, other = (built_of(kind, seed=seed, recompute=count).model.get_weights()
                           for seed, count in ((7, 0), (7, 2), (8, 0)))  # fmt: skip
    for one, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, same)
    assert any(np.any(one != changed) for one, changed in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_depends_on_the_seed_and_evaluation_has_none(kind: str) -> None:
    built, batch = built_of(kind), batch_of(kind)
    seeds = [[3, 4], [3, 4], [3, 5]]
    one, same, other = (float(built.sums(batch, tf.constant(seed), True)[0]) for seed in seeds)
    assert one == same
    assert one != other
    evaluated = [float(built.sums(batch, tf.constant(seed), False)[0]) for seed in seeds]
    assert len(set(evaluated)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_say_what_the_loss_is_made_of(kind: str) -> None:
    built, batch = built_of(kind), batch_of(kind)
    found = built.predict(batch)
    loss, weight = built.sums(batch, tf.constant([3, 4]), False)
    if kind == "causal-lm":
        assert found.shape == (ROWS, 2)
        assert float(tf.reduce_sum(found[:, 0])) == pytest.approx(float(loss), rel=1e-5)
        assert float(weight) == float(tf.reduce_sum(batch["lengths"]))
        return
    label = FEATURES[kind].label
    assert found.dtype == tf.float32
    assert found.shape == (ROWS, 3 if label is CLASSES else 1)
    assert float(weight) == ROWS


def test_the_first_loss_of_a_language_model_is_near_the_log_of_its_vocabulary() -> None:
    built = built_of("causal-lm")
    loss, weight = built.sums(batch_of("causal-lm"), tf.constant([3, 4]), False)
    assert float(loss / weight) == pytest.approx(np.log(257), rel=0.02)


def test_a_language_model_sees_no_later_token_and_says_the_next_one() -> None:
    built, batch = built_of("causal-lm"), batch_of("causal-lm")
    tokens = batch["tokens"][:, :-1]
    changed = tf.concat([tokens[:, :5], 255 - tokens[:, 5:] % 256], axis=1)
    five = tf.constant([5] * ROWS)
    one, other = (built.next_token(given, five) for given in (tokens, changed))
    assert one.shape == (ROWS, 257)
    np.testing.assert_allclose(one, other, atol=1e-6)
    later = [built.next_token(given, five + 1) for given in (tokens, changed)]
    assert np.abs(later[0] - later[1]).max() > 1e-4


def test_padding_of_a_text_changes_nothing() -> None:
    built, batch = built_of("text"), batch_of("text")
    real = tf.sequence_mask(batch["lengths"], SEQUENCE)
    padded = {**batch, "tokens": tf.where(real, batch["tokens"], 256)}
    np.testing.assert_allclose(built.predict(batch), built.predict(padded), atol=1e-6)


def test_models_are_built_without_memory_in_a_graph() -> None:
    for kind in KINDS:
        with tf.Graph().as_default():
            built = built_of(kind, recompute=LAYERS)
            assert built.model.trainable_variables
            batch = {name: tf.TensorSpec(one.shape, one.dtype)
                     for name, one in EXAMPLES[kind].items()}  # fmt: skip
            run = tf.function(
                lambda batch, built=built: built.sums(batch, tf.constant([1, 2]), True)
            )
            loss, _ = run.get_concrete_function(batch).structured_outputs
            assert loss.shape == ()


EXAMPLES = {kind: {name: one.numpy() for name, one in batch_of(kind).items()} for kind in KINDS}
