"""How nodes end in the journal and the result; the children are real processes that sleep."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline import cache, config, processes, run_end
from trainer import journal
from trainer.errors import DataRefused

NODES = ("ExampleGen", "DataGate", "Trainer", "Evaluator", "Pusher")


@pytest.fixture
def one(tmp_path):
    """A run of which ExampleGen is done and DataGate has been running for 5 s."""
    (tmp_path / "pipeline.toml").write_text('[data]\nfiles = "a.csv"\nlabel = "b"\n')
    folder = tmp_path / "logs" / "3"
    folder.mkdir(parents=True)
    decision = cache.Decision(cached=False, why="ran: first run", fingerprint={})
    decisions = dict.fromkeys(NODES, decision)
    loaded = config.load(tmp_path / "pipeline.toml")
    one = processes.Run("3", folder, loaded, decisions, lambda event: None)
    for name in NODES:
        one.tell("node", id=name, state="waiting", why=decision.why, seconds=0.0)
    one.tell("node", id="ExampleGen", state="running", seconds=0.0)
    one.tell("node", id="ExampleGen", state="done", seconds=1.0)
    with open(one.events, "a") as file:
        event = {"event": "node", "time": time.time() - 5.0, "id": "DataGate", "state": "running"}
        file.write(json.dumps({**event, "seconds": 0.0}) + "\n")
    one.follow()
    return one


@pytest.mark.parametrize(
    ("code", "why", "after"),
    [
        (3, "ran: first run; refused", "not reached: DataGate refused"),
        (130, "ran: first run; interrupted", "not reached: DataGate interrupted"),
        (143, "ran: first run; interrupted", "not reached: DataGate interrupted"),
        (4, "ran: first run", "not reached: DataGate failed"),
    ],
)
def test_a_node_that_was_ended_has_its_real_seconds_and_says_how(one, code, why, after):
    run_end.end_nodes(one, code)
    last = one.told[-1]
    assert (last["id"], last["state"], last["why"]) == ("DataGate", "failed", why)
    nodes = {node["id"]: node for node in run_end._node_states(one, "")}
    assert nodes["DataGate"]["state"] == "failed"
    assert 5.0 <= nodes["DataGate"]["seconds"] < 60.0
    assert nodes["DataGate"]["why"] == why
    assert nodes["ExampleGen"] == {
        "id": "ExampleGen", "state": "ran", "why": "ran: first run", "seconds": 1.0,
    }  # fmt: skip
    assert nodes["Trainer"] == {"id": "Trainer", "state": "not_run", "why": after, "seconds": 0.0}


def test_a_run_that_ends_well_ends_no_node(one):
    before = len(one.told)
    run_end.end_nodes(one, 0)
    assert len(one.told) == before


def test_a_push_that_added_no_version_says_so_in_its_why(one):
    one.tell("node", id="Pusher", state="done", seconds=0.1)
    why = run_end._node_states(one, "not pushed: loss 2 is not below 1")[-1]["why"]
    assert why == "ran: first run; not pushed: loss 2 is not below 1"


def sleeper(on_sigterm: str = "signal.SIG_DFL") -> subprocess.Popen:
    code = (
        f"import signal, sys, time; signal.signal(signal.SIGTERM, {on_sigterm});"
        "print(flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


def test_an_interrupt_that_a_library_swallows_is_heeded_all_the_same(capsys):
    class Swallows:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    def block():
        with processes.interruptible():
            one = Swallows()
            del one
            after.append("the block goes on, since nothing can be raised from there")

    handler = signal.getsignal(signal.SIGINT)
    after = []
    with pytest.raises(KeyboardInterrupt):
        block()
    assert after
    assert signal.getsignal(signal.SIGINT) is handler
    assert capsys.readouterr().err == ""


def test_the_first_signal_asks_the_second_ends_and_the_third_leaves(one):
    with sleeper("signal.SIG_IGN") as child, processes.signals(one):
        one.children["nodes"] = child
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        assert child.poll() is None
        os.kill(os.getpid(), signal.SIGINT)
        assert child.wait(10) == -signal.SIGKILL
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (one.stopped, one.signals) == (signal.SIGINT, 3)


def test_a_person_who_interrupts_is_told_at_once_what_happens(one):
    slow = "lambda *_: (time.sleep(0.5), sys.exit(1))"
    with sleeper(slow) as child, processes.signals(one):
        one.children["nodes"] = child
        os.kill(os.getpid(), signal.SIGINT)
        assert processes.watch(one) == 130
    told = [event["message"] for event in one.told if event["event"] == "warning"]
    assert told == [processes.STOPPING]


def test_a_signal_ends_the_waiting_for_the_tracking_but_not_the_tracking(one):
    with sleeper() as child, processes.signals(one):
        one.children["tracking"] = child
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        processes.wait_for_tracking(one, 30.0)
        assert time.monotonic() - started < 20
        assert child.poll() is None
        child.kill()


def test_the_error_of_a_refusal_is_the_whole_line(one):
    refused = DataRefused("column a holds words", where="a.csv:2", right="correct them")
    journal.append(one.events, "error", id="DataGate", facts=refused.facts(), exit_code=3)
    one.follow()
    assert run_end.error_line(one, 3) == "a.csv:2: column a holds words; correct them"
