from __future__ import annotations

import dataclasses
import json
import socket
import sys
import warnings

import kfp_servers
import pytest
from flows import commands
from kfp_servers import asked

from kubeflow import connection, step, submission, watching
from trainer.errors import HeadraceError, InputError, SettingError

CONFIG = """
name = "penguins"
[data]
files = "penguins.csv"
label = "species"
[kubeflow]
image = "registry.example/headrace:1"
namespace = "{namespace}"
"""
TOKEN = "planted-token"


@pytest.fixture(scope="module")
def server():
    """A KFP server in a process of its own; its address."""
    with kfp_servers.running() as address:
        yield address


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package of four tasks with a parameter of each type, by kfp's own SDK."""
    from kfp import compiler

    source = """
@dsl.component(base_image="registry.example/headrace:1", install_kfp_package=False)
def work(value: float):
    print(value)

@dsl.pipeline(name="penguins")
def penguins(data_files: list = ["a.csv"], epochs: int = 2, learning_rate: float = 0.1,
             shuffle: bool = False, title: str = "", more: dict = {}):
    before = None
    for name in ("data digest", "ExampleGen", "DataGate", "Trainer"):
        task = work(value=learning_rate).set_display_name(name)
        if before is not None:
            task.after(before)
        before = task
"""
    folder = tmp_path_factory.mktemp("package")
    module = folder / "made.py"
    module.write_text(f"from kfp import dsl\n{source}")
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import made
    finally:
        sys.path.remove(str(folder))
    path = folder / "package.yaml"
    compiler.Compiler().compile(made.penguins, str(path))
    text = path.read_text()
    # The tasks' keys as those of our own packages.
    keys = {"work-4": "trainer", "work-3": "data-gate", "work-2": "example-gen"}
    for old, new in keys.items():
        text = text.replace(f"{old}:", f"{new}:").replace(f"- {old}\n", f"- {new}\n")
    text = text.replace("  work:\n        caching", "  data-digest:\n        caching")
    path.write_text(text.replace("- work\n", "- data-digest\n"))
    return submission.read(path)


def connect(server, play, **more):
    given = {"token_file": "", "namespace": "team-a", **more}
    return connection.connect(f"{server}/{play}", **given)


def run(server, package, play, **values):
    found = connect(server, play)
    wanted = submission.Asked("penguins", "a run", values)
    created = submission.create(found, package, wanted)
    events = []
    result = submission.wait(found, package, created, on_event=events.append, poll_seconds=0.01)
    return result, events


def test_the_tasks_of_a_package_are_in_their_order(package):
    assert list(package.tasks) == ["data-digest", "example-gen", "data-gate", "trainer"]
    assert list(package.tasks.values())[1:] == ["ExampleGen", "DataGate", "Trainer"]


def test_a_run_arrives_as_it_was_asked_for_and_is_followed_to_its_end(server, package, capsys):
    result, events = run(server, package, "users", epochs=4, data_files=["s3://bucket/a.csv"])
    assert (result["status"], result["exit_code"], result["error"]) == ("succeeded", 0, None)
    assert result["url"] == f"{server}/users/#/runs/details/run-1"
    assert [one["state"] for one in result["nodes"]] == ["ran", "cached", "ran", "ran"]
    assert [one["seconds"] for one in result["nodes"]] == [7.0] * 4
    # The first state of all, then each change once.
    states = [one["state"] for one in events if one["id"] == "ExampleGen"]
    assert states == ["waiting", "running", "cached"]
    created = next(
        one for one in asked(f"{server}/users")
        if one["method"] == "POST" and one["path"].endswith("/runs")
    )  # fmt: skip
    body = json.loads(created["body"])
    assert body["runtime_config"]["parameters"] == {
        "epochs": 4, "data_files": ["s3://bucket/a.csv"],
    }  # fmt: skip
    assert body["display_name"] == "a run"
    # The same experiment is used again, not made a second time.
    run(server, package, "users")
    made = [one for one in asked(f"{server}/users") if one["path"].endswith("/experiments")]
    assert [one["method"] for one in made] == ["GET", "POST", "GET"]
    # What kfp prints would spoil a script's JSON.
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("play", "status", "code", "says"),
    [
        ("gate", "rejected", 3, "DataGate: later.csv:2: column species"),
        ("silent", "rejected", 3, "DataGate: the log of its task says why"),
        ("lost", "failed", 4, "Trainer: OOMKilled"),
        ("cancelled", "failed", 4, "cancelled in the cluster"),
    ],
)
def test_a_run_that_failed_ends_as_on_this_machine(server, package, play, status, code, says):
    result, _ = run(server, package, play)
    assert (result["status"], result["exit_code"]) == (status, code)
    assert says in result["error"]
    assert "\n" not in result["error"]


def test_a_server_that_is_away_for_a_moment_is_waited_for(server, package):
    result, events = run(server, package, "away")
    assert result["status"] == "succeeded"
    assert [one["event"] for one in events].count("warning") == 1


def test_a_token_that_expires_ends_the_following_and_names_the_run(server, package):
    result, _ = run(server, package, "expired")
    assert (result["status"], result["exit_code"]) == ("failed", 2)
    assert "401 (token is expired)" in result["error"]
    assert result["url"] in result["error"]


@pytest.mark.parametrize(
    ("play", "says"),
    [
        ("closed", "401"),
        ("forbidden", "403 (User mallory is not authorized)"),
        ("old", "older than Kubeflow Pipelines 2.0"),
        ("login", "not as the API of Kubeflow Pipelines"),
        ("broken", "500 (Internal Server Error: no database)"),
    ],
)
def test_a_server_that_does_not_serve_us_is_one_line_with_its_address(server, play, says):
    with pytest.raises(HeadraceError, match=f"^{server}/{play}: ") as refused:
        connect(server, play)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    # Asked once, not five times with pauses.
    assert len(asked(f"{server}/{play}")) == 1


def test_no_server_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(InputError, match=r"no server answers .*refused") as refused:
        connection.connect(f"http://127.0.0.1:{port}", token_file="", namespace="x")
    assert refused.value.exit_code == 2


def test_a_namespace_of_somebody_else_is_refused_by_its_key(server, package):
    found = connect(server, "users", namespace="team-b")
    with pytest.raises(SettingError, match=r"kubeflow\.namespace.*403.*team-b"):
        submission.create(found, package, submission.Asked("penguins", "a run", {}))


def test_a_token_comes_from_a_file_or_the_environment(server, tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    connect(server, "closed", token_file=str(file))
    monkeypatch.setenv("HEADRACE_KFP_TOKEN", TOKEN)
    connect(server, "closed")
    sent = [one["authorization"] for one in asked(f"{server}/closed")]
    assert sent[-2:] == [f"Bearer {TOKEN}"] * 2
    file.write_text(" \n")
    with pytest.raises(InputError, match="is empty"):
        connect(server, "closed", token_file=str(file))


@pytest.mark.parametrize("host", ["kfp.example", "http://me:word@kfp.example", "ftp://kfp"])
def test_an_address_that_is_none_is_refused(host):
    with pytest.raises(InputError, match="--host") as refused:
        connection.connect(host, token_file="", namespace="x")
    assert "word" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("epochs=4", 4),
        ("learning_rate=1", 1.0),
        ("shuffle=false", False),
        ("title=", ""),
        ("title=a=b {{x}} ü", "a=b {{x}} ü"),
        ("data_files=s3://b/*.csv", ["s3://b/*.csv"]),
        ('data_files=["a", "b"]', ["a", "b"]),
        ('more={"a": [1]}', {"a": [1]}),
    ],
)
def test_a_parameter_is_read_as_the_package_has_it(package, text, value):
    ((found,),) = [list(submission.parameters([text], package).values())]
    assert (type(found), found) == (type(value), value)


def test_a_runs_name_is_also_its_parameter_where_the_package_has_one(package):
    kinds = {**package.kinds, "run_name": "STRING"}
    asks = dataclasses.replace(package, kinds=kinds)
    assert submission.named({"epochs": 4}, "larger", asks) == {"run_name": "larger", "epochs": 4}
    # One that is given as a parameter counts.
    assert submission.named({"run_name": "mine"}, "larger", asks) == {"run_name": "mine"}
    assert submission.named({"epochs": 4}, "larger", package) == {"epochs": 4}
    assert submission.named({}, "", asks) == {}


@pytest.mark.parametrize(
    "text",
    ["epochs=4.5", "epochs=five", "learning_rate=nan", "shuffle=maybe", "more=[1]",
     'data_files=["a"', "epoch=4", "epochs"],
)  # fmt: skip
def test_a_parameter_that_is_wrong_is_refused_by_name(package, text):
    with pytest.raises(InputError, match="--param " + text.partition("=")[0]) as refused:
        submission.parameters([text], package)
    assert refused.value.exit_code == 2


def test_what_is_no_package_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: 1")
    with pytest.raises(InputError, match="is no package"):
        submission.read(path)


def test_the_exit_code_of_a_task_comes_through_the_pods_message(tmp_path):
    place = tmp_path / "termination-log"
    step.note("Trainer: memory ran out", 4, place)
    assert not place.exists()
    place.touch()
    step.note("DataGate: " + "x" * 9000, 3, place)
    # Kubernetes keeps 4,096 bytes.
    assert len(place.read_bytes()) <= 4096
    assert watching.exit_code("Other", place.read_text()) == 3


@pytest.mark.slow
def test_the_command_prints_one_json_object_and_no_token(server, package, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_KFP_TOKEN", TOKEN)
    config = tmp_path / "pipeline.toml"
    config.write_text(CONFIG.format(namespace="team-a"))
    arguments = ("kubeflow", "submit", config, "--package", package.path, "--wait")
    said = commands.headrace(*arguments, "--host", f"{server}/gate", "--json")
    assert said.code == 3, said.err
    assert said.json["status"] == "rejected"
    shown = commands.headrace(*arguments, "--host", f"{server}/closed", "--param", "epochs=3")
    assert shown.code == 0, shown.err
    assert f"{server}/closed/#/runs/details/run-1" in shown.out
    assert "ExampleGen       cached" in shown.out
    assert TOKEN not in said.out + said.err + shown.out + shown.err
