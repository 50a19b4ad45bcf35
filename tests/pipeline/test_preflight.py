from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import config, preflight

LEAST = '[data]\nfiles = "a.csv"\nlabel = "late"\n'


@pytest.fixture
def found(tmp_path: Path):
    (tmp_path / "a.csv").write_text("x,y,late\n1,2,0\n3,4,1\n")

    def check(text: str = LEAST, *sets: str) -> list[tuple[str, str]]:
        path = tmp_path / "pipeline.toml"
        path.write_text(text, encoding="utf-8")
        findings = preflight.check(config.load(path, sets))
        return [
            (one.severity, f"{one.where}: {one.message}".replace(f"{tmp_path}/", ""))
            for one in findings
        ]

    return check


@pytest.fixture
def told(tmp_path: Path):
    """Return the findings of the command `check` on these files, as severity and line."""

    def check(files: dict[str, str], *sets: str, split: str = "") -> list[tuple[str, str]]:
        for name, content in files.items():
            (tmp_path / name).write_text(content)
        names = json.dumps(list(files))
        path = tmp_path / "pipeline.toml"
        path.write_text(f'[data]\nfiles = {names}\nlabel = "late"\n{split}', encoding="utf-8")
        loaded = config.load(path, ["training.global_batch=1", "training.epochs=9", *sets])
        return [
            (one["severity"], f"{one['where']}: {one['message']}".replace(f"{tmp_path}/", ""))
            for one in preflight.result(loaded)["findings"]
        ]

    return check


def rows(header: str, *cells: str, count: int = 60) -> str:
    """Return CSV text: the row number, then these cells, taken in turn."""
    return header + "\n" + "".join(f"{n},{cells[n % len(cells)]}\n" for n in range(count))


def test_good_data_has_no_finding(told):
    assert told({"a.csv": rows("x,late", "0", "1")}) == []


def test_a_label_of_one_value_is_an_error(told):
    assert told({"a.csv": rows("x,late", "1")}) == [
        ("error", "pipeline.toml:3: data.label: the data gate will refuse: the label late has one "
         "value in the train split, 1; give rows with other values of late, or name another "
         "column as data.label")
    ]  # fmt: skip


def test_a_label_of_one_value_in_the_first_rows_of_many_is_a_warning(told):
    ((severity, line),) = told({"a.csv": rows("x,late", "1", count=300_000)})
    assert severity == "warning"
    assert "has one value in the first" in line


def test_a_label_that_no_row_has_is_an_error_with_its_own_words(told):
    ((severity, line),) = told({"a.csv": rows("x,late", "")})
    assert severity == "error"
    assert line.endswith(
        "the label late has no value in any row of the train split; give rows with a label, or "
        "name another column as data.label"
    )


def test_rows_without_a_label_are_an_error_that_names_them_unless_a_rule_lets_them_pass(told):
    files = {"a.csv": rows("x,late", "0", "1", "", count=9)}
    sets = ("training.epochs=100",)
    ((severity, line),) = told(files, *sets)
    assert severity == "error"
    assert "(a.csv:4): the label late is missing in 3 rows (also a.csv:7, a.csv:10)" in line
    ((severity, _),) = told(files, *sets, 'validation.rules.LABEL_MISSING="warn"')
    assert severity == "warning"


def test_files_of_unlike_columns_are_told(told):
    both = {"a.csv": rows("x,y,late", "5,0", "6,1"), "b.csv": rows("x,late", "0", "1")}
    assert told(both) == [
        ("warning", "pipeline.toml:2: data.files: column y is not in file b.csv, and so missing "
         "there; give every file the same columns, or take those that differ out of data.files")
    ]  # fmt: skip
    found = told({"a.csv": rows("x,late", "0", "1"), "b.csv": rows("y,late", "0", "1")})
    assert [severity for severity, _ in found] == ["error", "error"]
    assert "file a.csv shares no column but the label with the other files" in "".join(
        found[0] + found[1]
    )


def test_a_split_column_that_holds_other_words_is_an_error_of_the_run_itself(told, tmp_path):
    split = '[data.split]\nby = "column"\ncolumn = "part"\n'
    files = {"a.csv": rows("x,part,late", "train,0", "test,1")}
    assert told(files, split=split) == [
        ("error", 'a.csv:3: column part names no split; it holds "test"; write "train" or "eval" '
         'in every row, or set data.split.by to "hash" or "time"')
    ]  # fmt: skip
    # `run` refuses by what `check` returns, before it starts anything.
    (finding,) = preflight.check(config.load(tmp_path / "pipeline.toml"))
    assert finding.severity == "error"


def test_a_split_without_rows_is_an_error(told):
    split = '[data.split]\nby = "column"\ncolumn = "part"\n'
    ((severity, line),) = told({"a.csv": rows("x,part,late", "train,0", "train,1")}, split=split)
    assert severity == "error"
    assert "eval split has 0 rows; 60 rows in total" in line


def test_what_the_gate_refuses_is_left_to_it_by_the_run(told, tmp_path):
    """So that the run ends with its exit code and its report."""
    assert [severity for severity, _ in told({"a.csv": rows("x,late", "1")})] == ["error"]
    assert preflight.check(config.load(tmp_path / "pipeline.toml")) == []


def test_few_weight_updates_are_a_warning_with_settings_that_make_more(told):
    sets = ("training.global_batch=1024", "training.epochs=2")
    assert told({"a.csv": rows("x,late", "0", "1", count=150)}, *sets) == [
        ("warning", "--set training.global_batch: 126 rows for training make 2 weight updates with "
         "these settings; training.global_batch = 8 with training.epochs = 7 makes 112, and fewer "
         "than 100 seldom teach a model anything")
    ]  # fmt: skip
    ((_, line),) = told({"a.csv": rows("x,late", "0", "1")}, "training.steps=5")
    assert "make 5 weight updates with these settings" in line


def test_a_good_configuration_has_no_finding(found):
    assert found() == []


def test_a_label_that_is_no_column_is_an_error_with_the_nearest(found):
    assert found(LEAST, 'data.label="lat"') == [
        ("error", "--set data.label: the data has no column lat; the nearest is late")
    ]


def test_columns_that_are_named_and_not_there_are_told(found):
    text = LEAST + 'ignore = ["yy"]\n[data.split]\nby = "time"\ncolumn = "when"\n'
    severities = dict(found(text))
    assert [severity for severity, _ in found(text)] == ["error", "warning"]
    assert any(
        "data.split.column: the data has no column when" in one for one in severities.values()
    )


def test_no_column_left_to_learn_from_is_an_error(found):
    assert ("error", "pipeline.toml:4: data.ignore: no column is left to learn from; "
            "ignore fewer") in found(LEAST + 'ignore = ["x", "y"]')  # fmt: skip


def test_a_missing_data_file_is_an_error(found):
    findings = found(LEAST.replace("a.csv", "away.csv"))
    assert [severity for severity, _ in findings] == ["error"]
    assert "away.csv" in findings[0][1]


def test_an_empty_data_file_is_an_error(found, tmp_path):
    (tmp_path / "empty.csv").write_text("")
    findings = found(LEAST.replace("a.csv", "empty.csv"))
    assert [severity for severity, _ in findings] == ["error"]
    assert "empty.csv" in findings[0][1]


def test_a_regression_on_texts_is_an_error(found, tmp_path):
    (tmp_path / "a.csv").write_text("x,late\n1,yes\n2,no\n")
    assert ("error", "pipeline.toml:4: data.task: late holds texts, which regression cannot "
            "predict") in found(LEAST + 'task = "regression"\n')  # fmt: skip


def test_a_rule_that_can_change_nothing_is_a_warning(found):
    rules = '[validation.rules]\nx = "warn"\n"y:CONSTANT_COLUMN" = "ignore"\n'
    assert found(LEAST + rules) == []
    findings = found(LEAST + rules + 'UNEXPECTED_VALUE = "warn"\nEMPTY_SPLIT = "warn"\n')
    assert findings == [
        ("warning", "pipeline.toml:4: validation.rules.UNEXPECTED_VALUE: there is no such column "
         "or kind; the nearest is UNEXPECTED_VALUES"),
        ("warning", "pipeline.toml:4: validation.rules.EMPTY_SPLIT: this kind always stops, "
         "whatever a rule says"),
    ]  # fmt: skip


def test_what_a_folder_holds_beside_data_files_is_named(found, tmp_path):
    (tmp_path / "days").mkdir()
    (tmp_path / "days/a.csv").write_text("x,late\n1,0\n2,1\n")
    (tmp_path / "days/_SUCCESS").write_text("")
    findings = found(LEAST.replace("a.csv", "days"))
    assert [severity for severity, _ in findings] == ["warning"]
    assert "_SUCCESS" in findings[0][1]


def test_a_root_that_is_a_file_is_an_error(found, tmp_path):
    (tmp_path / "runs").write_text("")
    assert (
        "error",
        "pipeline.toml: root: runs is a file, not a folder; name another root",
    ) in found()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_cannot_be_written_to_is_an_error(found, tmp_path):
    (tmp_path / "runs").mkdir(mode=0o500)
    assert "cannot be written to" in found()[0][1]


def test_a_schema_that_is_not_there_is_an_error(found):
    text = LEAST + '[validation]\nschema = "s.pbtxt"\n'
    assert found(text) == [
        ("error", "pipeline.toml:5: validation.schema: s.pbtxt: no such file; "
         "name a .pbtxt file, or infer")
    ]  # fmt: skip


def test_more_memory_than_is_free_and_half_precision_without_a_gpu_are_warnings(
    found, tmp_path, monkeypatch
):
    monkeypatch.setattr(preflight, "GPUS", tmp_path / "none")
    text = LEAST + '[training]\nmemory_limit = "1000TiB"\nprecision = "mixed_float16"\n'
    findings = found(text)
    assert [severity for severity, _ in findings] == ["warning", "warning"]
    assert "float32 is faster here" in findings[0][1]
    assert "1000TiB is more than the" in findings[1][1]


def test_gpus_are_named(tmp_path, monkeypatch):
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "information").write_text("Model: \t NVIDIA X\nIRQ: 1\n")
    monkeypatch.setattr(preflight, "GPUS", tmp_path)
    assert preflight._gpus() == ["NVIDIA X"]


def test_a_tracking_server_that_does_not_answer_is_a_warning_without_its_password(found):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    findings = found(LEAST + f'[tracking]\nuri = "http://me:s3cret@127.0.0.1:{port}"\n')
    assert findings == [
        ("warning", f"pipeline.toml:5: tracking.uri: http://***@127.0.0.1:{port} does not answer; "
         "runs are kept and stored there later")
    ]  # fmt: skip


def test_a_tracking_server_that_answers_is_no_finding(found):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert found(LEAST + f'[tracking]\nuri = "http://127.0.0.1:{port}"\n') == []


def test_too_little_disk_is_told(found, monkeypatch):
    usage = preflight.shutil.disk_usage("/")._replace(free=1)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage)
    assert [severity for severity, _ in found()] == ["error"]


def test_the_result_is_ready_for_json_and_holds_the_first_error(tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(LEAST)
    said = json.loads(json.dumps(preflight.result(config.load(path))))
    assert said["status"] == "failed"
    assert "a.csv" in said["error"]
    assert set(said["environment"]) == {"processors", "memory", "GPUs", "disk"}


def test_check_imports_nothing_heavy(tmp_path):
    (tmp_path / "a.csv").write_text(rows("x,late", "0", "1", ""))
    (tmp_path / "b.csv").write_text(rows("z,late", "0", "1"))
    (tmp_path / "pipeline.toml").write_text('[data]\nfiles = ["a.csv", "b.csv"]\nlabel = "late"\n')
    code = (
        "import sys\nfrom pathlib import Path\nfrom pipeline import config, preflight\n"
        "assert preflight.result(config.load(Path('pipeline.toml')))['findings']\n"
        "print([one for one in sys.modules if one in {'tensorflow', 'tfx', 'apache_beam', 'mlflow',"
        " 'tensorflow_data_validation'}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(preflight.__file__).parents[1])},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_binary_task_with_six_classes_is_an_error_at_the_task(told):
    colours = rows("x,late", "red", "blue", "green", "grey", "pink", "gold")
    found = told({"a.csv": colours}, split='task = "binary"')
    assert found == [
        ("error", 'pipeline.toml:4: data.task: the label late has 6 different values, not 2; it '
         'holds "binary"; take multiclass, or auto')
    ]  # fmt: skip
    numbers = told({"a.csv": rows("x,late", "1", "2", "3")}, split='task = "binary"')
    assert numbers[0][1].endswith("take multiclass or regression, or auto")


@pytest.mark.parametrize("count", [300, 200_000])
def test_a_label_whose_values_all_differ_is_said_to_look_like_an_id(told, count):
    text = "x,late\n" + "".join(f"{n % 7},name{n}\n" for n in range(count))
    ((severity, line),) = told({"a.csv": text})
    assert severity == "error"
    assert "the data gate will refuse: the label late" in line
    assert "looks like an id" in line
    assert "name another column as data.label" in line
    assert len(line) < 600


def test_a_file_of_semicolons_is_known_by_its_one_column(told):
    text = "x;y;late\n" + "1;2;0\n2;1;1\n" * 50
    assert told({"a.csv": text})[0] == (
        "error", 'pipeline.toml:3: data.label: the data has no column late; the file has one '
        'column, "x;y;late", as if ";" stood between the columns; write it with commas'
    )  # fmt: skip


def test_a_name_with_a_space_around_it_is_quoted_as_the_nearest(told):
    text = "x, late\n" + "1,0\n2,1\n" * 50
    assert told({"a.csv": text})[0] == (
        "error",
        'pipeline.toml:3: data.label: the data has no column late; the nearest is " late"',
    )


def test_a_file_with_no_column_but_the_label_says_so(told):
    found = told({"a.csv": "late\n" + "0\n1\n" * 50})
    assert (
        "error",
        "pipeline.toml:2: data.files: there is no column but the label; give the model others",
    ) in found
