"""One conformance routine for the tabular model, over policies, recomputation and columns."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.losses import example_losses
from trainer.models import tabular
from trainer.precision import POLICIES
from trainer.settings import (
    CategoryFeature,
    Features,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    Techniques,
)

TINY = ModelSettings(layers=2, width=8, heads=2)
DROPPING = ModelSettings(layers=2, width=8, heads=2, dropout=0.3)
NUMBERS = (
    NumberFeature("x y", "float", (0.0, 1.0, 2.0), 1.0, 1.0),
    NumberFeature("größe", "int", (0.0, 5.0), 1.0, 1.0),
)
CATEGORIES = (CategoryFeature("x/y", ("a", "b")), CategoryFeature("never seen", ()))
BINARY = LabelFeature("late", "binary", "int", ("0", "1"), (0.5, 0.5))
RARE = LabelFeature("late", "binary", "int", ("0", "1"), (0.99, 0.01))
UNLIKE_CLASSES = LabelFeature("kind", "multiclass", "int", ("0", "1", "2"), (0.9, 0.08, 0.02))
FOUR_CLASSES = LabelFeature("kind", "multiclass", "int", ("0", "1", "2", "3"), (0.25,) * 4)
REGRESSION = LabelFeature("delay", "regression", "float", mean=3.0, scale=2.0)
COLUMNS = {
    "both": Features(NUMBERS, CATEGORIES, BINARY),
    "numbers only": Features(NUMBERS, (), FOUR_CLASSES),
    "texts only": Features((), CATEGORIES, BINARY),
    "one number": Features(NUMBERS[:1], (), REGRESSION),
    "one text": Features((), CATEGORIES[1:], BINARY),
}


def build(settings: ModelSettings, features: Features, *, policy: str, recompute: bool, seed: int):
    techniques = Techniques(1, recompute=settings.layers if recompute else 0)
    return tabular.build(settings, features, techniques, policy=policy, seed=seed).model


def inputs_of(features: Features, rows: int = 6, largest: float = 6.0) -> dict[str, tf.Tensor]:
    random = np.random.default_rng(5)
    count = len(features.numbers)
    most = [2 + len(one.vocabulary) for one in features.categories]
    ids = random.integers(0, most, size=(rows, len(most))) if most else np.zeros((rows, 0))
    return {
        "number_values": tf.constant(random.uniform(-1, largest, (rows, count))),
        "number_present": tf.constant(random.uniform(size=(rows, count)) < 0.8),
        "category_ids": tf.constant(ids, tf.int32),
    }


def loss_and_gradients(model, features: Features, *, jit: bool = False) -> list[np.ndarray]:
    inputs = inputs_of(features)
    label = tf.constant([0, 1, 0, 1, 1, 0])

    @tf.function(jit_compile=jit)
    def run(inputs: dict, label: tf.Tensor, seed: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(inputs, seed=seed, training=True)
            losses = example_losses(logits, label, label_feature=features.label)
            loss = tf.reduce_sum(losses)
        weights = [one.value for one in model.trainable_variables]
        found = tape.gradient(loss, weights)
        return [loss, *(tf.convert_to_tensor(one) for one in found)]

    return [one.numpy() for one in run(inputs, label, tf.constant([3, 4]))]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(("policy", "recompute"), [
    ("float32", False), ("float32", True), ("mixed_float16", False), ("mixed_float16", True),
    ("mixed_bfloat16", False), ("mixed_bfloat16", True),
])  # fmt: skip
def test_conformance(columns: str, policy: str, recompute: bool) -> None:
    features = COLUMNS[columns]
    model = build(DROPPING, features, policy=policy, recompute=recompute, seed=7)
    inputs = inputs_of(features)
    logits = model(inputs, training=False)
    size = 4 if features.label is FOUR_CLASSES else 1
    assert logits.shape == (6, size)
    assert logits.dtype == tf.float32
    assert {weight.dtype for weight in model.trainable_variables} == {"float32"}
    loss, *found = loss_and_gradients(model, features)
    assert np.isfinite(loss)
    names = [weight.path for weight in model.trainable_variables]
    assert len(set(names)) == len(names)
    for name, gradient in zip(names, found, strict=True):
        assert gradient.dtype == np.float32, name
        assert np.isfinite(gradient).all(), name
    # 16 bits: a few roundings of 2^-8 on logits of size 0.1.
    exact = build(DROPPING, features, policy="float32", recompute=False, seed=7)(inputs)
    np.testing.assert_allclose(logits, exact, atol=1e-6 if policy == "float32" else 0.02)


@pytest.mark.parametrize("policy", POLICIES)
def test_recomputed_gradients_are_plain_ones_with_dropout_on(policy: str) -> None:
    features = COLUMNS["both"]
    plain, replayed = (
        loss_and_gradients(
            build(DROPPING, features, policy=policy, recompute=one, seed=7), features
        )
        for one in (False, True)
    )
    for one, other in zip(plain, replayed, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_loss_and_gradients_compile_with_xla_to_the_same_numbers() -> None:
    features = COLUMNS["both"]
    model = build(DROPPING, features, policy="float32", recompute=False, seed=7)
    plain = loss_and_gradients(model, features)
    compiled = loss_and_gradients(model, features, jit=True)
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_weights_depend_on_the_seed_alone() -> None:
    features = COLUMNS["both"]
    first, again, other, half = (
        build(TINY, features, policy=policy, recompute=recompute, seed=seed).get_weights()
        for policy, recompute, seed in (
            ("float32", False, 7), ("float32", True, 7), ("float32", False, 8),
            ("mixed_float16", False, 7),
        )
    )  # fmt: skip
    for one, same, halved in zip(first, again, half, strict=True):
        np.testing.assert_array_equal(one, same)
        np.testing.assert_array_equal(one, halved)
    assert any(np.any(one != changed) for one, changed in zip(first, other, strict=True))


def test_no_two_weights_start_alike() -> None:
    model = build(TINY, COLUMNS["both"], policy="float32", recompute=False, seed=7)
    drawn = [one.numpy().ravel()[:8].tobytes() for one in model.trainable_variables
             if np.ptp(one.numpy()) > 0]  # fmt: skip
    assert len(set(drawn)) == len(drawn)


def test_biases_and_scales_have_one_axis_and_matrices_more() -> None:
    # What weight decay goes by.
    model = build(TINY, COLUMNS["both"], policy="float32", recompute=False, seed=7)
    matrices = {one.name for one in model.trainable_variables if len(one.shape) > 1}
    assert matrices == {"kernel", "table"}


@pytest.mark.parametrize(
    "label", [BINARY, RARE, FOUR_CLASSES, UNLIKE_CLASSES], ids=["half", "rare", "equal", "unlike"]
)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_first_loss_is_near_the_entropy_of_the_label(label: LabelFeature, policy: str) -> None:
    # A loss of ln(classes) on a label of which 1 in 100 is of class 1 would be 12 times as high.
    features = Features(NUMBERS, CATEGORIES, label)
    model = build(ModelSettings(), features, policy=policy, recompute=False, seed=7)
    shares = np.array(label.frequencies)
    ids = np.repeat(np.arange(len(shares), dtype=np.int32), np.rint(200 * shares).astype(int))
    losses = example_losses(
        model(inputs_of(features, rows=200)), tf.constant(ids), label_feature=label
    )
    # The head's kernel of deviation 0.02 moves a logit by about 0.1.
    assert abs(np.mean(losses) + np.sum(shares * np.log(shares))) < 0.02


def test_the_first_loss_of_a_standardised_label_is_near_its_variance() -> None:
    features = Features(NUMBERS, CATEGORIES, REGRESSION)
    model = build(ModelSettings(), features, policy="float32", recompute=False, seed=7)
    label = tf.constant(REGRESSION.mean + REGRESSION.scale * np.resize([-1.0, 1.0], 200))
    losses = example_losses(model(inputs_of(features, rows=200)), label, label_feature=REGRESSION)
    assert abs(np.mean(losses) - 1) < 0.05


def test_numbers_past_float16_stay_finite_in_16_bits() -> None:
    features = COLUMNS["one number"]
    model = build(TINY, features, policy="mixed_float16", recompute=False, seed=7)
    assert np.isfinite(model(inputs_of(features, largest=3e9))).all()


def test_missing_values_unknown_and_known_texts_all_count() -> None:
    features = COLUMNS["both"]
    model = build(TINY, features, policy="float32", recompute=False, seed=7)
    row = {
        "number_values": tf.constant([[0.0, 0.0]] * 5, tf.float64),
        "number_present": tf.constant([[True, True]] * 4 + [[False, True]]),
        "category_ids": tf.constant([[0, 0], [1, 0], [2, 0], [3, 0], [0, 0]]),
    }
    assert len(np.unique(model(row))) == 5


def test_training_with_dropout_asks_for_a_seed() -> None:
    model = build(DROPPING, COLUMNS["both"], policy="float32", recompute=False, seed=7)
    with pytest.raises(ValueError, match="seed"):
        model(inputs_of(COLUMNS["both"]), training=True)


def test_training_without_dropout_needs_no_seed() -> None:
    model = build(TINY, COLUMNS["both"], policy="float32", recompute=True, seed=7)
    inputs = inputs_of(COLUMNS["both"])
    np.testing.assert_allclose(model(inputs, training=True), model(inputs), rtol=1e-6)
