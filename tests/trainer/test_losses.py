"""Losses and predictions against NumPy's float64 formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from trainer.losses import example_losses, logits_size, predictions, prior_logits
from trainer.settings import LabelFeature

BINARY = LabelFeature("late", "binary", "int", ("0", "1"), (0.8, 0.2))
THREE_CLASSES = LabelFeature("kind", "multiclass", "string", ("a", "b", "c"), (0.5, 0.3, 0.2))
# Seconds since 1970: a float32 of this size is exact to 128 only.
TIME_LABEL = LabelFeature("arrival", "regression", "int", mean=1.7e9, scale=10.0)


def test_binary_loss_is_the_cross_entropy_of_the_sigmoid() -> None:
    logits = np.array([[-2.0], [0.5], [30.0], [-200.0]], np.float32)
    label = np.array([0, 1, 1, 1], np.int32)
    # log(1 + e^z) - y z, in float64.
    z = logits[:, 0].astype(np.float64)
    right = np.logaddexp(0, z) - label * z
    found = example_losses(tf.constant(logits), tf.constant(label), label_feature=BINARY)
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-12)


def test_multiclass_loss_is_minus_the_log_of_the_softmax() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [0.0, -50.0, 50.0]], np.float32)
    label = np.array([0, 1], np.int32)
    z = logits.astype(np.float64)
    right = np.log(np.exp(z).sum(axis=1)) - z[np.arange(2), label]
    found = example_losses(tf.constant(logits), tf.constant(label), label_feature=THREE_CLASSES)
    np.testing.assert_allclose(found, right, rtol=1e-6)


def test_regression_loss_is_the_squared_error_of_the_standardised_label() -> None:
    label = np.array([1.7e9, 1.7e9 + 20, 1.7e9 - 1])
    found = example_losses(
        tf.constant([[0.0], [1.5], [0.0]]), tf.constant(label), label_feature=TIME_LABEL
    )
    np.testing.assert_allclose(found, [0.0, 0.25, 0.01], rtol=1e-6)


def test_losses_are_float32_for_16_bit_logits() -> None:
    for kind in (tf.float16, tf.bfloat16):
        found = example_losses(tf.cast([[20.0]], kind), tf.constant([0]), label_feature=BINARY)
        assert found.dtype == tf.float32
        np.testing.assert_allclose(found, [20.0], rtol=1e-6)


def test_equal_logits_lose_the_log_of_the_number_of_classes() -> None:
    found = example_losses(tf.zeros([2, 3]), tf.constant([0, 2]), label_feature=THREE_CLASSES)
    np.testing.assert_allclose(found, np.log([3, 3]), rtol=1e-6)


def test_predictions_are_probabilities_or_values_in_the_labels_unit() -> None:
    binary = predictions(tf.constant([[0.0], [2.0]]), label_feature=BINARY)
    np.testing.assert_allclose(binary, [[0.5], [1 / (1 + np.exp(-2))]], rtol=1e-6)
    three = predictions(tf.constant([[0.0, 0.0, np.log(2)]]), label_feature=THREE_CLASSES)
    np.testing.assert_allclose(three, [[0.25, 0.25, 0.5]], rtol=1e-6)
    values = predictions(tf.constant([[0.1]]), label_feature=TIME_LABEL)
    np.testing.assert_allclose(values, [[1.7e9 + 1]], rtol=0, atol=1e-5)


def test_prior_logits_predict_the_shares_of_the_train_split() -> None:
    for label in (BINARY, THREE_CLASSES):
        logits = prior_logits(label)
        assert (logits.dtype, logits.shape) == (np.float32, (logits_size(label),))
        found = predictions(tf.constant(logits[None]), label_feature=label)
        right = label.frequencies[1:] if label is BINARY else label.frequencies
        np.testing.assert_allclose(found[0], right, rtol=1e-6)
    mean = predictions(tf.constant(prior_logits(TIME_LABEL)[None]), label_feature=TIME_LABEL)
    assert mean == TIME_LABEL.mean


def test_prior_logits_of_a_share_of_0_or_of_none_are_finite() -> None:
    for task, shares in (("binary", (1.0, 0.0)), ("multiclass", (0.5, 0.5, 0.0))):
        label = LabelFeature("l", task, "int", ("0", "1", "2")[: len(shares)], shares)
        logits = prior_logits(label)
        assert np.isfinite(logits).all()
        assert logits[-1] < -10
        np.testing.assert_array_equal(prior_logits(replace(label, frequencies=())), 0)


def test_only_multiclass_has_a_logit_a_class() -> None:
    assert [logits_size(one) for one in (BINARY, THREE_CLASSES, TIME_LABEL)] == [1, 3, 1]
