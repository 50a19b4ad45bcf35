from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import cli, definition, runner
from trainer.errors import DataRefused, SettingError

LEAST = '[data]\nfiles = "a.csv"\nlabel = "late"\n'
HEAVY = {
    "apache_beam", "keras", "kfp", "ml_metadata", "mlflow", "numpy", "pandas", "pyarrow",
    "pydantic", "rich", "tensorflow", "tensorflow_data_validation", "tfx", "tomlkit",
}  # fmt: skip
RESULT = {"status": "succeeded", "pipeline": "pipeline", "seconds": 1.0, "error": None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text(LEAST, encoding="utf-8")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the commands asked of `runner.run`, which answers at once."""
    calls: list[dict] = []

    def run(config, *, no_cache, on_event):
        calls.append({"config": config, "no_cache": no_cache})
        return {**RESULT, "exit_code": 0}

    monkeypatch.setattr(runner, "run", run)
    return calls


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from pipeline import cli; code = cli.execute(['--help']);"
        "print(sorted({name.split('.')[0] for name in sys.modules})); sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(ended.stdout.splitlines()[-1].replace("'", '"')))
    assert not loaded & HEAVY


def test_reading_a_configuration_imports_no_library_of_data_or_training(folder):
    program = (
        "import sys; from pipeline import cli; code = cli.execute(['report']);"
        "print(sorted({name.split('.')[0] for name in sys.modules}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
    )
    loaded = set(json.loads(ended.stdout.splitlines()[-1].replace("'", '"')))
    assert not loaded & (HEAVY - {"pydantic"})
    assert "there is no report yet" in ended.stderr


@pytest.mark.parametrize(
    "command", [["example"], ["check"], ["run"], ["report"], ["runs"], ["runs", "diff"], ["ui"]]
)
def test_every_command_has_help(command, capsys):
    assert cli.execute([*command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: headrace {' '.join(command)} ")


def test_no_command_at_all_gives_the_help(capsys):
    assert cli.execute([]) == 0
    out = capsys.readouterr().out
    for name in ("example", "check", "run", "report", "runs", "runs diff", "ui"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize(
    ("arguments", "config", "forced"),
    [
        (["run"], "pipeline.toml", set()),
        (["run", "other.toml"], "other.toml", set()),
        (["run", "--no-cache"], "pipeline.toml", {"all"}),
        (["run", "--no-cache", "Trainer"], "pipeline.toml", {"Trainer"}),
        (["run", "--no-cache=Trainer", "other.toml"], "other.toml", {"Trainer"}),
        (["run", "--no-cache", "other.toml"], "other.toml", {"all"}),
        (["run", "--no-cache", "Trainer", "other.toml"], "other.toml", {"Trainer"}),
        (["run", "other.toml", "--no-cache"], "other.toml", {"all"}),
        (["run", "--no-cache", "--json"], "pipeline.toml", {"all"}),
        (
            ["run", "--no-cache", "Trainer", "--no-cache", "DataGate"],
            "pipeline.toml",
            {"Trainer", "DataGate"},
        ),
    ],
)
def test_no_cache_takes_a_node_or_none(folder, asked, arguments, config, forced):
    (folder / "other.toml").write_text(LEAST, encoding="utf-8")
    assert cli.execute(arguments) == 0
    every = {node.id for node in definition.NODES}
    assert asked[0]["no_cache"] == (every if forced == {"all"} else forced)
    assert asked[0]["config"].path == folder / config


@pytest.mark.parametrize("arguments", [["--no-cache", "Trainr"], ["--no-cache=Trainr"]])
def test_a_node_that_does_not_exist_is_refused_with_the_nearest(folder, asked, arguments, capsys):
    assert cli.execute(["run", *arguments]) == 2
    assert capsys.readouterr().err == ("--no-cache Trainr: no such node; the nearest is Trainer\n")
    assert not asked


def test_set_reaches_the_configuration(folder, asked):
    assert cli.execute(["run", "--set", "training.epochs=4", "--set", "data.ignore=['x']"]) == 0
    assert asked[0]["config"].training.epochs == 4
    assert asked[0]["config"].data.ignore == ("x",)


def test_json_of_a_run_is_one_object(folder, asked, capsys):
    assert cli.execute(["run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--json", "--set", "training.epoch=1"], "the nearest key is training.epochs"),
        (["run", "--json", "away.toml"], "away.toml: no such file"),
        (["run", "--json", "--bogus"], "No such option: --bogus"),
        (["check", "--json", "away.toml"], "away.toml: no such file"),
        (["runs", "--json", "away.toml"], "away.toml: no such file"),
    ],
)
def test_json_of_a_wrong_command_is_one_object_that_says_so(folder, capsys, arguments, said):
    assert cli.execute(arguments) == 2
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["status"] == "failed"
    assert said in told["error"]
    assert err == told["error"] + "\n"
    if arguments[0] == "run":
        assert set(told) == {"status", "error", *cli.RUN_FIELDS}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "headrace: No such command 'bogus'; see: headrace --help"),
        (["run", "a", "b"], "headrace run: Got unexpected extra argument"),
        (["example"], "headrace example: Missing argument 'NAME'"),
        (
            ["example", "zebra"],
            "zebra: no such example; take one of digits, flights, flights-best, penguins",
        ),
        (["ui", "--port", "x"], "headrace ui: Invalid value for '--port'"),
        (["ui", "--port", "70000"], "headrace ui: Invalid value for '--port'"),
        (["runs", "diff", "1"], "headrace runs diff: Missing argument 'RUN'"),
        (["report"], "there is no report yet; first: headrace run"),
    ],
)
def test_a_wrong_command_line_gives_one_line_and_exit_2(folder, capsys, arguments, said):
    assert cli.execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (SettingError("is wrong", where="x"), 2, "failed"),
        (DataRefused("the data is bad"), 3, "rejected"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by zero"), 4, "failed"),
    ],
)
def test_whatever_is_raised_becomes_its_exit_code_and_no_traceback(
    folder, monkeypatch, capsys, error, code, status
):
    def run(*_, **__):
        raise error

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(runner, "run", run)
    try:
        assert cli.execute(["run", "--json"]) == code
    finally:
        signal.signal(signal.SIGINT, handler)
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == status
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_an_unexpected_error_leaves_its_traceback_in_a_file_that_the_message_names(
    folder, monkeypatch, capsys
):
    def run(*_, **__):
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(runner, "run", run)
    assert cli.execute(["run"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("this is a fault of headrace: ZeroDivisionError: by; ")
    log = Path(err.rsplit(" ", 1)[-1].strip())
    assert "Traceback" in log.read_text()
    log.unlink()


def test_ctrl_c_twice_ends_with_130_and_one_line(folder):
    program = (
        "import sys, time; from pipeline import cli, runner\n"
        "def run(*_, **__):\n"
        "    try:\n"
        "        print('up', flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        print('closing', flush=True); time.sleep(60)\n"
        "runner.run = run\n"
        "sys.exit(cli.execute(['run']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "closing\n"
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "interrupted\n"


def test_a_reader_that_leaves_early_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-c", "input(); from pipeline import cli; cli.main()", "--help"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        process.stdin.write("the reader has gone\n")
        process.stdin.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")


def test_example_writes_a_folder_and_says_what_comes_next(folder, capsys):
    assert cli.execute(["example", "penguins"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "penguins/penguins.csv",
        "penguins/pipeline.toml",
        "",
        "next: headrace run penguins/pipeline.toml",
    ]
    assert cli.execute(["example", "penguins", "--out", "elsewhere/p"]) == 0
    assert (folder / "elsewhere/p/penguins.csv").is_file()


def test_report_prints_the_path(folder, capsys):
    path = folder / "runs/pipeline/report.html"
    path.parent.mkdir(parents=True)
    path.write_text("<html>")
    assert cli.execute(["report"]) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_check_of_bad_settings_ends_with_2_and_says_all(folder, capsys):
    (folder / "a.csv").write_text("x,lte\n1,0\n")
    assert cli.execute(["check", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "failed"
    assert "the data has no column late; the nearest is lte" in told["error"]
    assert cli.execute(["check"]) == 2
    assert "no column late" in capsys.readouterr().out


def test_check_of_a_good_folder_ends_with_0(folder, capsys):
    assert cli.execute(["example", "penguins", "--out", "."]) == 2  # pipeline.toml differs
    (folder / "pipeline.toml").unlink()
    assert cli.execute(["example", "penguins", "--out", "."]) == 0
    assert cli.execute(["check"]) == 0
    assert "nothing found that would stop a run" in capsys.readouterr().out
