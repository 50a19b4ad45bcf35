"""Which column a text or language model reads."""

import pytest

from components.text_choice import choose, not_read
from trainer.errors import SettingError

TABLE = {"id": "int", "title": "string", "body": "string", "stars": "string"}


def told(model="text", **changed):
    split = {"by": "hash", "column": "", "eval": 0.2}
    return {"model": model, "text": "", "label": "stars", "ignore": [], "split": split} | changed


def test_the_named_column_is_read():
    assert choose(TABLE, told(text="body")) == "body"
    assert choose(TABLE, told("pack.age:build", text="title")) == "title"


def test_the_only_column_of_texts_is_read_without_a_name():
    assert choose(TABLE, told(ignore=["title"])) == "body"
    assert choose({"id": "int", "body": "string"}, told("causal-lm", label="")) == "body"
    by_column = {"by": "column", "column": "title", "eval": 0.2}
    assert choose(TABLE, told(split=by_column)) == "body"


def test_documents_have_theirs():
    kinds = {"text": "string", "path": "string"}
    assert choose(kinds, told("causal-lm", label="")) == "text"
    assert choose(kinds, told("my:build")) == "text"
    assert not_read(kinds, told("causal-lm", label=""), "text") == []


@pytest.mark.parametrize(
    ("kinds", "changed", "message"),
    [
        (TABLE, {}, "several columns hold texts; it holds title, body; name the one"),
        ({"a": "int"}, {}, "no column holds texts"),
        (TABLE, {"text": "boddy"}, "no such column.*boddy.*title, body, stars"),
        (TABLE, {"text": "id"}, "the column holds numbers"),
    ],
)
def test_what_is_not_clear_is_refused(kinds, changed, message):
    with pytest.raises(SettingError, match=f"data.text: .*{message}"):
        choose(kinds, told(**changed))


def test_a_model_of_columns_has_no_text_and_reads_all():
    assert choose(TABLE, told("tabular")) == ""
    assert choose(TABLE, told("my:build")) == ""
    assert not_read(TABLE, told("tabular"), "") == []
    assert not_read(TABLE, told(text="body"), "body") == ["id", "title"]
