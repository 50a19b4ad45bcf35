"""A language model: the tokens up to each place of a window to the next one.

Token and learned position embeddings, causal pre-norm blocks, a last layer norm and a linear map of
its own to the vocabulary (Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners", with relu squared for GELU and a head that shares no weights with the embedding: shared
ones would be gathered twice where they are cut up over workers).
"""

from __future__ import annotations

from typing import Any, Literal

import keras
import tensorflow as tf

from trainer.models.blocks import Block, LayerNorm, dropout, drops, fold_in, normal
from trainer.models.built import Batch, Built, Seed
from trainer.models.running import Blocks
from trainer.precision import policy as policy_of
from trainer.settings import Features, ModelSettings, Techniques, TextFeature
from trainer.shard import Parameters
from trainer.token_loss import pick_chunk, plain_token_loss_sum, token_loss_sum
from trainer.tokens import token_ids

START_DEVIATION = 0.02
"""Of embeddings and of the head, so that the first loss is near ln(vocabulary)."""


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
        features: the text.
        techniques: recompute, attention and token_loss.
        policy: float32, mixed_float16 or mixed_bfloat16.
        seed: of the weights at the start.
        parameters: where the weights are when no worker holds all of them; None: each holds all.
    Raises: SettingError when there is no such policy.
    """
    text = text_of(features)
    blocks, dtype = Blocks(techniques.recompute, parameters), policy_of(policy)
    model = blocks.build(
        lambda: LanguageModel(
            settings, text, dtype=dtype, seed=seed, blocks=blocks,
            attention=techniques.attention, token_loss=techniques.token_loss,
        )
    )  # fmt: skip
    return Built(
        model=model,
        sums=model.sums,
        predict=model.told,
        blocks=settings.layers,
        next_token=model.next_token,
        tokens=text.sequence,
        width=settings.width,
        attends=True,
    )


def text_of(features: Features) -> TextFeature:
    """Return the text that a model reads.

    Raises:
        ValueError: when there is none.
    """
    if features.text is None:
        raise ValueError("a model of text needs a text column")
    return features.text


class LanguageModel(keras.Model):
    """Windows of tokens to losses; see `build`."""

    def __init__(
        self,
        settings: ModelSettings,
        text: TextFeature,
        *,
        dtype: keras.DTypePolicy,
        seed: int,
        blocks: Blocks,
        attention: Literal["plain", "chunked"],
        token_loss: Literal["plain", "chunked"],
    ) -> None:
        super().__init__(name="causal_lm", dtype=dtype, autocast=False)
        self.dropout_rate, self.run, self.token_loss = settings.dropout, blocks, token_loss
        vocabulary = token_ids(text).size
        self.embedding = Embedding(
            vocabulary, text.sequence, settings.width, seed=seed, dtype=dtype
        )
        self.blocks = [
            Block(
                settings, name=f"block_{layer}", seed=seed, dtype=dtype,
                feed="squared", attention=attention, causal=True,
            )
            for layer in range(settings.layers)
        ]  # fmt: skip
        self.head = TokenHead(settings.width, vocabulary, seed=seed, dtype=dtype)
        self.built = True

    def call(
        self, tokens: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tf.Tensor:
        """Return what the head reads, [B, S, W] in the compute dtype.

        Args:
            tokens: int32 [B, S].
            seed: int32 [2], of dropout; not read where nothing is dropped.
            training: whether dropout is on.

        Raises:
            ValueError: when training with dropout and no seed.
        """
        is_dropping = drops(self.dropout_rate, seed, training=training)
        x = self.run.once(self.embedding, tokens)
        if is_dropping:
            x = dropout(x, fold_in(seed, len(self.blocks)), rate=self.dropout_rate)
        for layer, block in enumerate(self.blocks):
            seeds = [fold_in(seed, layer)] if is_dropping else []
            x = self.run.run(layer, block, x, *seeds, training=training)
        return x

    def sums(self, batch: Batch, seed: Seed, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the loss of the real tokens in nats, and how many they are.

        Args:
            batch: ``tokens`` int32 [B, S + 1], ``lengths`` int32 [B], next tokens that are real,
                and ``weight``.
            seed: int32 [2], of dropout.
            training: whether dropout is on.
        """
        labels = batch["tokens"][:, 1:]
        weights = _real(batch) * batch["weight"][:, None]
        hidden = self(batch["tokens"][:, :-1], seed=seed, training=training)
        loss = self.run.once(
            self.head, hidden, tf.reshape(labels, [-1]), tf.reshape(weights, [-1]),
            task=f"{self.token_loss}_loss",
        )  # fmt: skip
        return loss, tf.reduce_sum(weights)

    def told(self, batch: Batch) -> tf.Tensor:
        """Return the loss in nats and the right ones of each window's next tokens, float32 [B, 2].

        Args:
            batch: ``tokens`` int32 [B, S + 1] and ``lengths`` int32 [B].
        """
        labels, real = batch["tokens"][:, 1:], _real(batch)
        hidden = self(batch["tokens"][:, :-1])
        by_token = self.run.once(self.head, hidden, tf.reshape(labels, [-1]), task="told")
        by_window = tf.reshape(by_token, [-1, labels.shape[1], 2])
        return tf.reduce_sum(by_window * real[:, :, None], axis=1)

    def next_token(self, tokens: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Return the logits of the token after the first `lengths`, float32 [B, V].

        Args:
            tokens: int32 [B, S].
            lengths: int32 [B], 1 to S.
        """
        last = tf.gather(self(tokens), lengths - 1, batch_dims=1)
        return self.run.once(self.head, last, task="logits")


def _real(batch: Batch) -> tf.Tensor:
    """Return 1 for each next token that is real and 0 for the others, float32 [B, S]."""
    return tf.sequence_mask(batch["lengths"], batch["tokens"].shape[1] - 1, tf.float32)


class Embedding(keras.layers.Layer):
    """A token's row plus its place's row."""

    def __init__(
        self, vocabulary: int, places: int, width: int, *, seed: int, dtype: keras.DTypePolicy
    ) -> None:
        super().__init__(name="embedding", dtype=dtype, autocast=False)
        self.tokens, self.places = (
            self.add_weight(
                shape=(rows, width),
                initializer=normal(seed, f"embedding/{name}", deviation=START_DEVIATION),
                name=name,
                autocast=False,
            )
            for name, rows in (("tokens", vocabulary), ("places", places))
        )
        self.built = True

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Map int32 [B, S] to [B, S, W] in the compute dtype; S is at most the places."""
        rows = tf.gather(self.tokens.value, ids)
        return tf.cast(rows + self.places.value[: ids.shape[1]], self.compute_dtype)


class TokenHead(keras.layers.Layer):
    """Layer norm and the map to the vocabulary, with what is asked of the logits.

    They are asked for in here, so that the weights need be there in here alone.
    """

    def __init__(self, width: int, vocabulary: int, *, seed: int, dtype: keras.DTypePolicy) -> None:
        super().__init__(name="head", dtype=dtype, autocast=False)
        self.norm = LayerNorm(width, name="head/norm", dtype=dtype)
        self.kernel = self.add_weight(
            shape=(width, vocabulary),
            initializer=normal(seed, "head", deviation=START_DEVIATION),
            name="kernel",
            autocast=False,
        )
        self.built = True

    def call(
        self,
        hidden: tf.Tensor,
        *asked: tf.Tensor,
        task: Literal["logits", "plain_loss", "chunked_loss", "told"],
    ) -> Any:
        """Answer one of several questions.

        Args:
            hidden: [..., W]; T tokens in all.
            asked: labels int32 [T], but for ``logits``; of the losses also weights float32 [T].
            task: ``logits``: float32 [T, V]. ``plain_loss`` and ``chunked_loss``: the sum of the
                weighed losses, float32 scalar. ``told``: loss in nats and whether the likeliest
                token is right (1 or 0), float32 [T, 2].
        """
        flat = tf.reshape(self.norm(hidden), [-1, hidden.shape[-1]])
        kernel = tf.cast(self.kernel.value, flat.dtype)
        if task == "logits":
            return tf.cast(tf.matmul(flat, kernel), tf.float32)
        if task == "plain_loss":
            return plain_token_loss_sum(flat, kernel, *asked)
        chunk = pick_chunk(kernel.shape[1])
        if task == "chunked_loss":
            return token_loss_sum(flat, kernel, *asked, chunk=chunk)
        return _told(flat, kernel, *asked, chunk=chunk)


def _told(hidden: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, *, chunk: int) -> tf.Tensor:
    """Return ``told`` of `TokenHead`, with the logits of `chunk` tokens at a time."""
    count = tf.shape(labels)[0]

    def one(start: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        label = labels[start : start + chunk]
        logits = tf.cast(tf.matmul(hidden[start : start + chunk], kernel), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        right = tf.argmax(logits, axis=1, output_type=tf.int32) == label
        said = tf.stack([losses, tf.cast(right, tf.float32)], axis=1)
        return start + chunk, found.write(start // chunk, said)

    empty = tf.TensorArray(
        tf.float32, size=(count + chunk - 1) // chunk, element_shape=[None, 2], infer_shape=False
    )
    _, found = tf.while_loop(
        lambda start, _: start < count, one, (tf.constant(0), empty), parallel_iterations=1
    )
    return found.concat()
