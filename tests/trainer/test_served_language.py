"""An exported language model beside the model it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.export import export
from trainer.models.built import Built
from trainer.settings import Features, LabelFeature, TextFeature
from trainer.text_transform import word_table
from trainer.tokens import token_ids

pytestmark = pytest.mark.slow
TEXTS = ["", "a", "ab", "abcab", "aé", "abcabcab"]


class Bigram(keras.Model):
    """A language model that looks at one token: logits are a row of a table."""

    def __init__(self, size: int) -> None:
        super().__init__()
        values = np.random.default_rng(3).normal(size=(size, size)).astype(np.float32)
        self.table = self.add_weight(
            shape=(size, size), initializer=keras.initializers.Constant(values), name="table"
        )
        self.built = True

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.convert_to_tensor(self.table), tokens)


def _built(feature: TextFeature) -> Built:
    model = Bigram(token_ids(feature).size)

    def predict(batch: Any) -> tf.Tensor:
        tokens, lengths = batch["tokens"], batch["lengths"]
        logits, predicted = model(tokens[:, :-1]), tokens[:, 1:]
        counts = tf.cast(tf.range(tf.shape(predicted)[1]) < lengths[:, None], tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(predicted, logits)
        right = tf.cast(tf.argmax(logits, 2, tf.int32) == predicted, tf.float32)
        return tf.reduce_sum(tf.stack([losses * counts, right * counts], 2), 1)

    def next_token(tokens: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        return tf.gather(model(tokens), lengths - 1, batch_dims=1)

    return Built(model, lambda *_: (0, 0), predict, 1, next_token)  # type: ignore[arg-type]


def _example(text: str | None) -> bytes:
    values = [] if text is None else [text.encode()]
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    return tf.train.Example(
        features=tf.train.Features(feature={"body": feature})
    ).SerializeToString()


@pytest.mark.parametrize("vocabulary", [(), ("a", "ab", "é")])
def test_each_text_is_scored_by_itself_and_continued(
    tmp_path: Path, vocabulary: tuple[str, ...]
) -> None:
    feature = TextFeature("body", 3, vocabulary)
    built, ids = _built(feature), token_ids(feature)
    features = Features((), (), LabelFeature("body", "causal-lm", "string"), feature)
    export(built, features, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model"))
    answers = served.signatures["columns"](body=tf.constant(TEXTS))
    again = served.signatures["serving_default"](
        examples=tf.constant([_example(text or None) for text in TEXTS])
    )
    for name, value in answers.items():
        np.testing.assert_array_equal(value, again[name])
    table = np.asarray(built.model.weights[0])
    for row, text in enumerate(TEXTS):
        tokens = _tokens(text, vocabulary)
        losses = [_cross_entropy(table[one], after)
                  for one, after in zip([ids.end, *tokens], tokens, strict=False)]  # fmt: skip
        assert answers["tokens"][row] == len(tokens)
        np.testing.assert_allclose(answers["loss"][row], sum(losses) / max(len(losses), 1), 1e-5)
        last = table[[ids.end, *tokens][-1]]
        np.testing.assert_allclose(
            answers["probabilities"][row], np.exp(last) / np.exp(last).sum(), 1e-4
        )
        assert answers["next_token"][row] == np.argmax(last)
        if not vocabulary:
            likeliest = int(np.argmax(last))
            expected = b"" if likeliest == 256 else bytes([likeliest])
            assert answers["next_text"][row].numpy() == expected
    has_bits = "bits_per_byte" in answers
    assert has_bits is (not vocabulary)
    if has_bits:
        np.testing.assert_allclose(
            answers["bits_per_byte"], np.asarray(answers["loss"]) / np.log(2), 1e-6
        )


def _tokens(text: str, vocabulary: tuple[str, ...]) -> list[int]:
    if not vocabulary:
        return list(text.encode())
    return [] if not text else [3 + vocabulary.index(text) if text in vocabulary else 1]


def _cross_entropy(logits: np.ndarray, token: int) -> float:
    return float(np.log(np.exp(logits.astype(np.float64)).sum()) - logits[token])


def test_bytes_need_no_table() -> None:
    assert word_table(TextFeature("t", 3)) is None
