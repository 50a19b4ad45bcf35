"""Rows are cleaned as asked, counted by rule, and never without being asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from gate_cases import NULLS, case
from hypothesis import given, settings
from hypothesis import strategies as st

from components import example_gen, model_columns, readers, statistics
from components.cleaning import Cleaning, Rules, cleaned_batches
from trainer.errors import DataRefused, SettingError
from trainer.settings import CategoryFeature, Features, LabelFeature, NumberFeature

TEXT = 'c,x,y,label\n UA ,1,0.5,1\nUA,9,-7.5,0\n"   ",3,1.5,1\nUS,3,2.5,\nUA,9,-7.5,0\nDL,,4.5,1\n'


def cleaned(folder: Path, text: str = TEXT, **rules: Any) -> tuple[dict[str, list], dict]:
    """Return all rows after ExampleGen's cleaning, and what it counted, by both splits together."""
    path = folder / "data.csv"
    path.write_text(text)
    source = readers.inspect([path], NULLS)
    cleaning = Cleaning(Rules.of(rules), source.layout, "label")
    cleaning.find_duplicates(batch for part in source.parts for batch in source.read(part))
    rows = pa.Table.from_batches(cleaned_batches(source, cleaning)).to_pydict()
    told = generate(folder, path, rules)
    return rows, told


def generate(folder: Path, path: Path, rules: dict[str, Any]) -> dict[str, Any]:
    from tfx.types import standard_artifacts

    examples = standard_artifacts.Examples()
    examples.uri = str(folder / "examples")
    example_gen.generate(examples, {
        "files": [str(path)], "label": "label", "null_values": NULLS, "clean": rules,
        "split": {"by": "hash", "column": "", "eval": 0.3},
    }, None)  # fmt: skip
    return json.loads((folder / "examples" / "rows.json").read_text())


def test_without_rules_nothing_changes(tmp_path) -> None:
    rows, told = cleaned(tmp_path)
    assert rows["c"] == [" UA ", "UA", "   ", "US", "UA", "DL"]
    assert (told["cleaned"], told["rows_dropped"]) == ({}, 0)


def test_each_rule_changes_what_it_says_and_is_counted(tmp_path) -> None:
    rows, told = cleaned(
        tmp_path, trim=["c"], blank_to_missing=["*"], map={"c": {"US": "AA"}, "x": {"3": "4"}},
        clip={"y": [-1, 3]}, drop_unlabelled=True, drop_duplicates=True,
    )  # fmt: skip
    assert rows == {
        "c": ["UA", "UA", None, "DL"], "x": [1, 9, 4, None], "y": [0.5, -1.0, 1.5, 3.0],
        "label": [1, 0, 1, 1],
    }  # fmt: skip
    assert told["cleaned"] == {
        "trim:c": 2, "blank_to_missing:c": 1, "map:c": 1, "map:x": 2, "clip:y": 3,
        "drop_unlabelled": 1, "drop_duplicates": 1,
    }  # fmt: skip


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b"])), min_size=2),
       st.booleans())  # fmt: skip
def test_of_equal_rows_the_first_is_kept_and_rows_add_up(
    tmp_path_factory, rows, unlabelled
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = [(7, "c"), *rows]  # one row has all values, so that the columns' types are known
    text = "n,label\n" + "".join(f"{number},{label}\n" for number, label in rows)
    found, told = cleaned(folder, text, drop_duplicates=True, drop_unlabelled=unlabelled)
    labelled = [(n, label or None) for n, label in rows if label or not unlabelled]
    assert list(zip(found["n"], found["label"], strict=True)) == list(dict.fromkeys(labelled))
    (file,) = told["files"]
    assert file["rows"] == file["rows_refused"] + file["rows_dropped"] + file["rows_kept"]
    assert told["rows_read"] == len(rows) == sum(told["examples"].values()) + told["rows_dropped"]
    written = statistics.compute(str(folder / "examples"), ["train", "eval"])
    for name, one in written.items():
        # What was counted while writing is what the examples hold.
        counted = statistics.read_statistics(str(folder / "examples" / "statistics"), name)
        assert counted.num_examples == told["examples"][name]
        if counted.num_examples:
            assert counted == one.statistics()


def test_rows_of_several_parts_keep_their_numbers(tmp_path, monkeypatch) -> None:
    from components import csv_records

    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 64)
    text = "n,label\n" + "".join(f"{n % 50},{n % 2}\n" for n in range(200))
    found, told = cleaned(tmp_path, text, drop_duplicates=True)
    assert found["n"] == list(range(50))
    assert told["cleaned"] == {"drop_duplicates": 150}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"trim": ["z"]}, 'data.clean.trim: the data has no such column; it holds "z"'),
        ({"trim": ["x"]}, "data.clean.trim: the column is int, which this rule is not for"),
        ({"clip": {"c": [0, 1]}}, "data.clean.clip: the column is string"),
        ({"map": {"x": {"1": "one"}}}, "data.clean.map.x: a value is no int"),
    ],
)
def test_a_rule_for_a_column_that_is_not_there_is_refused(tmp_path, rules, said) -> None:
    with pytest.raises(SettingError) as caught:
        cleaned(tmp_path, **rules)
    assert str(caught.value).startswith(said)


def test_the_gate_sees_cleaned_rows_at_their_own_places(tmp_path) -> None:
    rows = [f"{'a' if n % 2 else ' a'},{n},{n // 2 % 2},{('train', 'eval')[n % 3 == 2]}"
            for n in range(40)]  # fmt: skip
    rows[4] = "a,4,,train"
    rows[11] = "odd ,11,1,eval"
    schema = tmp_path / "schema.pbtxt"
    schema.write_text("""
        feature { name: "c" type: BYTES string_domain { value: "a" } }
        feature { name: "x" type: INT } feature { name: "label" type: INT }
        feature { name: "split" type: BYTES }""")
    clean = {"trim": ["c"], "drop_unlabelled": True}
    text = "\n".join(["c,x,label,split", *rows]) + "\n"
    run = case(tmp_path, {"data.csv": text}, schema_file=str(schema), clean=clean)
    with pytest.raises(DataRefused, match=r'data.csv:13: column c .*"odd" \(1 row\)'):
        run.run()
    assert {(one["feature"], one["rows"]) for one in run.inspect() if one["where"]} == {("c", 1)}


def test_plain_columns_are_cleaned_as_the_data_were(tmp_path) -> None:
    import tensorflow as tf

    from trainer import export

    label = LabelFeature("label", "binary", "int", ("0", "1"), (0.5, 0.5))
    features = Features(
        (NumberFeature("x", "int", (0.0, 10.0), 5.0, 1.0),),
        (CategoryFeature("c", ("UA", "AA")), CategoryFeature("d", ("v",))),
        label,
    )  # fmt: skip
    rules = Rules(trim=("c",), blank_to_missing=("c",), map={"c": {"US": "AA"}, "x": {"3": ""}},
                  clip={"x": (1, 4)})  # fmt: skip
    served = model_columns.served_as_cleaned(features, rules)
    columns = {
        "x": tf.constant([0.0, 3.0, 9.0, float("nan")], tf.float64),
        "c": tf.constant([" UA\u2003", "\t ", "US", b"\xff"]),
        "d": tf.constant([" v", "", "v", "w"]),
    }
    values = export._read_columns(columns, served, export.column_keys(served))
    x, there = values["x"]
    assert there.numpy().tolist() == [True, False, True, False]
    assert x.numpy()[[0, 2]].tolist() == [1.0, 4.0]
    texts, there = values["c"]
    assert there.numpy().tolist() == [True, False, True, False]
    assert texts.numpy()[[0, 2]].tolist() == [b"UA", b"AA"]
    assert values["d"][0].numpy().tolist()[0] == b" v"


def test_blanks_are_the_same_characters_here_and_in_the_served_model() -> None:
    import tensorflow as tf

    from trainer.export import _BLANKS

    every = [chr(code) for code in range(1, 0x3100) if not 0xD800 <= code < 0xE000]
    trimmed = pc.utf8_trim_whitespace(pa.array(every)).to_pylist()
    replaced = tf.strings.regex_replace(tf.constant(every), f"^{_BLANKS}+", "").numpy()
    assert [one.decode() for one in replaced] == trimmed


def test_statistics_counted_while_writing_are_those_of_the_examples(
    flights_1000_rows, penguins_file, tmp_path
) -> None:
    for file in (flights_1000_rows, penguins_file):
        folder = tmp_path / file.stem
        path = folder / "data.csv"
        folder.mkdir()
        path.write_text(file.read_text().replace("late", "label").replace("species", "label"))
        generate(folder, path, {})
        examples, at_hand = str(folder / "examples"), str(folder / "examples" / "statistics")
        read = statistics.compute(examples, ["train", "eval"])
        for name, one in read.items():
            assert statistics.read_statistics(at_hand, name) == one.statistics()
            assert statistics.read_values(at_hand)[name] == one.distinct_values()
        statistics.write_statistics(examples, str(folder / "taken"), ["train", "eval"])
        assert statistics.read_values(str(folder / "taken")) == statistics.read_values(at_hand)
