"""A Transformer over the columns of a row: a token a column, and one that asks; a linear part.

Source: Gorishniy et al. 2021, arXiv:2106.11959 (FT-Transformer), with numbers through
piecewise-linear encodings (Gorishniy et al. 2022, arXiv:2203.05556).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from trainer.losses import example_losses, prior_logits
from trainer.models.blocks import Block, LayerNorm, drops, fold_in, normal, uniform
from trainer.models.built import Batch, Built, Seed
from trainer.models.running import Blocks
from trainer.precision import policy as policy_of
from trainer.settings import (
    CategoryFeature,
    Features,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    Techniques,
)
from trainer.shard import Parameters
from trainer.transform import FIRST_KNOWN_ID, encode_numbers, encoded_size

SPEED = 10.0
"""Of the linear part beside the rest: what is linear is learned before the rest learns noise."""
FARTHEST = 5.0
"""Standard deviations from the mean at which a number ends in the linear part."""
HEAD_DEVIATION = 0.02
"""Small, so that a fresh model says little more than its bias, the label's shares in train."""


def build(
    settings: ModelSettings,
    features: Features,
    techniques: Techniques,
    *,
    policy: str,
    seed: int,
    parameters: Parameters | None = None,
) -> Built:
    """Return the model; its weights depend on `seed` alone (and on the shapes).

    But for the head's bias: it says how often each class is in the train split, so that the first
    loss is near the label's entropy. From 0, most updates on a rare class would go into the bias.

    Args:
        settings: layers, width, heads, dropout.
        features: the columns, in the order of the inputs, and the label with its shares.
        techniques: recompute and attention.
        policy: float32, mixed_float16 or mixed_bfloat16.
        seed: of the weights at the start.
        parameters: where the weights are when no worker holds all of them; None: each holds all.
    Raises: SettingError when there is no such policy.
    """
    blocks, dtype = Blocks(techniques.recompute, parameters), policy_of(policy)
    model = blocks.build(
        lambda: TabularTransformer(
            settings,
            features,
            dtype=dtype,
            seed=seed,
            blocks=blocks,
            attention=techniques.attention,
        )
    )
    return Built(
        model=model,
        sums=label_sums(model, features.label),
        predict=partial(model, training=False),
        blocks=settings.layers,
        tokens=1 + len(features.numbers) + len(features.categories),
        width=settings.width,
        attends=True,
    )


def label_sums(
    logits: Callable[..., tf.Tensor], label: LabelFeature
) -> Callable[[Batch, Seed, bool], tuple[tf.Tensor, tf.Tensor]]:
    """Return `Built.sums` of a model with one label an example.

    Args:
        logits: of a batch, with `seed` and `training` by name; [B, C].
        label: its task.
    """

    def sums(batch: Batch, seed: Seed, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        found = logits(batch, seed=seed, training=training)
        losses = example_losses(found, batch["label"], label_feature=label)
        return tf.reduce_sum(losses * batch["weight"]), tf.reduce_sum(batch["weight"])

    return sums


def through(
    blocks: Sequence[Block],
    tokens: tf.Tensor,
    run: Blocks,
    seed: tf.Tensor | None,
    training: bool,
) -> tf.Tensor:
    """Return what the last block makes of the asking token, which is the first, [B, 1, W].

    Only it reaches the head, so the last block computes no other.

    Args:
        blocks: one after another.
        tokens: [B, T, W].
        run: how blocks are run.
        seed: int32 [2], of dropout; None: nothing is dropped.
        training: whether dropout is on.
    """
    last = len(blocks) - 1
    for layer, block in enumerate(blocks):
        seeds = [] if seed is None else [fold_in(seed, layer)]
        tokens = run.run(layer, block, tokens, *seeds, training=training, first_only=layer == last)
    return tokens


class TabularTransformer(keras.Model):
    """Columns to logits; see `build`."""

    def __init__(
        self,
        settings: ModelSettings,
        features: Features,
        *,
        dtype: keras.DTypePolicy,
        seed: int,
        blocks: Blocks,
        attention: Literal["plain", "chunked"],
    ) -> None:
        # Keras would cast float64 inputs to the compute dtype: numbers would pass through float16.
        super().__init__(name="tabular", dtype=dtype, autocast=False)
        self.dropout_rate, self.run = settings.dropout, blocks
        self.embeddings = [
            kind(columns, settings.width, seed=seed, dtype=dtype)
            for kind, columns in (
                (NumberTokens, features.numbers),
                (CategoryTokens, features.categories),
            )
            if columns
        ]
        self.asking = Asking(settings.width, seed=seed, dtype=dtype)
        self.blocks = [
            Block(settings, name=f"block_{layer}", seed=seed, dtype=dtype, attention=attention)
            for layer in range(settings.layers)
        ]
        prior = prior_logits(features.label)
        self.head = Head(settings.width, prior, seed=seed, dtype=dtype)
        self.straight = (
            Straight(features.numbers, len(prior), dtype=dtype) if features.numbers else None
        )
        self.built = True

    def call(
        self,
        inputs: Mapping[str, tf.Tensor],
        seed: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Return the logits of a batch.

        Args:
            inputs: ``number_values`` float64 [B, n], ``number_present`` bool [B, n],
                ``category_ids`` int32 [B, m]; others are not read.
            seed: int32 [2], of dropout; not read where nothing is dropped.
            training: whether dropout is on.
        Returns: float32 [B, C].

        Raises:
            ValueError: when training with dropout and no seed.
        """
        is_dropping = drops(self.dropout_rate, seed, training=training)
        columns = [self.run.once(one, *(inputs[name] for name in one.reads))
                   for one in self.embeddings]  # fmt: skip
        tokens = self.run.once(self.asking, tf.concat(columns, axis=1))
        tokens = through(self.blocks, tokens, self.run, seed if is_dropping else None, training)
        logits = self.run.once(self.head, tokens[:, 0])
        if self.straight is None:
            return logits
        straight = self.straight
        return logits + self.run.once(straight, *(inputs[name] for name in straight.reads))


class Asking(keras.layers.Layer):
    """Puts a learned token before all others: what the head reads is its."""

    def __init__(self, width: int, *, seed: int, dtype: keras.DTypePolicy) -> None:
        super().__init__(name="asking", dtype=dtype, autocast=False)
        self.token = self.add_weight(
            shape=(width,),
            initializer=uniform(seed, "asking", bound=width**-0.5),
            name="asking",
            autocast=False,
        )
        self.built = True

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        """Map [B, S, W] to [B, 1 + S, W]."""
        asking = tf.cast(self.token.value, tokens.dtype)[None, None]
        return tf.concat([tf.tile(asking, [tf.shape(tokens)[0], 1, 1]), tokens], axis=1)


class NumberTokens(keras.layers.Layer):
    """A token a number: its piecewise-linear encoding through a linear map of its own."""

    reads = ("number_values", "number_present")

    def __init__(
        self,
        numbers: Sequence[NumberFeature],
        width: int,
        *,
        seed: int,
        dtype: keras.DTypePolicy,
    ) -> None:
        super().__init__(name="number_tokens", dtype=dtype, autocast=False)
        self.numbers, self.width = tuple(numbers), width
        size = encoded_size(numbers)
        self.kernel = self.add_weight(
            shape=(len(numbers), size, width),
            initializer=uniform(seed, "number_kernel", bound=size**-0.5),
            name="kernel",
            autocast=False,
        )
        # Flat, since weight decay takes everything of two axes or more for a matrix.
        self.bias = self.add_weight(
            shape=(len(numbers) * width,),
            initializer=uniform(seed, "number_bias", bound=width**-0.5),
            name="bias",
            autocast=False,
        )
        self.built = True

    def call(self, values: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        """Map float64 [B, n] and bool [B, n] to [B, n, W] in the compute dtype."""
        encoded = encode_numbers(self.numbers, values, present)
        kernel = tf.cast(self.kernel.value, self.compute_dtype)
        tokens = tf.einsum("bnk,nkw->bnw", tf.cast(encoded, self.compute_dtype), kernel)
        bias = tf.cast(self.bias.value, self.compute_dtype)
        return tokens + tf.reshape(bias, [len(self.numbers), self.width])


class Straight(keras.layers.Layer):
    """A linear map from the standardised numbers to the logits, in float32; 0 at the start.

    What is linear is learned at once, and goes on beyond the values of the train split, where the
    encoding of `NumberTokens` ends.
    Source: the wide part of Cheng et al. 2016, arXiv:1606.07792.
    """

    reads = ("number_values", "number_present")

    def __init__(
        self, numbers: Sequence[NumberFeature], outputs: int, *, dtype: keras.DTypePolicy
    ) -> None:
        super().__init__(name="straight", dtype=dtype, autocast=False)
        self.means = np.asarray([one.mean for one in numbers], np.float64)
        self.scales = np.asarray([one.scale for one in numbers], np.float64)
        self.kernel = self.add_weight(
            shape=(len(numbers), outputs), initializer="zeros", name="kernel", autocast=False
        )
        self.built = True

    def call(self, values: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        """Map float64 [B, n] and bool [B, n] to float32 [B, C]; a missing number counts as 0."""
        known = tf.logical_and(present, tf.math.is_finite(values))
        standard = tf.where(known, (values - self.means) / self.scales, tf.constant(0, tf.float64))
        # So that one value of a column that is far out cannot outweigh all others.
        near = tf.clip_by_value(standard, -FARTHEST, FARTHEST)
        return SPEED * tf.matmul(tf.cast(near, tf.float32), self.kernel.value)


class CategoryTokens(keras.layers.Layer):
    """A token a category: one table for all of them, each column with its own range of rows."""

    reads = ("category_ids",)

    def __init__(
        self,
        categories: Sequence[CategoryFeature],
        width: int,
        *,
        seed: int,
        dtype: keras.DTypePolicy,
    ) -> None:
        super().__init__(name="category_tokens", dtype=dtype, autocast=False)
        sizes = [FIRST_KNOWN_ID + len(category.vocabulary) for category in categories]
        self.starts = np.cumsum([0, *sizes[:-1]]).astype(np.int32)
        self.table = self.add_weight(
            shape=(sum(sizes), width),
            initializer=uniform(seed, "category_table", bound=width**-0.5),
            name="table",
            autocast=False,
        )
        self.built = True

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Map int32 [B, m] to [B, m, W] in the compute dtype."""
        rows = tf.gather(self.table.value, ids + self.starts)
        return tf.cast(rows, self.compute_dtype)


class Head(keras.layers.Layer):
    """Layer norm, relu and a linear map to the logits, the last two in float32.

    The bias starts at `prior`, [C].
    """

    def __init__(
        self, width: int, prior: np.ndarray, *, seed: int, dtype: keras.DTypePolicy
    ) -> None:
        super().__init__(name="head", dtype=dtype, autocast=False)
        self.norm = LayerNorm(width, name="head_norm", dtype=dtype)
        self.kernel = self.add_weight(
            shape=(width, len(prior)),
            initializer=normal(seed, "head", deviation=HEAD_DEVIATION),
            name="kernel",
            autocast=False,
        )
        self.bias = self.add_weight(
            shape=prior.shape,
            initializer=keras.initializers.Constant(prior),
            name="bias",
            autocast=False,
        )
        self.built = True

    def call(self, token: tf.Tensor) -> tf.Tensor:
        """Map [B, W] to logits, float32 [B, C]."""
        known = tf.nn.relu(self.norm(tf.cast(token, tf.float32)))
        return tf.matmul(known, self.kernel.value) + self.bias.value
