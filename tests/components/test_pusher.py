"""A version folder is whole or absent, whatever happens while it is made."""

import errno
import filecmp
import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tfx.types import standard_artifacts

from components import pusher
from components.pusher import Pusher_Executor, highest_version, push
from trainer.errors import TrainingError
from trainer.journal import read

FILES = [
    "fingerprint.pb",
    "saved_model.pb",
    "variables/variables.data",
    "variables/variables.index",
]


@pytest.fixture
def model(tmp_path) -> Path:
    """A folder laid out as a SavedModel, 200 kB."""
    folder = tmp_path / "model" / "Format-Serving"
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(50_000))
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_version_is_the_model_byte_for_byte(tmp_path, model):
    version, folder = push(model, tmp_path / "models")
    assert (version, folder) == (1, tmp_path / "models" / "1")
    assert filecmp.cmpfiles(model, folder, FILES, shallow=False) == (FILES, [], [])
    assert files(folder) == FILES
    assert os.listdir(tmp_path / "models") == ["1"]
    assert os.stat(folder).st_mode == os.stat(model).st_mode


def test_a_version_is_one_above_the_highest_number(tmp_path, model):
    destination = tmp_path / "models"
    for name in ("2", "10", "007", "latest", "11.tmp", "-12", "1³"):
        (destination / name).mkdir(parents=True)
    (destination / "12").write_text("a file with a number for a name")
    assert highest_version(destination) == 12
    assert push(model, destination)[0] == 13


@pytest.mark.parametrize("step", ["copy", "flush", "rename"])
def test_a_failing_push_leaves_no_version_and_no_rest(tmp_path, model, monkeypatch, step):
    push(model, tmp_path / "models")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    copy, copied = shutil.copyfile, []

    def copy_one(source, target, **options):  # full after the first file
        return fail() if copied else copied.append(copy(source, target, **options))

    broken = {"copy": ("shutil.copyfile", copy_one), "flush": ("os.fsync", fail),
              "rename": ("os.rename", fail)}  # fmt: skip
    monkeypatch.setattr(*broken[step])
    with pytest.raises(TrainingError, match=r"pushed: .*No space left on device"):
        push(model, tmp_path / "models")
    assert os.listdir(tmp_path / "models") == ["1"]
    monkeypatch.undo()
    assert push(model, tmp_path / "models")[0] == 2


def test_pushes_at_the_same_time_get_numbers_of_their_own(tmp_path, model):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: push(model, tmp_path / "models"), range(16)))
    assert sorted(version for version, _ in found) == list(range(1, 17))
    assert all(files(folder) == FILES for _, folder in found)


def test_a_watcher_sees_only_whole_versions(tmp_path, model):
    destination, seen, over = tmp_path / "models", set(), threading.Event()
    destination.mkdir()

    def watch() -> None:
        while not over.is_set():
            for folder in destination.iterdir():
                if folder.name.isdigit():
                    seen.add((folder.name, tuple(files(folder))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        push(model, destination)
    over.set()
    watcher.join()
    assert seen
    assert {found for _, found in seen} == {tuple(FILES)}


def test_a_number_that_someone_else_took_is_not_overwritten(tmp_path, model, monkeypatch):
    other = tmp_path / "models" / "1"
    other.mkdir(parents=True)
    (other / "saved_model.pb").write_bytes(b"theirs")
    answers = iter([0, 1])
    monkeypatch.setattr(pusher, "highest_version", lambda _: next(answers))
    assert push(model, tmp_path / "models")[0] == 2
    assert (other / "saved_model.pb").read_bytes() == b"theirs"


def test_what_is_no_saved_model_is_not_pushed(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainingError, match="no SavedModel"):
        push(tmp_path / "empty", tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_a_push_killed_while_copying_leaves_no_version_and_the_next_one_clears_up(tmp_path, model):
    child = os.fork()
    if not child:
        pusher._flush = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        try:
            pusher.push(model, tmp_path / "models")
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    (rest,) = os.listdir(tmp_path / "models")
    assert rest.startswith(pusher.INCOMING)
    assert push(model, tmp_path / "models")[0] == 1
    assert os.listdir(tmp_path / "models") == ["1"]


def run_component(tmp_path: Path, model: Path, *, blessed: int, remedy: str = "train longer"):
    artifacts = {
        "model": standard_artifacts.Model(),
        "blessing": standard_artifacts.ModelBlessing(),
        "pushed": standard_artifacts.PushedModel(),
        "examples": standard_artifacts.Examples(),
        "statistics": standard_artifacts.ExampleStatistics(),
        "schema": standard_artifacts.Schema(),
        "evaluation": standard_artifacts.ModelEvaluation(),
        "model_run": standard_artifacts.ModelRun(),
    }
    for name in ("examples", "statistics", "schema", "evaluation", "model_run"):
        artifacts[name].uri = str(tmp_path / name)
    artifacts["model"].uri = str(model.parent)
    artifacts["blessing"].set_int_custom_property("blessed", blessed)
    artifacts["blessing"].set_string_custom_property("blessing_message", "loss 0.6 is above 0.5")
    if remedy:
        artifacts["blessing"].set_string_custom_property("blessing_remedy", remedy)
    artifacts["pushed"].uri = str(tmp_path / "pushed")
    Pusher_Executor().Do(
        {name: [one] for name, one in artifacts.items() if name != "pushed"},
        {"pushed": [artifacts["pushed"]]},
        {"settings": json.dumps({"destination": str(tmp_path / "models")}), "fingerprint": "{}"},
    )
    return artifacts["pushed"]


def test_the_component_pushes_a_blessed_model_as_tfx_does(tmp_path, model, monkeypatch):
    monkeypatch.setenv("HEADRACE_EVENTS", str(tmp_path / "events.jsonl"))
    pushed = run_component(tmp_path, model, blessed=1)
    destination = str(tmp_path / "models" / "1")
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property("pushed_destination") == destination
    assert pushed.get_string_custom_property("pushed_version") == "1"
    beside = ["card.md", "pipeline.toml"]  # nothing else was made here to stand beside it
    assert files(tmp_path / "pushed") == files(tmp_path / "models" / "1") == sorted(FILES + beside)
    assert os.stat(destination).st_mode == os.stat(model).st_mode
    events, _ = read(tmp_path / "events.jsonl")
    assert [(one["event"], one["version"], one["path"]) for one in events] == [
        ("pushed", 1, destination)
    ]


@pytest.mark.parametrize("remedy", ["train longer", ""])
def test_the_component_pushes_nothing_that_was_not_blessed_and_says_why(
    tmp_path, model, monkeypatch, remedy
):
    monkeypatch.setenv("HEADRACE_EVENTS", str(tmp_path / "events.jsonl"))
    pushed = run_component(tmp_path, model, blessed=0, remedy=remedy)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not (tmp_path / "models").exists()
    events, _ = read(tmp_path / "events.jsonl")
    assert [(one["event"], one["id"]) for one in events] == [
        ("not_pushed", "Pusher"),
        ("warning", "Pusher"),
    ]
    assert (events[0]["reason"], events[0]["remedy"]) == ("loss 0.6 is above 0.5", remedy)
    said = "the model was not pushed: loss 0.6 is above 0.5"
    assert events[1]["message"] == said + (f"; {remedy}" if remedy else "")
