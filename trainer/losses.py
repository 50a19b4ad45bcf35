"""Losses by example and predictions from logits, by the label's task; always float32 or better.

The loss is given by example, never as a mean: the step sums over micro-batches and divides once by
the real examples of the global batch.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainer.settings import LabelFeature

LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
"""Probabilities are kept this far from 0 and 1 in logarithms, since they are float32 numbers."""


def logits_size(label_feature: LabelFeature) -> int:
    """Return C, the logits an example: one a class for multiclass, otherwise one."""
    return len(label_feature.classes) if label_feature.task == "multiclass" else 1


def prior_logits(label_feature: LabelFeature) -> np.ndarray:
    """Return the logits of who knows no column, only how often each class is in the train split.

    Binary: the log-odds of class id 1. Multiclass: the log of each class's share. Regression: 0,
    which is the mean. They are 0 too where no shares are known; a share of 0 counts as
    `LEAST_PROBABILITY`.

    Args:
        label_feature: task and frequencies.
    Returns: float32 [C].
    """
    if label_feature.task == "regression" or not label_feature.frequencies:
        return np.zeros(logits_size(label_feature), np.float32)
    shares = np.asarray(label_feature.frequencies, np.float64)
    logs = np.log(np.clip(shares, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))
    logits = logs[1:] - logs[:1] if label_feature.task == "binary" else logs
    return logits.astype(np.float32)


def example_losses(
    logits: tf.Tensor, label: tf.Tensor, *, label_feature: LabelFeature
) -> tf.Tensor:
    """Return the loss of each example.

    Binary: sigmoid cross-entropy, class id 1 being the positive one. Multiclass: softmax
    cross-entropy. Regression: squared error of the standardised label.

    Args:
        logits: [B, C]; cast to float32 first.
        label: int32 class ids [B], or float64 [B] in the label's own unit for regression.
        label_feature: task and, for regression, mean and scale.
    Returns: float32 [B], in nats for classification.
    """
    logits = tf.cast(logits, tf.float32)
    if label_feature.task == "multiclass":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
    if label_feature.task == "binary":
        return tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(label, tf.float32), logits=logits[:, 0]
        )
    # In float64 up to here: labels such as times in seconds are far from 0.
    standard = (tf.cast(label, tf.float64) - label_feature.mean) / label_feature.scale
    return tf.math.squared_difference(logits[:, 0], tf.cast(standard, tf.float32))


def predictions(logits: tf.Tensor, *, label_feature: LabelFeature) -> tf.Tensor:
    """Return what the logits predict.

    Args:
        logits: [B, C]; cast to float32 first.
        label_feature: task and, for regression, mean and scale.
    Returns: probabilities, float32: binary [B, 1] of class id 1, multiclass [B, K]; regression:
        values in the label's own unit, float64 [B, 1] (a float32 would lose the digits of a label
        that is far from 0).
    """
    logits = tf.cast(logits, tf.float32)
    if label_feature.task == "multiclass":
        return tf.nn.softmax(logits)
    if label_feature.task == "binary":
        return tf.math.sigmoid(logits)
    return tf.cast(logits, tf.float64) * label_feature.scale + label_feature.mean
