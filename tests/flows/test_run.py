"""Whole runs, in processes of their own, on real flight records."""

import json
import math
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from flows.commands import HEADRACE, flight_rows, headrace, processes_of, write_config, write_rows

pytestmark = pytest.mark.slow

NODES = [
    "ExampleGen",
    "StatisticsGen",
    "SchemaGen",
    "ExampleValidator",
    "DataGate",
    "Trainer",
    "Evaluator",
    "Pusher",
]
FIELDS = {
    "status": str,
    "pipeline": str,
    "run_id": str,
    "seconds": float,
    "nodes": list,
    "examples": dict,
    "anomalies": list,
    "metrics": dict,
    "baseline": dict,
    "training": dict,
    "mlflow": dict,
    "report": str,
    "model": str,
    "error": type(None),
}
TRAINING = {
    "steps": int,
    "examples_per_second": float,
    "peak_memory_bytes": int,
    "planned_memory_bytes": int,
    "process_memory_bytes": int,
    "micro_batch": int,
    "resumed_from_step": int,
    "skipped_steps": int,
}


def states(said):
    return {one["id"]: one["state"] for one in said.json["nodes"]}


def whys(said):
    return {one["id"]: one["why"] for one in said.json["nodes"]}


def test_a_run_prints_one_json_object_with_every_field_of_the_contract(project):
    assert project.first.code == 0, project.first.err
    result = project.first.json
    assert {name: type(result[name]) for name in FIELDS} == FIELDS
    assert set(result) == set(FIELDS)
    assert {name: type(result["training"][name]) for name in TRAINING} == TRAINING
    assert result["status"] == "succeeded"
    assert [one["id"] for one in result["nodes"]] == NODES
    assert set(states(project.first).values()) == {"ran"}
    assert sum(result["examples"].values()) == 6000
    assert result["training"]["steps"] == 3 * math.ceil(result["examples"]["train"] / 128)
    assert result["training"]["peak_memory_bytes"] > 0
    assert result["training"]["process_memory_bytes"] > result["training"]["peak_memory_bytes"]
    assert Path(result["report"]).is_file()
    assert Path(result["model"], "saved_model.pb").is_file()


def test_the_model_beats_the_baseline_that_it_is_measured_against(project):
    metrics, baseline = project.first.json["metrics"], project.first.json["baseline"]
    assert metrics["loss"] < baseline["loss"]
    assert baseline["auc"] == pytest.approx(0.5)


def test_an_unchanged_run_is_cached_whole_and_gives_the_same_result(project):
    assert project.again.code == 0
    assert set(states(project.again).values()) == {"cached"}
    assert all("as run 1" in why for why in whys(project.again).values())
    same = ("metrics", "baseline", "examples", "training", "model", "report", "mlflow")
    assert {name: project.again.json[name] for name in same} == {
        name: project.first.json[name] for name in same
    }


def test_an_unchanged_run_imports_no_tensorflow(project):
    code = (
        "import sys; from pipeline import cli; code = cli.execute(['run', '--json']); "
        "heavy = {'tensorflow', 'tfx', 'apache_beam', 'mlflow', 'keras'} & set(sys.modules); "
        "sys.exit(f'{heavy} {code}' if heavy or code else 0)"
    )
    done = subprocess.run(
        [Path(HEADRACE).with_name("python"), "-c", code],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "succeeded"


def test_a_changed_setting_trains_again_on_cached_data_and_says_so(project):
    assert project.changed.code == 0, project.changed.err
    found = states(project.changed)
    assert {found[one] for one in NODES[:5]} == {"cached"}
    assert {found[one] for one in NODES[5:]} == {"ran"}
    assert whys(project.changed)["Trainer"] == "ran: training.epochs 3 → 4"
    steps = project.first.json["training"]["steps"]
    assert project.changed.json["training"]["steps"] == steps // 3 * 4


def test_every_pushed_version_stays(project):
    assert sorted(path.name for path in (project.pipeline / "models").iterdir()) == ["1", "2"]


def test_other_tfx_tools_find_standard_artifacts(project):
    (examples,) = (project.pipeline / "ExampleGen" / "examples").iterdir()
    assert {path.name for path in examples.glob("Split-*")} == {"Split-train", "Split-eval"}
    (statistics,) = (project.pipeline / "StatisticsGen" / "statistics").iterdir()
    assert (statistics / "Split-train" / "FeatureStats.pb").is_file()
    (schema,) = (project.pipeline / "SchemaGen" / "schema").iterdir()
    assert (schema / "schema.pbtxt").is_file()
    (anomalies,) = (project.pipeline / "ExampleValidator" / "anomalies").iterdir()
    assert (anomalies / "Split-eval" / "SchemaDiff.pb").is_file()
    with sqlite3.connect(project.pipeline / "metadata.sqlite") as db:
        kinds = {name for (name,) in db.execute("select name from Type")}
    assert {"Examples", "ExampleStatistics", "Schema", "ExampleAnomalies", "Model"} <= kinds


def test_runs_are_listed_best_first_with_what_differs(project):
    listed = headrace("runs", "--json", cwd=project.folder)
    assert listed.code == 0, listed.err
    assert "training.epochs" in listed.out
    diff = headrace("runs", "diff", "1", "2", "--json",
                    cwd=project.folder)  # fmt: skip
    assert diff.code == 0, diff.err
    assert "training.epochs" in diff.out
    assert "auc" in diff.out


def test_one_mlflow_run_a_training_and_each_finished(project):
    with sqlite3.connect(project.folder / "runs" / "mlflow.db") as db:
        found = list(db.execute(
            "select status from runs join experiments using (experiment_id)"
            " where experiments.name = 'flights'"
        ))  # fmt: skip
        metrics = {key for (key,) in db.execute("select distinct key from metrics")}
    assert found == [("FINISHED",), ("FINISHED",)]
    assert any("loss" in key for key in metrics)


def test_the_report_is_where_the_command_says(project):
    said = headrace("report", cwd=project.folder)
    assert said.code == 0
    assert said.out.strip() == project.first.json["report"]


def test_without_a_terminal_plain_lines_hold_the_same_facts(project):
    said = headrace("run", cwd=project.folder)
    assert said.code == 0
    assert "\x1b" not in said.out + said.err
    for node in NODES:
        assert node in said.out
    assert project.first.json["report"] in said.out


def test_damaged_data_are_refused_with_column_rows_and_places(project, tmp_path):
    """10 % new carriers, a column gone and three words for a distance, under a frozen schema."""
    (frozen,) = (project.pipeline / "SchemaGen" / "schema").glob("*/schema.pbtxt")
    (tmp_path / "frozen.pbtxt").write_text(frozen.read_text())
    header, *rows = flight_rows(1000)
    carrier, gone, distance = (header.index(one) for one in ("carrier", "dest", "distance"))
    for number, row in enumerate(rows):
        if number % 10 == 0:
            row[carrier] = "ZZ"
        if number in {4, 40, 400}:
            row[distance] = "far"
    cut = [[cell for at, cell in enumerate(row) if at != gone] for row in [header, *rows]]
    write_rows(tmp_path / "flights.csv", cut)
    write_config(tmp_path, more='[validation]\nschema = "frozen.pbtxt"')
    said = headrace("run", "--json", cwd=tmp_path)
    assert said.code == 3, said.out + said.err
    result = said.json
    assert result["status"] == "rejected"
    assert states(said)["Trainer"] == "not_run"
    gate = next(one for one in result["nodes"] if one["id"] == "DataGate")
    assert (gate["state"], gate["why"]) == ("failed", "ran: first run; refused")
    assert gate["seconds"] > 0.0
    assert whys(said)["Trainer"] == "not reached: DataGate refused"
    by_feature = {}
    for one in result["anomalies"]:
        by_feature.setdefault(one["feature"], []).append(one)
    carriers = by_feature["carrier"]
    assert {one["kind"] for one in carriers} == {"UNEXPECTED_VALUES"}
    assert sum(one["rows"] for one in carriers) == 100
    assert "ZZ" in carriers[0]["message"]
    places = {place for one in carriers for place in one["where"]}
    assert any(place.endswith("flights.csv:2") for place in places)
    assert all(len(one["where"]) <= 10 for one in carriers)
    assert "dest" in by_feature
    words = by_feature["distance"]
    assert sum(one["rows"] for one in words) == 3
    lines = {place.rsplit(":", 1)[1] for one in words for place in one["where"]}
    assert lines == {"6", "42", "402"}
    assert (
        "carrier" in result["error"] or "dest" in result["error"] or "distance" in result["error"]
    )
    assert not (tmp_path / "runs" / "flights" / "models").exists()
    assert Path(result["report"]).is_file()
    # Again, in words: refused again, told once and summed up in one line.
    said = headrace("run", cwd=tmp_path)
    assert said.code == 3, said.out + said.err
    assert re.search(r"^DataGate +refused +\d+\.\d s  ran: first run$", said.out, re.MULTILINE)
    assert re.search(r"^  time +\d+\.\d s to start", said.out, re.MULTILINE)
    count, columns = len(result["anomalies"]), len(by_feature)
    assert said.err == (
        f"the data gate refused the data: {count} anomalies in {columns} columns, told above and "
        "in the report\n"
    )


def test_two_pipelines_under_one_root_at_the_same_time(both):
    results = [both.project.changed.json, both.killed.again.json]
    assert [one["status"] for one in results] == ["succeeded", "succeeded"]
    with sqlite3.connect(both.project.folder / "runs" / "mlflow.db") as db:
        found = dict(db.execute("select experiment_id, group_concat(status) from runs group by 1"))
    assert sorted(found.values()) == ["FINISHED", "FINISHED,FINISHED"]


def test_a_killed_run_leaves_no_process_and_goes_on_to_the_same_model(project, killed):
    assert killed.left == []
    said = killed.again
    assert said.code == 0, said.err
    assert said.json["metrics"] == project.first.json["metrics"]
    assert said.json["training"]["resumed_from_step"] > 0
    # The killed run and this one are one training, listed by the number that was said last.
    listed = headrace("runs", "--json", cwd=killed.folder).json
    assert [one["run"] for one in listed["runs"]] == [said.json["run_id"]] == ["2"]
    assert [(one["run"], one["why"]) for one in listed["unlisted"]] == [("1", "went on as run 2")]
    for number in ("1", "2", said.json["mlflow"]["run_id"]):
        assert headrace("runs", "diff", "2", number, cwd=killed.folder).code == 0


def test_an_interrupted_run_says_so_and_keeps_what_was_finished(tmp_path):
    write_rows(tmp_path / "flights.csv", flight_rows(2000))
    write_config(tmp_path)
    process = subprocess.Popen(
        [HEADRACE, "run", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    )
    journal = tmp_path / "runs" / "flights" / "logs" / "1" / "events.jsonl"
    until = time.monotonic() + 120
    while not journal.exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = json.loads(out)
    assert result["status"] == "interrupted"
    assert {one["state"] for one in result["nodes"]} <= {"ran", "failed", "not_run"}
    assert all("interrupted" in one["why"] for one in result["nodes"] if one["state"] == "failed")
    assert processes_of(tmp_path) == []
