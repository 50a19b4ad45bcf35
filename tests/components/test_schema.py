from __future__ import annotations

from pathlib import Path

import pytest
from tensorflow_metadata.proto.v0 import schema_pb2

from components import schema, statistics
from trainer.errors import SettingError

TABLE = {
    "color": ["red", "blue", None, "red"],
    "x": [1, 2, 3, 4],
    "share": [0.5, None, 1.5, 2.5],
    "label": [0, 1, 1, 0],
}


@pytest.fixture(scope="module")
def statistics_of_table(tmp_path_factory, write_examples) -> str:
    """Train has red and blue, eval has green as well."""
    folder = tmp_path_factory.mktemp("schema")
    splits = {"train": TABLE, "eval": {**TABLE, "color": ["green"] * 4}}
    examples = write_examples(folder / "examples", splits)
    statistics.write_statistics(examples, str(folder / "statistics"), ["train", "eval"])
    return str(folder / "statistics")


def write(statistics_folder: str, folder: Path, text: str | None) -> schema_pb2.Schema:
    path = folder / "given.pbtxt"
    if text is not None:
        path.write_text(text)
    named = "infer" if text is None else str(path)
    schema.write_schema(statistics_folder, str(folder / "schema"), schema=named, label="label")
    return schema.read_schema(str(folder / "schema"))


def test_the_schema_is_inferred_from_train_alone(statistics_of_table, tmp_path) -> None:
    inferred = write(statistics_of_table, tmp_path, None)
    features = {one.name: one for one in inferred.feature}
    assert list(features) == ["color", "label", "share", "x"]
    assert [features[name].type for name in features] == [
        schema_pb2.BYTES, schema_pb2.INT, schema_pb2.FLOAT, schema_pb2.INT,
    ]  # fmt: skip
    assert list(inferred.string_domain[0].value) == ["blue", "red"]
    assert features["x"].presence.min_fraction == 1
    assert features["color"].presence.min_fraction == 0


def test_the_same_rows_in_another_order_give_the_same_text(
    statistics_of_table, tmp_path, write_examples
) -> None:
    shuffled = {name: values[::-1] for name, values in reversed(TABLE.items())}
    examples = write_examples(tmp_path / "examples", {"train": shuffled}, shards=2)
    statistics.write_statistics(examples, str(tmp_path / "statistics"), ["train"])
    texts = []
    for number, place in enumerate((statistics_of_table, str(tmp_path / "statistics"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(place, folder, None)
        texts.append((folder / "schema" / "schema.pbtxt").read_text())
    assert texts[0] == texts[1]


def test_a_named_schema_is_taken_as_it_is(statistics_of_table, tmp_path) -> None:
    text = '# reviewed\nfeature { name: "label" type: INT }\n'
    write(statistics_of_table, tmp_path, text)
    assert (tmp_path / "schema" / "schema.pbtxt").read_text() == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("feature { nam: 1 }", "no schema: 1:11"),
        ('feature { name: "x" }', "no feature for the label label"),
        ("", "no feature for the label label"),
    ],
)
def test_a_schema_file_that_cannot_be_used_names_the_key(
    statistics_of_table, tmp_path, text, words
) -> None:
    with pytest.raises(SettingError) as refused:
        write(statistics_of_table, tmp_path, text)
    assert refused.value.where == "validation.schema"
    assert "given.pbtxt" in refused.value.holds
    assert words in str(refused.value)
    assert not (tmp_path / "schema").exists()


def test_a_schema_file_that_is_not_there_names_the_key(statistics_of_table, tmp_path) -> None:
    place = str(tmp_path / "none.pbtxt")
    with pytest.raises(SettingError, match=r"validation.schema: .*No such file.*none.pbtxt"):
        schema.write_schema(statistics_of_table, str(tmp_path / "s"), schema=place, label="label")
    (tmp_path / "none.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not UTF-8"):
        schema.write_schema(statistics_of_table, str(tmp_path / "s"), schema=place, label="label")
