import json

from pipeline import results
from pipeline.cache import Output


def output(folder, name, content, **properties):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return Output(str(folder), properties)


def test_a_result_is_read_from_the_artifacts_of_ran_and_cached_nodes(tmp_path):
    training = dict.fromkeys(results.TRAINING_FIELDS, 1)
    outputs = {
        "ExampleGen": {
            "examples": output(tmp_path / "e", "rows.json", {"examples": {"train": 3, "eval": 1}})
        },
        "DataGate": {"verdict": output(tmp_path / "g", "anomalies.json", [{"feature": "a"}])},
        "Trainer": {
            "model_run": output(
                tmp_path / "t", "result.json", {"training": {**training, "other": 2}}
            )
        },
        "Evaluator": {
            "evaluation": output(
                tmp_path / "v", "evaluation.json", {"metrics": {"loss": 1.0}, "baseline": {}}
            )
        },
        "Pusher": {
            "pushed": output(tmp_path / "p", "x.json", {}, pushed_destination="/m/models/3")
        },
    }
    found = results.gather(outputs, [])
    assert found == {
        "examples": {"train": 3, "eval": 1},
        "anomalies": [{"feature": "a"}],
        "metrics": {"loss": 1.0},
        "baseline": {},
        "training": training,
        "model": "/m/models/3",
    }


def test_a_refused_run_has_the_anomalies_that_the_journal_told(tmp_path):
    told = [
        {"event": "data", "time": 1.0, "examples": {"train": 2, "eval": 0}},
        {"event": "anomaly", "time": 2.0, "feature": "x", "kind": "EMPTY_SPLIT"},
    ]
    found = results.gather({}, told)
    assert found["anomalies"] == [{"feature": "x", "kind": "EMPTY_SPLIT"}]
    assert found["examples"] == {"train": 2, "eval": 0}
    assert found["training"] is None
    assert found["model"] is None


def test_train_is_the_first_split(tmp_path):
    for split in ("eval", "train"):
        (tmp_path / f"Split-{split}").mkdir()
        (tmp_path / f"Split-{split}" / "FeatureStats.pb").write_bytes(b"")
    outputs = {"StatisticsGen": {"statistics": Output(str(tmp_path), {})}}
    assert list(results.split_statistics(outputs)) == ["train", "eval"]


def test_why_a_model_was_not_pushed_is_told_by_the_journal_or_by_the_cached_blessing():
    blessing = Output("/b", {"blessing_message": "loss 2 is not below 1", "blessing_remedy": "x"})
    held = {"Evaluator": {"blessing": blessing}, "Pusher": {"pushed": Output("/p", {})}}
    told = [{"event": "not_pushed", "time": 1.0, "reason": "a", "remedy": ""}]
    assert results.why_not_pushed(held, told) == "not pushed: a"
    assert results.why_not_pushed(held, []) == "not pushed: loss 2 is not below 1; x"
    pushed = {**held, "Pusher": {"pushed": Output("/p", {"pushed_destination": "/m/1"})}}
    assert results.why_not_pushed(pushed, []) == ""
    assert results.why_not_pushed({}, []) == ""
