from __future__ import annotations

import json

import pytest

from kubeflow import tracking
from trainer import journal
from trainer.errors import DataRefused, NotFinite

pytestmark = pytest.mark.slow  # each process imports MLflow


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """An empty store: making one takes longer than all that is done with it."""
    from mlflow import MlflowClient

    made = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    MlflowClient(tracking_uri=made).search_experiments(max_results=1)
    return made


def spec(node, uri="", name="penguins", workers=1):
    settings = {"training.epochs": 3, "training.learning_rate": 0.5, "training.workers": workers}
    whole = json.dumps({"data": {"content": "x"}, "settings": settings})
    parameters = {"fingerprint": {"field_value": {"string_value": whole}}}
    facts = {
        "Trainer": {"tracking_uri": uri},
        "Evaluator": {"tracking_uri": uri, "settings": {"evaluation.margin": 0.25}},
    }
    return {
        "id": node,
        "pipeline": name,
        "facts": facts.get(node, {}),
        "node": {"parameters": {"parameters": parameters if node == "Trainer" else {}}},
    }


def given(folder):
    (folder / "model_run").mkdir(exist_ok=True)
    place = {"path": str(folder / "model_run"), "metadata": {}}
    return {"out_model_run": place, "in_trainer_model_run": place}


def train(folder, what, scratch="trainer"):
    place = folder / scratch
    place.mkdir()
    with tracking.tracked(what, given(folder), place):
        journal.append(place / "events.jsonl", "train_step", step=1, loss=0.75)
        tracking.keep(what, given(folder), place)


def evaluate(folder, what, scratch="evaluator", **values):
    place = folder / scratch
    place.mkdir()
    with tracking.tracked(what, {**given(folder), **values}, place):
        facts = {"metrics": {"accuracy": 0.9}, "baseline": {"accuracy": 0.4}, "blessed": True}
        journal.append(place / "events.jsonl", "metrics", **facts)


def runs(uri, experiment):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def test_two_tasks_write_one_run_where_the_configuration_says(uri, tmp_path):
    train(tmp_path, spec("Trainer", uri, "two"))
    evaluate(tmp_path, spec("Evaluator", uri, "two"))
    (run,) = runs(uri, "two")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["train/loss"] == 0.75
    assert (run.data.metrics["accuracy"], run.data.metrics["baseline/accuracy"]) == (0.9, 0.4)
    assert run.data.params == {
        "training.epochs": "3", "training.learning_rate": "0.5", "training.workers": "1",
        "evaluation.margin": "0.25",
    }  # fmt: skip


def test_a_password_in_the_address_is_in_no_artifact(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://planted:word@127.0.0.1:9/")
    what, place = spec("Trainer"), tmp_path / "trainer"
    place.mkdir()
    told = tracking._of_trainer(what, given(tmp_path), place)
    tracking.keep(what, given(tmp_path), place)
    assert "planted" in told["tracking_uri"]
    held = (tmp_path / "model_run" / tracking.SHARED).read_text()
    assert "planted" not in held
    assert "127.0.0.1" not in held


def test_the_run_is_nested_under_that_of_kfps_plugin(uri, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("theirs")
    parent = client.create_run(experiment).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.setenv("MLFLOW_RUN_ID", parent)
    monkeypatch.setenv("HEADRACE_KFP_RUN", "run-7")
    train(tmp_path, spec("Trainer", "https://not.asked"))
    evaluate(tmp_path, spec("Evaluator", "https://not.asked"))
    (child,) = [one for one in runs(uri, "theirs") if one.info.run_id != parent]
    assert child.data.tags["mlflow.parentRunId"] == parent
    assert child.data.tags["headrace.kubeflow_run"] == "run-7"
    assert child.data.metrics["accuracy"] == 0.9


def test_a_run_has_the_name_that_it_was_given(uri, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_KFP_RUN", "run-8")
    train(tmp_path, spec("Trainer", uri, "named"))
    (run,) = runs(uri, "named")
    assert run.info.run_name == "run-8"
    evaluate(tmp_path, spec("Evaluator", uri, "named"), run_name="larger batch {{x}} ü")
    (run,) = runs(uri, "named")
    assert run.info.run_name == "larger batch {{x}} ü"
    assert run.data.metrics["accuracy"] == 0.9


def test_a_run_whose_training_was_cached_leaves_the_one_that_trained_as_it_was(
    uri, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADRACE_KFP_RUN", "run-1")
    train(tmp_path, spec("Trainer", uri, "cached"))
    evaluate(tmp_path, spec("Evaluator", uri, "cached"), run_name="first")
    monkeypatch.setenv("HEADRACE_KFP_RUN", "run-2")
    evaluate(tmp_path, spec("Evaluator", uri, "cached"), scratch="second", run_name="second")
    found = {one.info.run_name: one for one in runs(uri, "cached")}
    assert set(found) == {"first", "second"}
    assert found["second"].data.tags["headrace.trained_in"] == "run-1"
    assert found["second"].data.tags["headrace.kubeflow_run"] == "run-2"
    assert found["second"].data.params["training.epochs"] == "3"
    assert found["second"].data.metrics["accuracy"] == 0.9
    assert "headrace.trained_in" not in found["first"].data.tags


def test_a_training_that_failed_is_tracked_as_such_and_one_tried_again_goes_on(uri, tmp_path):
    what = spec("Trainer", uri, "failed")
    place = tmp_path / "first"
    place.mkdir()
    with (
        pytest.raises(NotFinite),
        tracking.tracked(what, given(tmp_path), place),
    ):
        raise NotFinite("the loss is not finite", where="training")
    (run,) = runs(uri, "failed")
    assert run.info.status == "FAILED"
    assert "not finite" in json.dumps(run.data.tags)
    # On any number of workers it is the same training, whose checkpoint it goes on from.
    train(tmp_path, spec("Trainer", uri, "failed", workers=2), scratch="second")
    (run,) = runs(uri, "failed")
    assert run.info.status == "FINISHED"


def test_a_server_that_is_away_costs_the_task_nothing_but_the_tracking(tmp_path, capfd):
    train(tmp_path, spec("Trainer", "http://127.0.0.1:9/"))
    assert "MLflow has not got all of this run" in capfd.readouterr().err


def test_without_an_address_and_of_other_nodes_nothing_is_tracked(tmp_path):
    train(tmp_path, spec("Trainer"))
    assert not (tmp_path / "trainer" / "tracking.log").exists()
    with (
        pytest.raises(DataRefused),
        tracking.tracked(spec("DataGate", "http://127.0.0.1:9/"), {}, tmp_path),
    ):
        raise DataRefused("no")
    assert not (tmp_path / "events.jsonl").exists()
