import json

from components.tracking_record import session_of
from pipeline import run_numbers
from pipeline.tracked_runs import TrackedRun
from trainer import journal


def keep(pipeline, number, *, result=None) -> str:
    """Leave a run's folder behind; return the name that MLflow knows the run by."""
    folder = pipeline / "logs" / number
    folder.mkdir(parents=True)
    journal.append(folder / "events.jsonl", "run_started", run=number)
    journal.append(folder / "events.jsonl", "run_ended")
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return session_of(journal.read(folder / "events.jsonl")[0][0])


def tracked(run_id, name, *sessions) -> TrackedRun:
    tags = {run_numbers.SESSIONS: ",".join(sessions)}
    return TrackedRun(run_id, name, "1", "FINISHED", 0, 0, "", tags=tags)


def test_a_run_that_went_on_has_the_number_of_the_last_one_that_wrote_to_it(tmp_path):
    first = keep(tmp_path, "1", result={"status": "succeeded", "mlflow": {"run_id": "a"}})
    second = keep(tmp_path, "2")
    third = keep(tmp_path, "10", result={"status": "succeeded", "mlflow": {"run_id": "b"}})
    found = [tracked("b", "2", second, third), tracked("a", "1", first)]
    named, unlisted = run_numbers.number(found, run_numbers.kept(tmp_path))
    assert [(run.run_id, run.name, run.numbers) for run in named] == [
        ("b", "10", ["2", "10"]), ("a", "1", ["1"]),
    ]  # fmt: skip
    assert unlisted == [run_numbers.Unlisted("2", "unfinished", "went on as run 10", "b")]
    assert [run.name for run in found] == ["2", "1"], "the store's own are left as they are"


def test_runs_that_trained_nothing_or_are_not_in_mlflow_are_told_of(tmp_path):
    first = keep(tmp_path, "1", result={"status": "succeeded", "mlflow": {"run_id": "a"}})
    keep(tmp_path, "2", result={"status": "succeeded", "mlflow": {"run_id": "a"}})
    keep(tmp_path, "3", result={"status": "rejected", "mlflow": None})
    (tmp_path / "logs" / "4").mkdir()
    (tmp_path / "logs" / "ui.log").write_text("")
    _, unlisted = run_numbers.number([tracked("a", "1", first)], run_numbers.kept(tmp_path))
    assert [(one.number, one.status, one.why, one.run_id) for one in unlisted] == [
        ("2", "succeeded", "trained nothing; its model is that of run 1", "a"),
        ("3", "rejected", "is not in MLflow", ""),
        ("4", "unfinished", "is not in MLflow", ""),
    ]


def test_a_run_of_another_folder_never_takes_the_number_of_one_that_is_here(tmp_path):
    own = keep(tmp_path, "1")
    found = [tracked("b", "1", "other"), tracked("c", "7", "another"), tracked("a", "1", own)]
    named, _ = run_numbers.number(found, run_numbers.kept(tmp_path))
    assert [run.name for run in named] == ["1 elsewhere", "7", "1"]


def test_without_folders_the_tracked_runs_keep_their_names(tmp_path):
    named, unlisted = run_numbers.number([tracked("b", "1", "s")], run_numbers.kept(tmp_path))
    assert ([run.name for run in named], unlisted) == (["1"], [])
