"""Accepting an anomaly lets the same data pass the next time, and only that (acceptance 4)."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow_data_validation as tfdv
from gate_cases import Case, case
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from components import schema_file, schema_freeze, schema_update, verdict
from components.checks import Split
from components.schema_freeze import Extras
from components.statistics import read_statistics
from trainer.errors import DataRefused, InputError

HEADER = "color,x,share,note,label,split"
ROWS = [
    f"{('red', 'blue')[n % 2]},{n},{n / 8},text {n % 5},{n // 2 % 2}"
    f",{'eval' if n % 3 == 2 else 'train'}"
    for n in range(60)
]


def text(rows: list[str], header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def put(row: str, **cells: str) -> str:
    names = HEADER.split(",")
    values = dict(zip(names, row.split(","), strict=True)) | cells
    return ",".join(values[name] for name in names)


def splits_of(run: Case) -> list[Split]:
    return [Split.read(run.data.statistics, name) for name in ("train", "eval")]


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    """A frozen schema of good rows, with bounds."""
    folder = tmp_path_factory.mktemp("good")
    run = case(folder, {"data.csv": text(ROWS)})
    inferred = schema_file.parse_schema(
        (Path(run.data.schema) / "schema.pbtxt").read_text(), "schema.pbtxt"
    )
    train = splits_of(run)[0]
    # By chance eval has another range than train: the greatest value of both.
    made = schema_freeze.frozen(inferred, train, label="label", extras=Extras(bounds=True))
    for one in made.feature:
        if one.name in {"x", "share"}:
            which = one.WhichOneof("domain_info")
            getattr(one, which).max = 59 if one.name == "x" else 59 / 8
    path = folder / "frozen.pbtxt"
    path.write_text(schema_file.commented(made, ["of good rows"]))
    assert run_with(folder / "again", ROWS, path).inspect() == []
    return path


def run_with(folder: Path, rows: list[str], path: Path, *, header: str = HEADER) -> Case:
    folder.mkdir()
    return case(folder, {"data.csv": text(rows, header)}, schema_file=str(path), ignore=["split"])


def stops(run: Case) -> set[tuple[str, str]]:
    return {(one["feature"], one["kind"]) for one in run.inspect() if one["severity"] == "stop"}


def accepted(path: Path, run: Case, feature: str, kind: str, to: Path) -> Path:
    before = path.read_text()
    schema = schema_file.parse_schema(before, str(path))
    after = schema_update.accept(schema, feature, kind, splits_of(run))
    to.write_text(schema_file.changed_text(before, after, ["# accepted today, me: it; reason: so"]))
    return to


def rows_with(**cells: str) -> list[str]:
    """Every third row, of both splits, holds these cells."""
    return [put(row, **cells) if n % 4 == 0 else row for n, row in enumerate(ROWS)]


CHANGES = {
    "a new value": ("color", "UNEXPECTED_VALUES", {"color": "green"}, {"color": "pink"}),
    "a larger whole number": ("x", "OUT_OF_RANGE", {"x": "70"}, {"x": "71"}),
    "a smaller number": ("share", "OUT_OF_RANGE", {"share": "-2.5"}, {"share": "-2.625"}),
    "a value that is missing": ("x", "MISSING_VALUES", {"x": ""}, None),
    "a fraction": ("x", "WRONG_TYPE", {"x": "1.5"}, {"x": "word"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_accepted_passes_and_the_next_worse_does_not(frozen, tmp_path, name) -> None:
    feature, kind, cells, worse = CHANGES[name]
    rows = rows_with(**cells)
    run = run_with(tmp_path / "first", rows, frozen)
    assert (feature, kind) in stops(run)
    with pytest.raises(DataRefused):
        run.run()
    path = accepted(frozen, run, feature, kind, tmp_path / "next.pbtxt")
    run_with(tmp_path / "same", rows, path).run()
    # Good rows and all that was known before pass as they did.
    run_with(tmp_path / "good", ROWS, path).run()
    if worse is None:
        rows = [put(row, **cells) if n % 4 < 2 else row for n, row in enumerate(ROWS)]
    else:
        rows = [put(row, **worse) if n == 6 else row for n, row in enumerate(rows)]
    refused = stops(run_with(tmp_path / "worse", rows, path))
    assert {one for one, _ in refused} == {feature}


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_but_the_column_changes(frozen, tmp_path, name) -> None:
    feature, kind, cells, _ = CHANGES[name]
    run = run_with(tmp_path / "first", rows_with(**cells), frozen)
    path = accepted(frozen, run, feature, kind, tmp_path / "next.pbtxt")
    before, after = frozen.read_text().splitlines(), path.read_text().splitlines()
    assert after[1] == "# accepted today, me: it; reason: so"
    read = [schema_file.parse_schema("\n".join(one), "x") for one in (before, after)]
    for one in read:
        del one.feature[[f.name for f in one.feature].index(feature)]
        for domain in [d for d in one.string_domain if d.name == feature]:
            one.string_domain.remove(domain)
    assert read[0] == read[1]
    assert [line for line in before if line.startswith("#")] == [
        line for line in after if line.startswith("#") and "accepted" not in line
    ]


def test_a_new_column_and_a_column_that_is_gone(frozen, tmp_path) -> None:
    rows = [f"{row},{n % 3}" for n, row in enumerate(ROWS)]
    run = run_with(tmp_path / "new", rows, frozen, header=HEADER + ",more")
    path = accepted(frozen, run, "more", "NEW_COLUMN", tmp_path / "new.pbtxt")
    run_with(tmp_path / "same", rows, path, header=HEADER + ",more").run()
    assert stops(run_with(tmp_path / "without", ROWS, path)) == {("more", "COLUMN_MISSING")}

    fewer = [row.split(",", 1)[1] for row in ROWS]
    header = HEADER.split(",", 1)[1]
    run = run_with(tmp_path / "gone", fewer, frozen, header=header)
    path = accepted(frozen, run, "color", "COLUMN_MISSING", tmp_path / "gone.pbtxt")
    run_with(tmp_path / "gone again", fewer, path, header=header).run()
    # When it comes back, what it may hold is as before.
    odd = rows_with(color="green")
    assert stops(run_with(tmp_path / "odd", odd, path)) == {("color", "UNEXPECTED_VALUES")}


def split_of(**columns) -> Split:
    """A split of 100 rows with columns of so many rows, or with values and their rows."""
    statistics = statistics_pb2.DatasetFeatureStatistics(num_examples=100)
    values = {}
    for name, told in columns.items():
        pairs = told if isinstance(told, list) else [("a", told)]
        one = statistics.features.add(type=statistics_pb2.FeatureNameStatistics.STRING)
        one.path.step.append(name)
        one.string_stats.common_stats.num_non_missing = sum(rows for _, rows in pairs)
        values[name] = pairs
    return Split.of("train", statistics, values)


def test_what_would_accept_everything_is_refused() -> None:
    schema = schema_pb2.Schema()
    note = schema.feature.add(name="note", type=schema_pb2.BYTES)
    note.presence.min_fraction = 1
    code = schema.feature.add(name="code", type=schema_pb2.BYTES)
    code.string_domain.value.append("a")
    with pytest.raises(InputError, match="accept everything in column note"):
        schema_update.accept(schema, "note", "COLUMN_MISSING", [split_of(code=100)])
    ids = [(f"id{n}", 1) for n in range(100)]
    with pytest.raises(InputError, match="look like ids"):
        schema_update.accept(schema, "code", "UNEXPECTED_VALUES", [split_of(code=ids)])
    note.string_domain.value.append("a")
    with pytest.raises(InputError, match="none of its columns"):
        schema_update.accept(schema, "note", "COLUMN_MISSING", [split_of(code=100)])
    for kind in set(verdict.KINDS) - set(schema_update.CHANGES):
        with pytest.raises(InputError, match="no change of the schema"):
            schema_update.accept(schema, "code", kind, [split_of(code=100)])


def test_a_list_that_two_columns_share_changes_for_one_of_them() -> None:
    text = (
        'feature { name: "from" type: BYTES domain: "city" }\n# mine\n'
        'feature { name: "to" type: BYTES domain: "city" }\n'
        'string_domain { name: "city" value: "Oslo" }\n'
    )
    schema = schema_file.parse_schema(text, "")
    seen = [split_of(to=[("Rome", 50), ("Oslo", 50)])]
    after = schema_update.accept(schema, "to", "UNEXPECTED_VALUES", seen)
    changed = schema_file.changed_text(text, after)
    assert changed.startswith('feature { name: "from" type: BYTES domain: "city" }\n# mine\n')
    assert changed.endswith('string_domain { name: "city" value: "Oslo" }\n')
    assert list(after.feature[1].string_domain.value) == ["Oslo", "Rome"]
    assert after.feature[0] == schema.feature[0]


def test_the_label_is_asked_for_when_training_and_not_when_serving(frozen, tmp_path) -> None:
    schema = tfdv.load_schema_text(str(frozen))
    header = HEADER.replace(",label", "")
    rows = [",".join((one := row.split(","))[:4] + one[5:]) for row in ROWS]
    run = case(tmp_path, {"data.csv": text(rows, header)}, label="")
    train = statistics_pb2.DatasetFeatureStatisticsList(
        datasets=[read_statistics(run.data.statistics, "train")]
    )
    found = [
        sorted(tfdv.validate_statistics(train, schema, environment).anomaly_info)
        for environment in ("SERVING", "TRAINING")
    ]
    assert found == [[], ["label"]]
