"""What the engine needs of a model, whichever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

Batch = Mapping[str, Any]
"""Tensors by name, [B, ...]; ``weight`` is float32 [B], 1 for a real row and 0 for padding."""

Seed = tf.Tensor
"""int32 [2], of everything random in one call."""


@dataclass(frozen=True)
class Built:
    """A model, and how the step and the evaluation call it.

    Attributes:
        model: its variables, float32.
        sums: of (batch, seed, training): loss sum and weight, float32 scalars; the weight counts
            real examples, or real tokens of a language model. It may assign to the model's
            variables that are not trained (moving statistics): call it in a
            `keras.StatelessScope` to keep them as they are and to read what they would be.
        predict: of a batch: logits, or what evaluation needs.
        blocks: how many blocks recompute may apply to.
        next_token: of a language model alone: of tokens int32 [B, S] and their number int32 [B]
            (1 to S), the float32 logits [B, V] of the token after them.
        tokens: of an example; 1 where the model is not one of ours and reads no text.
        width: numbers a token; 0 where that is not known.
        attends: whether its blocks have attention of ours, which can be chunked.
        notes: what the person should know about the model, a sentence each.
        accumulation_notes: the same, of a training that accumulates micro-batches.
    """

    model: keras.Model
    sums: Callable[[Batch, Seed, bool], tuple[tf.Tensor, tf.Tensor]]
    predict: Callable[[Batch], tf.Tensor]
    blocks: int
    next_token: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    tokens: int = 1
    width: int = 0
    attends: bool = False
    notes: tuple[str, ...] = ()
    accumulation_notes: tuple[str, ...] = ()
