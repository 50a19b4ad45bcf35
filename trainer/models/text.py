"""A Transformer over the tokens of a text, and a token before them that asks for the label.

Every token sees the asking one and the real ones; the head reads what became of the asking one
(Devlin et al. 2019, arXiv:1810.04805, here with pre-norm blocks).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import keras
import tensorflow as tf

from trainer.losses import prior_logits
from trainer.models.blocks import Block, dropout, drops, fold_in
from trainer.models.built import Built
from trainer.models.causal_lm import Embedding, text_of
from trainer.models.running import Blocks
from trainer.models.tabular import Asking, Head, label_sums
from trainer.precision import policy as policy_of
from trainer.settings import Features, ModelSettings, Techniques
from trainer.shard import Parameters
from trainer.tokens import token_ids


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

    Args:
        settings: layers, width, heads, dropout.
        features: the text, and the label with its shares.
        techniques: recompute and attention.
        policy: float32, mixed_float16 or mixed_bfloat16.
        seed: of the weights at the start.
        parameters: where the weights are when no worker holds all of them; None: each holds all.
    Raises: SettingError when there is no such policy.
    """
    blocks, dtype = Blocks(techniques.recompute, parameters), policy_of(policy)
    model = blocks.build(
        lambda: TextTransformer(
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
        tokens=1 + text_of(features).sequence,
        width=settings.width,
        attends=True,
    )


class TextTransformer(keras.Model):
    """Tokens to logits; see `build`."""

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
        super().__init__(name="text", dtype=dtype, autocast=False)
        self.dropout_rate, self.run = settings.dropout, blocks
        text = text_of(features)
        self.embedding = Embedding(
            token_ids(text).size, text.sequence, settings.width, seed=seed, dtype=dtype
        )
        self.asking = Asking(settings.width, seed=seed, dtype=dtype)
        self.blocks = [
            Block(
                settings, name=f"block_{layer}", seed=seed, dtype=dtype,
                feed="squared", attention=attention,
            )
            for layer in range(settings.layers)
        ]  # fmt: skip
        self.head = Head(settings.width, prior_logits(features.label), seed=seed, dtype=dtype)
        self.built = True

    def call(
        self,
        inputs: Mapping[str, tf.Tensor],
        seed: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Return the logits of a batch.

        Args:
            inputs: ``tokens`` int32 [B, S] and ``lengths`` int32 [B]; others are not read.
            seed: int32 [2], of dropout; not read where nothing is dropped.
            training: whether dropout is on.
        Returns: float32 [B, C].

        Raises:
            ValueError: when training with dropout and no seed.
        """
        is_dropping = drops(self.dropout_rate, seed, training=training)
        x = self.run.once(self.embedding, inputs["tokens"])
        if is_dropping:
            x = dropout(x, fold_in(seed, len(self.blocks)), rate=self.dropout_rate)
        x = self.run.once(self.asking, x)
        seen = inputs["lengths"] + 1
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks):
            # Without dropout no seed is read.
            place = fold_in(seed, layer) if is_dropping else tf.zeros([2], tf.int32)
            x = self.run.run(
                layer, block, x, place, seen, training=training, first_only=layer == last
            )
        return self.run.once(self.head, x[:, 0])
