"""Files through the work of all nodes before the gate, and through the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_cases import Case, case, case_of

from components import schema, schema_file, split, statistics
from trainer import journal
from trainer.errors import DataRefused


def table(header: str, *groups: tuple[str, int]) -> str:
    """Return CSV text: each group is a row and how often it occurs."""
    return "\n".join([header, *(row for row, times in groups for _ in range(times))]) + "\n"


GOOD = (("red,{n},0,train", 10), ("blue,{n},1,train", 10), ("red,{n},1,eval", 5))


def good(header: str = "color,x,label,split") -> str:
    rows = [row.format(n=n) for row, times in GOOD for n in range(times)]
    return "\n".join([header, *rows]) + "\n"


def test_good_data_passes_and_the_verdict_says_so(tmp_path, monkeypatch) -> None:
    run = case(tmp_path, {"data.csv": good()})
    monkeypatch.setenv("HEADRACE_EVENTS", str(tmp_path / "events.jsonl"))
    run.run()
    assert json.loads((tmp_path / "verdict" / "anomalies.json").read_text()) == []
    assert journal.read(tmp_path / "events.jsonl")[0] == []


def eval_of_its_own(folder: Path, **settings) -> Case:
    """Case data-14: half of eval is green, 90 % of it has no x, and it has no column x2."""
    train = table("color,x,x2,label,split", ("red,1,5,0,train", 20), ("blue,2,6,1,train", 20))
    eval_ = table(
        "color,x,label,split",
        ("green,,0,eval", 5), ("red,,1,eval", 4), ("blue,-3,0,eval", 1),
    )  # fmt: skip
    return case(folder, {"train.csv": train, "eval.csv": eval_}, **settings)


def test_anomalies_of_eval_stop_the_run_and_name_rows(tmp_path, monkeypatch) -> None:
    run = eval_of_its_own(tmp_path)
    monkeypatch.setenv("HEADRACE_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.setenv("HEADRACE_RUN_DIR", str(tmp_path / "run"))
    with pytest.raises(DataRefused) as refused:
        run.run()
    found = {(one["feature"], one["kind"]): one for one in run.inspect()}
    assert set(found) == {
        ("color", "UNEXPECTED_VALUES"), ("x", "MISSING_VALUES"), ("x2", "MISSING_VALUES"),
        ("", "FILES_DIFFER"),
    }  # fmt: skip
    differ = found["", "FILES_DIFFER"]
    assert (differ["severity"], differ["rows"], differ["where"]) == ("warn", 10, ["eval.csv"])
    assert differ["message"] == "column x2 is not in file eval.csv, and so missing there"
    assert all(
        one["split"] == "eval" and one["severity"] == "stop"
        for one in found.values()
        if one is not differ
    )
    green = found["color", "UNEXPECTED_VALUES"]
    assert green["rows"] == 5
    assert green["where"] == [f"eval.csv:{line}" for line in range(2, 7)]
    assert green["values"] == [{"value": '"green"', "rows": 5}]
    assert found["x", "MISSING_VALUES"]["rows"] == 9
    assert found["x2", "MISSING_VALUES"]["rows"] == 10
    assert str(refused.value).startswith(
        "eval.csv:2: column x2 has no value where the schema asks for one in 10 rows (10 of eval)"
    )
    assert "and 2 more anomalies" in str(refused.value)
    told = [one for one in journal.read(tmp_path / "events.jsonl")[0] if one["event"] == "anomaly"]
    kept = json.loads((tmp_path / "run" / "anomalies.json").read_text())
    assert [one["feature"] for one in told] == [one["feature"] for one in kept]
    assert kept == list(found.values())


def test_as_warnings_the_same_anomalies_let_the_run_go_on(tmp_path) -> None:
    run = eval_of_its_own(tmp_path, on_anomaly="warn")
    run.run()
    kept = json.loads((tmp_path / "verdict" / "anomalies.json").read_text())
    assert [one["severity"] for one in kept] == ["warn"] * 4
    assert {one["rows"] for one in kept} == {5, 9, 10}


def test_without_the_source_rows_are_counted_and_places_are_unknown(tmp_path) -> None:
    rules = {"MISSING_VALUES": "ignore", "FILES_DIFFER": "ignore"}
    run = eval_of_its_own(tmp_path, rules=rules)
    (tmp_path / "eval.csv").unlink()
    (only,) = run.inspect()
    assert (only["rows"], only["where"], only["values"]) == (
        5,
        [],
        [{"value": '"green"', "rows": 5}],
    )


def frozen(folder: Path, text: str) -> str:
    """Write the schema that this data has."""
    folder.mkdir()
    first = case(folder, {"first.csv": text})
    return str(Path(first.data.schema) / "schema.pbtxt")


def test_new_values_in_a_later_file_are_refused_by_a_frozen_schema(tmp_path) -> None:
    path = frozen(tmp_path / "first", good())
    later = good().replace("blue,3,", "ZZ,3,").replace("red,3,1,eval", "ZZ,3,1,eval")
    run = case(tmp_path, {"later.csv": later}, schema_file=path)
    with pytest.raises(DataRefused) as refused:
        run.run()
    assert str(refused.value).startswith(
        "later.csv:15: column color holds values that the schema does not list in 2 rows (1 of "
        'train, 1 of eval) (also later.csv:25); it holds "ZZ" (2 rows); correct these rows'
    )


def test_text_in_three_rows_of_a_number_column_is_found_with_its_places(tmp_path) -> None:
    path = frozen(tmp_path / "first", good())
    later = good().replace("red,4,0", "red,far,0").replace("blue,5,", "blue,n/a,")
    later = later.replace("red,2,1,eval", "red,007,1,eval").replace("red,1,0", "red,NA,0")
    run = case(tmp_path, {"later.csv": later}, schema_file=path, rules={"MISSING_VALUES": "ignore"})
    found = [one for one in run.inspect() if one["feature"] == "x"]
    assert {one["kind"] for one in found} == {"WRONG_TYPE"}
    assert [(one["split"], one["rows"], one["where"]) for one in found] == [
        ("train", 2, ["later.csv:6", "later.csv:17"]),
        ("eval", 1, ["later.csv:24"]),
    ]
    assert found[0]["message"].startswith(
        "column x does not hold a whole number as the schema says"
    )
    assert found[0]["values"] == [{"value": '"n/a"', "rows": 1}, {"value": '"far"', "rows": 1}]


def test_a_column_that_is_gone_is_named(tmp_path) -> None:
    path = frozen(tmp_path / "first", good())
    later = "\n".join(line.split(",", 1)[1] for line in good().splitlines()) + "\n"
    with pytest.raises(DataRefused, match="column color is in the schema, but not in the data"):
        case(tmp_path, {"later.csv": later}, schema_file=path).run()


def test_places_of_parquet_are_rows(tmp_path) -> None:
    path = tmp_path / "data.parquet"
    rows = [line.split(",") for line in good().splitlines()]
    columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    colors = [*columns["color"][:-1], "green"]
    pq.write_table(
        pa.table({**{name: list(column) for name, column in columns.items()}, "color": colors}),
        path,
    )
    (only,) = case_of(tmp_path, [path]).inspect()
    assert (only["rows"], only["where"]) == (1, ["data.parquet:row 25"])


def test_a_blank_in_a_whole_number_column_is_a_missing_value(tmp_path) -> None:
    """Case data-3: presence of 2 in 3 is enough for min_fraction 0.5, not for 1.0."""
    text = "f1,f2,label,split\n0,0,0,train\n,1,1,train\n1,1,1,train\n1,1,1,eval\n"
    first = case(tmp_path, {"data.csv": text})
    features = statistics.read_statistics(first.data.statistics, "train").features
    common = next(one for one in features if one.path.step[0] == "f1").num_stats.common_stats
    assert (common.num_missing, common.num_non_missing) == (1, 2)
    (tmp_path / "examples" / "rows.json").unlink()
    untold = statistics.compute(first.data.examples, ["train"])["train"].statistics()
    assert untold.features[0].num_stats.common_stats.num_missing == 1
    assert [one for one in first.inspect() if one["severity"] == "stop"] == []
    parsed = schema.read_schema(first.data.schema)
    asked = next(one for one in parsed.feature if one.name == "f1").presence
    for least, rows in ((0.5, []), (1.0, [1])):
        asked.min_fraction = least
        path = tmp_path / f"{least}.pbtxt"
        path.write_text(schema_file.schema_text(parsed))
        folder = tmp_path / str(least)
        folder.mkdir()
        run = case(folder, {"data.csv": text}, schema_file=str(path))
        stops = [one for one in run.inspect() if one["severity"] == "stop"]
        assert [one["rows"] for one in stops if one["feature"] == "f1"] == rows


def test_a_column_without_values_in_train_is_named_and_stops_nothing(tmp_path) -> None:
    """Case data-5."""
    text = "a,b,label,split\n" + "".join(
        f"{n},{'' if n < 8 else n},{n % 2},{'train' if n < 8 else 'eval'}\n" for n in range(12)
    )
    run = case(tmp_path, {"data.csv": text})
    run.run()
    assert [(one["feature"], one["kind"], one["severity"]) for one in run.inspect()] == [
        ("b", "EMPTY_COLUMN", "warn")
    ]


def test_values_in_a_column_that_the_frozen_schema_knows_as_empty_are_refused(tmp_path) -> None:
    """Case data-5, second run."""
    empty = "a,b,label,split\n1,,0,train\n2,,1,train\n3,,1,eval\n"
    path = frozen(tmp_path / "first", empty)
    with pytest.raises(DataRefused, match=r"later.csv:2: column b does not hold text"):
        case(tmp_path, {"later.csv": empty.replace(",,", ",7,")}, schema_file=path).run()


def test_an_empty_eval_split_is_refused_before_anything_else(tmp_path) -> None:
    """Case training-9."""
    run = case(tmp_path, {"data.csv": "x,label,split\n1,0,train\n2,1,train\n3,0,train\n"})
    with pytest.raises(DataRefused, match="eval split has 0 rows; 3 rows in total"):
        run.run()
    run.settings.update(on_anomaly="warn", rules={"EMPTY_SPLIT": "ignore"})
    with pytest.raises(DataRefused, match="eval split has 0 rows"):
        run.run()


def test_an_empty_train_split_is_refused(tmp_path) -> None:
    run = case(tmp_path, {"data.csv": "x,label,split\n1,0,eval\n2,1,eval\n"})
    with pytest.raises(DataRefused, match="train split has 0 rows; 2 rows in total"):
        run.run()


@pytest.mark.parametrize("classes", [("-1", "1"), ("1", "2", "3"), ("0", "1", "5"), ("a", "b")])
def test_any_set_of_classes_passes(tmp_path, classes) -> None:
    """Case training-8: labels are mapped by a vocabulary, so no set of values is wrong."""
    rows = [
        f"{n},{classes[n % len(classes)]},{part}"
        for part, count in (("train", 12), ("eval", 6))
        for n in range(count)
    ]
    text = "\n".join(["x,label,split", *rows]) + "\n"
    assert case(tmp_path, {"data.csv": text}).inspect() == []


@pytest.mark.parametrize("value", ["3", "new", "3.0"])
def test_a_class_seen_only_in_eval_is_counted_and_named(tmp_path, value) -> None:
    """Case training-8."""
    rows = [f"{n},{n % 3},train" for n in range(12)] + [f"{n},{n % 3},eval" for n in range(6)]
    text = "\n".join(["x,label,split", *rows, f"1,{value},eval", f"2,{value},eval"]) + "\n"
    run = case(tmp_path, {"data.csv": text}, task="multiclass")
    found = run.inspect()
    assert len(found) == 1, found
    only = found[0]
    assert (only["kind"], only["split"], only["rows"]) == ("LABEL_UNSEEN_CLASS", "eval", 2)
    assert only["where"] == ["data.csv:20", "data.csv:21"]
    with pytest.raises(DataRefused, match=f"classes in the eval split .* not have: {value}"):
        run.run()
    run.settings["rules"] = {"LABEL_UNSEEN_CLASS": "warn"}
    run.run()


def test_a_letter_among_postal_codes_is_found_alone(tmp_path) -> None:
    """TFDV takes text that is all digits for whole numbers in text."""
    rows = [f"0{1000 + n},{n % 2},{'train' if n < 200 else 'eval'}" for n in range(220)]
    text = "\n".join(["zip,label,split", *rows, "K1A,0,eval"]) + "\n"
    only, unique = case(tmp_path, {"data.csv": text}).inspect()
    assert unique["kind"] == "DISTINCT_VALUES"
    assert (only["kind"], only["rows"], only["where"]) == ("WRONG_TYPE", 1, ["data.csv:222"])
    assert only["message"].startswith(
        "column zip does not hold whole numbers in text as the schema says"
    )


def test_new_values_of_a_quantity_are_no_new_classes(tmp_path) -> None:
    rows = [f"{n},{n}.5,{'train' if n < 40 else 'eval'}" for n in range(50)]
    text = "\n".join(["x,label,split", *rows]) + "\n"
    assert case(tmp_path, {"data.csv": text}).inspect() == []


def test_rows_without_a_label_are_counted_and_named(tmp_path) -> None:
    text = "x,label,split\n1,0,train\n2,1,train\n3,,train\n4,1,eval\n5,,eval\n"
    run = case(tmp_path, {"data.csv": text})
    found = [one for one in run.inspect() if one["feature"] == "label"]
    assert [(one["kind"], one["split"], one["rows"], one["where"]) for one in found] == [
        ("LABEL_MISSING", "train", 1, ["data.csv:4"]),
        ("LABEL_MISSING", "eval", 1, ["data.csv:6"]),
    ]
    with pytest.raises(DataRefused, match="the label label is missing in 2 rows"):
        run.run()


def test_a_label_with_one_value_is_refused(tmp_path) -> None:
    run = case(tmp_path, {"data.csv": "x,label,split\n1,1,train\n2,1,train\n3,0,eval\n"})
    with pytest.raises(DataRefused, match="the label label has one value in the train split, 1"):
        run.run()


def test_a_label_without_any_value_is_refused_in_its_own_words(tmp_path) -> None:
    run = case(tmp_path, {"data.csv": "x,label,split\n1,,train\n2,,train\n3,0,eval\n"})
    with pytest.raises(DataRefused, match="has no value in any row of the train split") as refused:
        run.run()
    assert str(refused.value).endswith(
        "; give rows with a label, or name another column as data.label"
    )
    assert [one["kind"] for one in run.inspect()] == ["LABEL_EMPTY"]


def test_files_that_share_the_label_alone_are_refused_unless_a_rule_lets_them_pass(
    tmp_path,
) -> None:
    wine = table("ash,label,split", ("1,0,train", 9), ("2,1,train", 9), ("1,1,eval", 3))
    people = table("age,label,split", ("40,0,train", 9), ("50,1,train", 9), ("40,0,eval", 3))
    run = case(tmp_path, {"wine.csv": wine, "people.csv": people})
    with pytest.raises(DataRefused) as refused:
        run.run()
    assert str(refused.value).startswith(
        "wine.csv: file wine.csv shares no column but the label with the other files; only here "
        "are ash (also people.csv); name the files of one table alone in data.files"
    )
    assert '"FILES_UNRELATED" = "warn" under [validation.rules] lets it pass' in str(refused.value)
    run.settings["rules"] = {"FILES_UNRELATED": "warn"}
    run.run()


def distinct(folder: Path, name: str, cells: list[str], **settings) -> list[dict[str, Any]]:
    """Return what the gate says of one text column beside a number and the label."""
    folder.mkdir()
    text = "".join(
        f"{n},{cell},{n % 2},{'train' if n % 5 else 'eval'}\n" for n, cell in enumerate(cells)
    )
    run = case(folder, {"data.csv": f"x,{name},label,split\n{text}"}, **settings)
    return [one for one in run.inspect() if one["kind"] == "DISTINCT_VALUES"]


def test_a_text_column_in_which_every_value_differs_is_a_warning(tmp_path) -> None:
    dates = [f"2020-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(100)]
    (only,) = distinct(tmp_path / "dates", "day", dates)
    assert (only["feature"], only["severity"], only["what_to_do"]) == (
        "day", "warn", "add day to data.ignore",
    )  # fmt: skip
    assert only["message"] == (
        "column day: 80 of 80 values differ, so nothing can be learned from one of them; it holds "
        'dates, by which data.split.by = "time" can split'
    )
    names = [f"id{n % 97}" for n in range(100)]
    (only,) = distinct(tmp_path / "names", "name", names)
    assert only["message"].endswith("differ, so nothing can be learned from one of them")


@pytest.mark.parametrize("count", [60, 300])
def test_few_values_or_some_that_come_again_are_no_warning(tmp_path, count) -> None:
    """Of 60 rows 48 are for training; of 300 every value comes twice."""
    names = [f"id{n}" if count == 60 else f"id{n % 150}" for n in range(count)]
    assert distinct(tmp_path / "few", "name", names) == []


def test_a_column_that_is_ignored_may_hold_what_it_likes(tmp_path) -> None:
    names = [f"id{n}" for n in range(100)]
    assert distinct(tmp_path / "ignored", "name", names, ignore=["name", "split"]) == []


def test_few_rows_say_how_many_updates_they_make_and_what_would_make_enough(tmp_path) -> None:
    run = case(tmp_path, {"data.csv": good()}, global_batch=1024)
    (only,) = run.inspect()
    assert only["message"] == (
        "train split has 20 rows, fewer than training.global_batch (1,024): each epoch is one "
        "partial batch and one weight update, so training.epochs is the number of updates "
        "(training.steps, where it is set); training.global_batch = 2 with training.epochs = 10 "
        "makes 100, and fewer than 100 seldom teach a model anything"
    )
    assert only["what_to_do"] == (
        "raise training.epochs, lower training.global_batch, or give more rows"
    )


def test_a_label_that_is_no_column_is_refused(tmp_path) -> None:
    run = case(tmp_path, {"data.csv": good()}, label="late")
    with pytest.raises(DataRefused, match="the label late is no column; there are color"):
        run.run()


def test_what_is_worth_knowing_is_a_warning(tmp_path) -> None:
    """A constant column, a copy of the label, and fewer rows than a batch (case training-10)."""
    rows = [
        f"{n},same,{n % 2},{n % 2},{n % 2}.0,{'train' if n < 10 else 'eval'}" for n in range(13)
    ]
    text = "\n".join(["x,c,copy,label,f,split", *rows]) + "\n"
    run = case(tmp_path, {"data.csv": text}, global_batch=16)
    run.run()
    found = {(one["feature"], one["kind"], one["severity"]) for one in run.inspect()}
    assert found == {
        ("", "FEW_ROWS", "warn"), ("c", "CONSTANT_COLUMN", "warn"),
        ("copy", "LABEL_COPY", "warn"), ("f", "LABEL_COPY", "warn"),
    }  # fmt: skip


def test_a_column_with_the_label_s_statistics_and_other_rows_is_no_copy(tmp_path) -> None:
    rows = [f"{n},{n % 2},{n // 2 % 2},{'train' if n < 8 else 'eval'}" for n in range(12)]
    text = "\n".join(["x,y,label,split", *rows]) + "\n"
    assert case(tmp_path, {"data.csv": text}).inspect() == []


@pytest.mark.parametrize(("rare", "severity"), [(2, "warn"), (300, "stop")])
def test_a_value_too_rare_for_both_splits_only_warns(tmp_path, rare, severity) -> None:
    """By hash and with an inferred schema: train cannot know what fell into eval by chance."""
    colors = [f"c{number}" for number in range(50)]
    batch = pa.RecordBatch.from_arrays([pa.array(colors)], ["color"])
    held_back = split.by_hash(["color"], 0.2)(batch)
    in_eval = colors[held_back.argmax()]
    in_train = [color for color, held in zip(colors, held_back, strict=True) if not held][:2]
    rows = [f"{n},{in_train[n % 2]},{n // 2 % 2}" for n in range(300)]
    rows += [f"{n},{in_eval},{n % 2}" for n in range(rare)]
    text = "\n".join(["x,color,label", *rows]) + "\n"
    by_hash = {"by": "hash", "column": "color", "eval": 0.2}
    (only,) = case(tmp_path, {"data.csv": text}, split=by_hash, ignore=[]).inspect()
    assert (only["kind"], only["rows"], only["severity"]) == ("UNEXPECTED_VALUES", rare, severity)


def test_anomalies_of_ignored_columns_only_warn(tmp_path) -> None:
    run = eval_of_its_own(tmp_path, ignore=["split", "color", "x", "x2"])
    run.run()
    assert {one["severity"] for one in run.inspect()} == {"warn"}
