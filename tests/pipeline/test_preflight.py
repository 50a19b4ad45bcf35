from __future__ import annotations

import json
import os
import socket
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
