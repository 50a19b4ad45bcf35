from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import sys
import threading

import pytest

from pipeline import display, lines

RESULT = {
    "status": "succeeded",
    "pipeline": "flights",
    "run_id": "12",
    "seconds": 41.2,
    "nodes": [
        {"id": "ExampleGen", "state": "ran", "why": "ran: first run", "seconds": 3.1},
        {"id": "Trainer", "state": "ran", "why": "ran: training.epochs 2 → 4", "seconds": 30.0},
        {"id": "Pusher", "state": "not_run", "why": "", "seconds": 0.0},
    ],
    "examples": {"train": 269421, "eval": 67355},
    "anomalies": [
        {
            "feature": "carrier",
            "kind": "UNEXPECTED_VALUES",
            "split": "eval",
            "severity": "stop",
            "message": "values that the schema has not: ZZ",
            "rows": 212,
            "where": ["flights.csv:1841", "flights.csv:2977"],
            "what_to_do": "add them to the schema",
        }
    ],
    "metrics": {"loss": 0.41234, "auc": 0.74},
    "baseline": {"loss": 0.55, "auc": 0.5},
    "training": {
        "peak_memory_bytes": 812345678,
        "planned_memory_bytes": 830000000,
        "process_memory_bytes": 1512345678,
    },
    "mlflow": {"tracking_uri": "sqlite:////x", "experiment": "flights", "run_id": "abc"},
    "report": "/x/report.html",
    "model": "/x/models/3",
    "error": None,
    "exit_code": 0,
}
EVENTS = [
    {"event": "run_started", "time": 0.0, "run": "12", "pipeline": "flights", "command": []},
    {"event": "node", "time": 0.0, "id": "ExampleGen", "state": "waiting", "why": "ran: first run"},
    {"event": "node", "time": 0.0, "id": "Trainer", "state": "waiting", "why": "ran: new"},
    {"event": "node", "time": 0.0, "id": "ExampleGen", "state": "running", "seconds": 0.0},
    {"event": "progress", "time": 1.0, "id": "ExampleGen", "done": 5, "total": 9, "unit": "rows"},
    {"event": "node", "time": 3.1, "id": "ExampleGen", "state": "done", "seconds": 3.1},
    {"event": "warning", "time": 3.2, "id": "x", "message": "the server is away"},
    {"event": "node", "time": 4.0, "id": "Trainer", "state": "running", "seconds": 0.0},
    {
        "event": "training_started",
        "time": 5.0,
        "steps": 2100,
        "epochs": 2,
        "global_batch": 1024,
        "micro_batch": 64,
        "accumulation_steps": 16,
        "precision": "float32",
        "planned_memory_bytes": 830000000,
    },
    {"event": "train_step", "time": 6.0, "step": 1, "epoch": 0, "loss": 0.7},
    {
        "event": "train_step",
        "time": 20.0,
        "step": 1050,
        "epoch": 0,
        "loss": 0.5,
        "examples_per_second": 9000.0,
        "updates_per_second": 10.0,
        "skipped_steps": 2,
    },
    {"event": "evaluation", "time": 21.0, "step": 1050, "epoch": 1, "loss": 0.44, "auc": 0.7},
]


def run(screen) -> None:
    with screen:
        for event in EVENTS:
            screen.on_event(event)
        screen.finish(RESULT)


def test_plain_lines_tell_each_node_once_with_state_time_and_why(capsys):
    run(display.PlainScreen())
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "ExampleGen       done          3.1 s  ran: first run"
    assert said[1] == "warning: the server is away"
    assert sum(line.startswith("ExampleGen") for line in said) == 1
    assert "Trainer          done         30.0 s  ran: training.epochs 2 → 4" in said
    assert "Pusher           not run" in said


def test_plain_lines_tell_the_plan_each_evaluation_and_some_steps(capsys):
    run(display.PlainScreen())
    said = [line for line in capsys.readouterr().out.splitlines() if "running" in line]
    assert len(said) == 3
    assert said[0].endswith(
        "2,100 steps, 2 epochs, global batch 1,024 (16 x 64), float32, planned memory 830 MB"
    )
    assert said[1].endswith(
        "step 1,050 of 2,100, loss 0.5, 9,000 examples/s, 1 min 45 s left, 2 skipped"
    )
    assert said[2].endswith("epoch 1, evaluated: loss 0.44, auc 0.7")


def test_the_closing_block_has_metrics_beside_the_baseline_anomalies_memory_and_paths(capsys):
    run(display.PlainScreen())
    text = capsys.readouterr().out
    assert "flights: succeeded in 41.2 s, run 12" in text
    assert re.search(r"^  auc +0\.74 +0\.5$", text, re.MULTILINE)
    assert re.search(r"^  loss +0\.4123 +0\.55$", text, re.MULTILINE)
    assert "stop       carrier: UNEXPECTED_VALUES in eval, 212 rows" in text
    assert "at flights.csv:1841, flights.csv:2977" in text
    assert "add them to the schema" in text
    assert "measured 812 MB, planned 830 MB (+2.2%); the whole process 1.51 GB" in text
    for place in ("/x/report.html", "/x/models/3", "run abc of flights, sqlite:////x"):
        assert place in text


def test_plain_lines_hold_no_control_characters_whatever_the_data_holds(capsys):
    screen = display.PlainScreen()
    bad = "a\x1b[31m\tb\r\n\x07c\u202e"
    screen.on_event({"event": "warning", "time": 0.0, "message": bad})
    screen.on_event({"event": "node", "time": 0.0, "id": bad, "state": "failed", "why": bad})
    screen.finish({**RESULT, "status": "failed", "error": bad, "report": bad, "exit_code": 4})
    out, err = capsys.readouterr()
    for line in (out + err).split("\n"):
        assert line.isprintable(), repr(line)
    assert r"a\x1b[31m\tb\r\n\x07c\u202e" in err


def test_an_error_goes_to_standard_error_in_one_line(capsys):
    screen = display.PlainScreen()
    screen.finish({**RESULT, "status": "failed", "error": "Trainer failed: so", "exit_code": 4})
    out, err = capsys.readouterr()
    assert err == "Trainer failed: so\n"
    assert "Trainer failed" not in out


def test_json_is_one_object_and_nothing_else(capsys):
    screen = display.screen(as_json=True)
    with screen:
        for event in EVENTS:
            screen.on_event(event)
        metrics = {"loss": float("nan"), "auc": float("inf")}
        screen.finish({**RESULT, "metrics": metrics})
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert err == ""
    said = json.loads(out, parse_constant=pytest.fail)
    assert said.keys() == RESULT.keys() - {"exit_code"}
    assert said["metrics"] == {"loss": None, "auc": None}


def test_a_node_without_a_last_event_is_told_from_the_result(capsys):
    screen = display.PlainScreen()
    cached = [{"id": "ExampleGen", "state": "cached", "why": "cached: same", "seconds": 0.0}]
    screen.finish({**RESULT, "nodes": cached})
    assert "ExampleGen       cached        0.0 s  cached: same" in capsys.readouterr().out


def test_a_run_that_never_started_says_what_it_can(capsys):
    empty = dict.fromkeys(RESULT) | {"status": "failed", "pipeline": "x", "seconds": 0.0}
    display.PlainScreen().finish(empty)
    assert "x: failed in 0.0 s" in capsys.readouterr().out


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_the_live_block_and_no_color_takes_the_colours_away(monkeypatch, no_color):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    shown = _on_terminal(monkeypatch)
    assert "ExampleGen" in shown
    assert "step 1,050 of 2,100" in shown
    assert "flights: succeeded in 41.2 s, run 12" in shown
    assert ("\x1b[32m" in shown) == (not no_color)
    assert "\x1b[?25h" in shown, "the cursor stayed hidden"


def _on_terminal(monkeypatch: pytest.MonkeyPatch) -> str:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        # The terminal holds a few KB; Linux ends the reading with EIO once its writer is closed.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        screen = display.screen(as_json=False)
        assert isinstance(screen, display.LiveScreen)
        with screen:
            for event in EVENTS:
                screen.on_event(event)
            screen._live.refresh()
            screen.finish(RESULT)
        monkeypatch.undo()
    reader.join(10)
    os.close(ours)
    return b"".join(shown).decode()


def test_the_live_block_leaves_the_terminal_in_order_when_a_run_dies(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = display.LiveScreen()
    with pytest.raises(KeyboardInterrupt), screen:
        raise KeyboardInterrupt
    assert screen._live is None


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert type(display.screen(as_json=False)) is display.PlainScreen


def test_a_stream_without_utf_8_gets_escapes_instead_of_an_error(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    display.show(["größe → 3"])
    stream.flush()
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfe \\u2192 3\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (99.9, "99.9 s"), (99.96, "1 min 40 s"), (3599.7, "1 h 00 min")],
)
def test_times_are_read_as_a_person_says_them(seconds, text):
    assert lines.duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (812345678, "812 MB"), (None, "not measured")],
)
def test_sizes_have_a_unit(size, text):
    assert lines.size(size) == text
