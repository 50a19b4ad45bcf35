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

from pipeline import display, lines, live_block
from pipeline.progress import Progress

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
    {
        "event": "run_started",
        "time": -5.0,
        "run": "12",
        "pipeline": "flights",
        "command": [],
        "after": 2.5,
    },
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
    assert said[:2] == [
        "starting         running              TFX and TensorFlow",
        "starting         done          7.5 s  TFX and TensorFlow",
    ]
    assert said[2] == "ExampleGen       done          3.1 s  ran: first run"
    assert said[3] == "warning: the server is away"
    assert sum(line.startswith("ExampleGen") for line in said) == 1
    assert "Trainer          done         30.0 s  ran: training.epochs 2 → 4" in said
    assert "Pusher           not run" in said


def test_plain_lines_tell_the_plan_each_evaluation_and_some_steps(capsys):
    run(display.PlainScreen())
    out = capsys.readouterr().out.splitlines()
    said = [line for line in out if line.startswith("Trainer          running")]
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


def test_the_closing_block_says_what_all_the_seconds_were(capsys):
    run(display.PlainScreen())
    # 41.2 s: 2.5 before the journal and 5 after it, 33.1 in the two nodes, 0.6 left.
    assert (
        "  time       7.5 s to start TFX and TensorFlow, 33.1 s in the nodes, "
        "0.6 s for the report, MLflow and the rest\n"
    ) in capsys.readouterr().out


def test_a_run_with_nothing_to_do_names_the_run_that_it_took_all_from(capsys):
    cached = [{"id": "ExampleGen", "state": "cached", "why": "cached: same", "seconds": 0.0}]
    display.PlainScreen().finish({**RESULT, "seconds": 0.8, "nodes": cached})
    out = capsys.readouterr().out
    assert "flights: succeeded in 0.8 s, nothing had changed since run 12" in out
    assert "to start TFX" not in out
    assert "starting" not in out


def ended(how, *, status, code):
    """Events and result of a run whose second node was ended."""
    why = f"ran: first run; {how}"
    node = {"id": "DataGate", "state": "failed", "why": why, "seconds": 4.25}
    events = [*EVENTS[:7], {"event": "node", "time": 9.0, **node}]
    after = {"id": "Trainer", "state": "not_run", "why": f"not reached: DataGate {how}"}
    nodes = [RESULT["nodes"][0], node, {**after, "seconds": 0.0}]
    return events, {**RESULT, "status": status, "nodes": nodes, "exit_code": code}


@pytest.mark.parametrize(
    ("how", "status", "line"),
    [
        ("refused", "rejected", "DataGate         refused       4.2 s  ran: first run"),
        ("interrupted", "interrupted", "DataGate         interrupted   4.2 s  ran: first run"),
    ],
)
def test_a_node_that_was_ended_says_how_and_after_how_long(capsys, how, status, line):
    events, result = ended(how, status=status, code=3)
    screen = display.PlainScreen()
    for event in events:
        screen.on_event(event)
    screen.finish(result)
    said = capsys.readouterr().out.splitlines()
    assert said.count(line) == 1
    assert f"Trainer          not run              not reached: DataGate {how}" in said


def test_a_run_that_is_interrupted_while_it_starts_says_so(capsys):
    screen = display.PlainScreen()
    for event in EVENTS[:3]:
        screen.on_event(event)
    nodes = [{"id": "ExampleGen", "state": "not_run", "why": "not reached", "seconds": 0.0}]
    screen.finish({**RESULT, "status": "interrupted", "seconds": 3.0, "nodes": nodes})
    said = capsys.readouterr().out.splitlines()
    assert "starting         interrupted   3.0 s  TFX and TensorFlow" in said
    assert "  time       3.0 s to start TFX and TensorFlow" in said


def test_a_refusal_is_told_once_and_the_last_line_sums_it_up(capsys):
    line = "flights.csv:1841: values that the schema has not: ZZ; and more in one long line"
    display.PlainScreen().finish({**RESULT, "status": "rejected", "error": line})
    out, err = capsys.readouterr()
    assert out.count("values that the schema has not: ZZ") == 1
    assert '"carrier:UNEXPECTED_VALUES" = "warn" under [validation.rules] lets it pass' in out
    assert err == (
        "the data gate refused the data: 1 anomaly in 1 column, told above and in the report\n"
    )
    display.SilentScreen().finish({**RESULT, "status": "rejected", "error": line})
    assert json.loads(capsys.readouterr().out)["error"] == line


def test_training_that_goes_on_from_a_checkpoint_says_where_once(capsys):
    screen = display.PlainScreen()
    started = {**EVENTS[8], "start_step": 156, "steps": 720}
    resumed = {"event": "resumed", "time": 4.5, "step": 156, "epoch": 3, "path": "/c", "steps": 720}
    for event in [*EVENTS[:8], resumed, started]:
        screen.on_event(event)
    training = {**RESULT["training"], "resumed_from_step": 156, "steps": 720}
    screen.finish({**RESULT, "training": training})
    said = capsys.readouterr().out.splitlines()
    assert said.count("Trainer          running              resumed at step 156 of 720") == 1
    assert "  training   resumed at step 156 of 720" in said
    # A journal without the event says it by the step that training starts from.
    screen = display.PlainScreen()
    screen.on_event(started)
    assert "resumed at step 156 of 720" in capsys.readouterr().out


def test_a_model_that_was_not_pushed_is_told_where_its_path_would_stand(capsys):
    screen = display.PlainScreen()
    reason = {"reason": "loss 0.6 is not below the baseline's 0.55", "remedy": "train longer"}
    said = "not pushed: loss 0.6 is not below the baseline's 0.55; train longer"
    events = [
        {"event": "node", "time": 1.0, "id": "Pusher", "state": "waiting", "why": "ran: first run"},
        {"event": "not_pushed", "time": 2.0, "id": "Pusher", **reason},
        {"event": "warning", "time": 2.0, "id": "Pusher", "message": f"the model was {said}"},
        {"event": "node", "time": 3.0, "id": "Pusher", "state": "done", "seconds": 0.1},
    ]
    for event in events:
        screen.on_event(event)
    why = f"ran: first run; {said}"
    node = {"id": "Pusher", "state": "ran", "why": why, "seconds": 0.1}
    screen.finish({**RESULT, "nodes": [node], "model": None})
    out = capsys.readouterr().out
    assert f"Pusher           done          0.1 s  {why}\n" in out
    assert f"  model      {said}\n" in out
    assert "warning" not in out


def test_what_training_warns_of_stands_in_the_closing_block_too(capsys):
    screen = display.PlainScreen()
    message = "stopped early after epoch 3: the loss rose at one evaluation"
    screen.on_event({"event": "warning", "time": 1.0, "id": "Trainer", "message": message})
    screen.finish(RESULT)
    said = capsys.readouterr().out.splitlines()
    assert f"warning: {message}" in said
    assert f"  warning    {message}" in said


def drawn(progress: Progress, width: int, **more) -> list[str]:
    from rich.console import Console

    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    block = live_block.block(progress, width=width, now=24.0, **more)
    with console.capture() as shown:
        console.print(block)
    return shown.get().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_live_block_keeps_to_the_width_of_the_terminal(width):
    progress = Progress()
    for event in EVENTS:
        progress.take(event)
    shown = drawn(progress, width)
    assert max(map(len, shown)) <= width
    text = " ".join(" ".join(shown).split())
    for fact in ("step 1,050 of 2,100, loss 0.5, 9,000 examples/s", "2,100 steps, 2 epochs"):
        assert fact in text
    assert next(line for line in shown if line.startswith("Trainer")).split()[1] == "running"
    assert [line.count("━") == line.count("─") > 0 for line in shown].count(True) == 1


def test_the_live_block_counts_the_seconds_of_the_start_until_a_node_runs():
    progress = Progress()
    for event in EVENTS[:3]:
        progress.take(event)
    # It began 7.5 s before the time 0, and it is 24 s later.
    assert drawn(progress, 80)[0] == "starting         running      31.5 s  TFX and TensorFlow"
    progress.take(EVENTS[3])
    assert drawn(progress, 80)[0] == "starting         done          7.5 s  TFX and TensorFlow"


def test_a_terminal_gets_long_lines_wrapped_with_a_hanging_indent():
    text = (
        "  stop       carrier: values that the schema has not, in /a/path/that/stays/whole.csv:12"
    )
    assert lines.wrapped(text, 50, lines.CLOSING_HANG) == [
        "  stop       carrier: values that the schema has",
        "             not, in",
        "             /a/path/that/stays/whole.csv:12",
    ]
    assert lines.wrapped("short", 50, 13) == ["short"]
    assert lines.wrapped("", 50, 13) == [""]


def test_what_is_no_terminal_gets_one_line_however_long(capsys):
    long = {**RESULT["anomalies"][0], "message": "word " * 60}
    display.PlainScreen().finish({**RESULT, "anomalies": [long]})
    assert f"{'':<13}{'word ' * 60}\n" in capsys.readouterr().out


def test_a_terminal_without_utf_8_gets_plain_lines(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert type(display.screen(as_json=False)) is display.PlainScreen


def test_of_short_epochs_one_evaluation_a_second_is_told_and_the_last(capsys):
    screen = display.PlainScreen()
    screen.on_event({**EVENTS[8], "steps": 60})
    for step in range(1, 61):
        evaluation = {"event": "evaluation", "time": 10 + step / 10, "step": step, "epoch": step}
        screen.on_event({**evaluation, "loss": 0.5})
    said = [line for line in capsys.readouterr().out.splitlines() if "evaluated" in line]
    assert 5 <= len(said) <= 8
    assert "epoch 60, evaluated: loss 0.5" in said[-1]


def test_the_splits_of_one_anomaly_stand_together_and_their_remedy_once(capsys):
    carrier = RESULT["anomalies"][0]
    other = {**carrier, "feature": "origin", "what_to_do": "correct these rows"}
    found = [carrier, other, {**carrier, "split": "train", "rows": 1}]
    display.PlainScreen().finish({**RESULT, "anomalies": found})
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    heads = [line for line in said if line.startswith("stop")]
    assert heads == [
        "stop       carrier: UNEXPECTED_VALUES in eval, 212 rows",
        "stop       carrier: UNEXPECTED_VALUES in train, 1 row",
        "stop       origin: UNEXPECTED_VALUES in eval, 212 rows",
    ]
    assert sum("add them to the schema" in line for line in said) == 1


def test_a_low_terminal_shows_what_runs_now():
    progress = Progress()
    for event in EVENTS:
        progress.take(event)
    for name in ("Evaluator", "Pusher"):
        progress.take({"event": "node", "time": 0.0, "id": name, "state": "waiting"})
    whole = drawn(progress, 80)
    assert drawn(progress, 80, height=len(whole)) == whole
    low = drawn(progress, 80, height=6)
    assert len(low) == 6
    assert any(line.startswith("Trainer") for line in low)
    assert any("step 1,050 of 2,100" in line for line in low)
    progress.nodes["Trainer"].state, progress.nodes["ExampleGen"].state = "waiting", "running"
    assert drawn(progress, 80, height=2)[0].startswith("ExampleGen")
