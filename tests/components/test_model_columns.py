"""Examples with texts, through statistics and schema to what the trainer reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components import model_columns, schema, statistics
from trainer import journal
from trainer.batches import Batches, Columns
from trainer.errors import SettingError
from trainer.settings import ModelSettings, to_json

LONG = "long text " * 200
TRAIN = {
    "body": ["One fish", None, "two fish, red fish", LONG] * 3,
    "n": list(range(12)),
    "kind": ["a", "b", "a", "b"] * 3,
}
EVAL = {"body": ["blue fish", ""], "n": [1, 2], "kind": ["b", "a"]}
SPLIT = {"by": "hash", "column": "", "eval": 0.2}


@pytest.fixture
def written(tmp_path: Path, write_examples: Any, monkeypatch: pytest.MonkeyPatch):
    """Writes the columns that a model of this kind reads; returns them, and what was said."""
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv("HEADRACE_EVENTS", str(events))

    def write(model: ModelSettings, *, label: str, text: str = "", eval_=EVAL):
        examples = write_examples(tmp_path / "examples", {"train": TRAIN, "eval": eval_})
        choice = {"model": model.kind, "text": text, "label": label, "ignore": [], "split": SPLIT}
        places = {"statistics": str(tmp_path / "statistics"), "schema": str(tmp_path / "schema")}
        statistics.write_statistics(examples, places["statistics"], ["train", "eval"])
        schema.write_schema(*places.values(), schema="infer", label=label, choice=choice)
        settings = {
            "label": label, "task": "auto", "ignore": [], "choice": choice,
            "model": to_json(model),
        }  # fmt: skip
        described = model_columns.write_columns(
            tmp_path / "columns", examples=examples, settings=settings, **places
        )
        said = journal.read(events)[0] if events.exists() else []
        told = [one["message"] for one in said if one["event"] == "warning"]
        return described, tmp_path / "columns", told

    return write


def test_a_language_model_reads_windows_of_its_text_alone(written) -> None:
    model = ModelSettings(kind="causal-lm", sequence=16)
    described, folder, said = written(model, label="", text="body")
    assert (described.numbers, described.categories) == ((), ())
    assert (described.label.task, described.label.name) == ("causal-lm", "body")
    columns = Columns.open(folder / "train", described)
    text = [one for one in TRAIN["body"] if one]
    stream = sum(len(one) + 1 for one in text)
    assert columns.rows == -(-(stream - 1) // 16)
    assert columns.label[:, 0].sum() == stream - 1
    assert set(Batches(columns, seed=1, global_batch=4).at(0)) == {"tokens", "lengths", "weight"}
    assert said == ["a causal-lm model reads column body alone; it does not read kind, n"]


def test_a_text_model_reads_words_and_its_label(written) -> None:
    model = ModelSettings(kind="text", sequence=3, vocabulary="words", vocabulary_size=3)
    described, folder, said = written(model, label="kind", text="body")
    assert described.text is not None
    # Six hundred of each of the long ones; then what the short ones have.
    assert described.text.vocabulary == ("long", "text", "fish")
    columns = Columns.open(folder / "eval", described)
    tokens = columns.inputs(np.arange(2))["tokens"]
    assert tokens.tolist() == [[1, 5, 2], [2, 0, 0]]
    assert columns.label.tolist() == [1, 0]
    assert said[0] == "a text model reads column body alone; it does not read n"
    assert said[1] == (
        "6 of 12 texts of the train split are longer than model.sequence (3 words) and are cut "
        "after it; the longest has 400"
    )
    assert len(said) == 2


def test_a_model_of_one_s_own_reads_the_text_beside_the_other_columns(written) -> None:
    model = ModelSettings(kind="mine:build", sequence=4)
    described, folder, _ = written(model, label="kind", text="body")
    assert [one.name for one in described.numbers] == ["n"]
    assert described.text is not None
    assert set(Columns.open(folder / "train", described).inputs(np.arange(2))) == {
        "number_values", "number_present", "category_ids", "tokens", "lengths",
    }  # fmt: skip


def test_a_tabular_model_does_not_read_long_texts_and_says_so(written) -> None:
    described, folder, said = written(ModelSettings(), label="kind")
    assert described.text is None
    assert described.categories == ()
    assert said == [
        'column body holds long texts, which this model does not read; model.kind = "text" does'
    ]
    assert Columns.open(folder / "train", described).rows == 12


def test_a_split_without_a_token_is_refused(written) -> None:
    nothing = {"body": [None, None], "n": [1, 2], "kind": ["a", "b"]}
    model = ModelSettings(kind="causal-lm", vocabulary="words")
    with pytest.raises(SettingError, match="the eval split has no token to predict"):
        written(model, label="", text="body", eval_=nothing)


def test_a_sequence_longer_than_all_texts_is_said(written) -> None:
    _, _, said = written(ModelSettings(kind="text", sequence=4096), label="kind", text="body")
    assert said[1] == (
        "the longest text has 2,000 bytes, so model.sequence = 2001 would do and take less time "
        "than 4,096"
    )


def test_long_texts_are_neither_counted_nor_kept(written, tmp_path: Path) -> None:
    written(ModelSettings(kind="causal-lm"), label="", text="body")
    values = json.loads((tmp_path / "statistics" / "values.json").read_text())
    assert set(values["train"]) == {"n", "kind"}
    found = statistics.read_statistics(str(tmp_path / "statistics"), "train")
    body = next(one for one in found.features if one.path.step[0] == "body").string_stats
    assert (body.unique, len(body.top_values), len(body.rank_histogram.buckets)) == (0, 0, 0)
    lengths = [len(one) for one in TRAIN["body"] if one]
    assert body.avg_length == pytest.approx(sum(lengths) / len(lengths))
    assert (body.common_stats.num_non_missing, body.common_stats.num_missing) == (9, 3)
    text = (tmp_path / "schema" / "schema.pbtxt").read_text()
    assert "fish" not in text
    assert "natural_language_domain" in text
