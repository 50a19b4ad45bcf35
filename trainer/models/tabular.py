"""A Transformer over the columns of a row: a token a column, and one that asks.

Source: Gorishniy et al. 2021, arXiv:2106.11959 (FT-Transformer), with numbers through
piecewise-linear encodings (Gorishniy et al. 2022, arXiv:2203.05556).
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from trainer.losses import prior_logits
from trainer.models.blocks import Block, LayerNorm, fold_in, uniform, weight_seed
from trainer.precision import policy as policy_of
from trainer.recompute import recompute as recomputed
from trainer.settings import CategoryFeature, Features, ModelSettings, NumberFeature
from trainer.transform import FIRST_KNOWN_ID, encode_numbers, encoded_size

HEAD_DEVIATION = 0.02
"""Small, so that a fresh model says little more than its bias, the label's shares in train."""


def build(
    settings: ModelSettings, features: Features, *, policy: str, recompute: bool, seed: int
) -> keras.Model:
    """Return the model; its weights depend on `seed` alone (and on the shapes).

    But for the head's bias: it says how often each class is in the train split, so that the first
    loss is near the label's entropy. From 0, most updates on a rare class would go into the bias.

    Args:
        settings: layers, width, heads, dropout.
        features: the columns, in the order of the inputs, and the label with its shares.
        policy: float32, mixed_float16 or mixed_bfloat16.
        recompute: whether each block's activations are recomputed in the backward pass.
        seed: of the weights at the start.
    Raises: SettingError when there is no such policy.
    """
    return TabularTransformer(
        settings, features, dtype=policy_of(policy), recompute=recompute, seed=seed
    )


class TabularTransformer(keras.Model):
    """Columns to logits; see `build`."""

    def __init__(
        self,
        settings: ModelSettings,
        features: Features,
        *,
        dtype: keras.DTypePolicy,
        recompute: bool,
        seed: int,
    ) -> None:
        # Keras would cast float64 inputs to the compute dtype: numbers would pass through float16.
        super().__init__(name="tabular", dtype=dtype, autocast=False)
        self.dropout_rate, self.recompute = settings.dropout, recompute
        self.embeddings = [
            kind(columns, settings.width, seed=seed, dtype=dtype)
            for kind, columns in (
                (NumberTokens, features.numbers),
                (CategoryTokens, features.categories),
            )
            if columns
        ]
        self.asking = self.add_weight(
            shape=(settings.width,),
            initializer=uniform(seed, "asking", bound=settings.width**-0.5),
            name="asking",
            autocast=False,
        )
        self.blocks = [
            Block(settings, name=f"block_{layer}", seed=seed, dtype=dtype)
            for layer in range(settings.layers)
        ]
        self.head = Head(settings.width, prior_logits(features.label), seed=seed, dtype=dtype)
        self.built = True

    def call(
        self,
        inputs: dict[str, tf.Tensor],
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
        drops = training and self.dropout_rate > 0
        if drops and seed is None:
            raise ValueError("seed: training with dropout needs one, int32 [2]")
        tokens = self._tokens(inputs)
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks):
            # Only the asking token reaches the head, so the last block computes no other.
            run = _runner(block, training=training, first_only=layer == last)
            if self.recompute and training:
                run = recomputed(run)
            tokens = run(tokens, fold_in(seed, layer)) if drops else run(tokens)
        return self.head(tokens[:, 0])

    def _tokens(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return [B, 1 + n + m, W] in the compute dtype, the asking token first."""
        columns = [embedding(inputs) for embedding in self.embeddings]
        asking = tf.cast(self.asking.value, self.compute_dtype)
        rows = tf.shape(inputs["number_values"])[0]
        return tf.concat([tf.tile(asking[None, None], [rows, 1, 1]), *columns], axis=1)


class NumberTokens(keras.layers.Layer):
    """A token a number: its piecewise-linear encoding through a linear map of its own."""

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

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return [B, n, W] in the compute dtype."""
        encoded = encode_numbers(self.numbers, inputs["number_values"], inputs["number_present"])
        kernel = tf.cast(self.kernel.value, self.compute_dtype)
        tokens = tf.einsum("bnk,nkw->bnw", tf.cast(encoded, self.compute_dtype), kernel)
        bias = tf.cast(self.bias.value, self.compute_dtype)
        return tokens + tf.reshape(bias, [len(self.numbers), self.width])


class CategoryTokens(keras.layers.Layer):
    """A token a text column: one table for all of them, each column with its own range of rows."""

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

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return [B, m, W] in the compute dtype."""
        rows = tf.gather(self.table.value, inputs["category_ids"] + self.starts)
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
        start = keras.initializers.RandomNormal(
            stddev=HEAD_DEVIATION, seed=weight_seed(seed, "head")
        )
        self.kernel = self.add_weight(
            shape=(width, len(prior)), initializer=start, name="kernel", autocast=False
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


def _runner(block: Block, *, training: bool, first_only: bool):
    """Return the block as a function of tensors alone, which is what recomputation can replay."""

    def run(tokens: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        return block(tokens, seed=seed, training=training, first_only=first_only)

    return run
