"""Every row that shows an anomaly is named in one file, with its place, value and reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_cases import case, case_of

from trainer.errors import DataRefused

SCHEMA = """
feature { name: "c" type: BYTES string_domain { value: "a" } presence { min_fraction: 1 } }
feature { name: "x" type: INT int_domain { min: 0 max: 9 } presence { min_fraction: 1 } }
feature { name: "label" type: INT }
feature { name: "split" type: BYTES }
"""
GOOD = [f"a,{n % 10},{n // 2 % 2},{('train', 'eval')[n % 2]}" for n in range(40)]


def rows_of(folder: Path) -> list[dict]:
    return pq.read_table(folder / "anomalous_rows.parquet").to_pylist()


def frozen(folder: Path, text: str = SCHEMA) -> str:
    path = folder / "schema.pbtxt"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("severity", ["stop", "warn"])
def test_all_rows_are_named_and_each_anomaly_tells_the_first_ten(
    tmp_path, monkeypatch, severity
) -> None:
    rows = [row.replace("a,", "b,") if n % 3 == 0 else row for n, row in enumerate(GOOD)]
    rows[7] = "a,12,1,eval"
    rows[9] = "b,,1,eval"
    text = "\n".join(["c,x,label,split", "", *rows]) + "\n"
    monkeypatch.setenv("HEADRACE_RUN_DIR", str(tmp_path / "run"))
    run = case(
        tmp_path, {"data.csv": text}, schema_file=frozen(tmp_path), on_anomaly=severity,
    )  # fmt: skip
    if severity == "stop":
        with pytest.raises(DataRefused):
            run.run()
    else:
        run.run()
    named = rows_of(tmp_path / "run")
    assert named == rows_of(tmp_path / "verdict")
    told = {(one["feature"], one["kind"], one["split"]): one for one in run.inspect()}
    for (feature, kind, split), one in told.items():
        mine = [
            row for row in named
            if (row["feature"], row["kind"], row["split"]) == (feature, kind, split)
        ]  # fmt: skip
        assert len(mine) == one["rows"]
        assert [row["place"] for row in mine][:10] == one["where"]
    # A row of the file stands two lines below: the header, and a blank line.
    assert sorted((row["row"], row["value"]) for row in named if row["feature"] == "c") == [
        (n + 1, "b") for n in range(0, 40, 3)
    ]
    assert [row["place"] for row in named if row["value"] == "12"] == ["data.csv:10"]
    (missing,) = (row for row in named if row["kind"] == "MISSING_VALUES")
    assert (missing["place"], missing["value"]) == ("data.csv:12", None)
    assert missing["reason"] == "column x has no value where the schema asks for one"
    assert {row["file"] for row in named} == {"data.csv"}


def test_lists_that_are_too_long_are_named_with_their_length(tmp_path) -> None:
    lists = [[1], [1, 2], [1, 2, 3], [], None, [4, 5]] * 4
    table = pa.table({
        "l": pa.array(lists, pa.list_(pa.int64())),
        "label": pa.array([n % 2 for n in range(24)]),
        "split": pa.array([("train", "eval")[n // 12] for n in range(24)]),
    })
    pq.write_table(table, tmp_path / "data.parquet")
    schema = SCHEMA[SCHEMA.index('feature { name: "label"') :] + (
        'feature { name: "l" type: INT value_count { min: 0 max: 2 } }'
    )
    run = case_of(
        tmp_path, [tmp_path / "data.parquet"], schema_file=frozen(tmp_path, schema)
    )  # fmt: skip
    with pytest.raises(DataRefused, match=r"column l has more values in a row than the schema"):
        run.run()
    named = rows_of(tmp_path / "verdict")
    assert [(row["place"], row["value"]) for row in named] == [
        (f"data.parquet:row {row + 1}", "3") for row in (2, 8, 14, 20)
    ]
    assert {row["kind"] for row in named} == {"TOO_MANY_VALUES"}
    assert [one["rows"] for one in run.inspect()] == [2, 2]


def test_where_no_row_shows_anything_there_is_no_file(tmp_path) -> None:
    text = "\n".join(["c,x,label,split", *GOOD]) + "\n"
    case(tmp_path, {"data.csv": text}, schema_file=frozen(tmp_path)).run()
    assert not (tmp_path / "verdict" / "anomalous_rows.parquet").exists()
