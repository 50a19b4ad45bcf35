"""Whole trainings of a tiny tabular model: resume, early stop, events, and how they end."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import checkpoint, journal, layout, loop
from trainer.batches import Columns
from trainer.errors import CheckpointError, NotFinite, SettingError
from trainer.evaluation import baseline, metrics
from trainer.settings import EarlyStopSettings, Job

pytestmark = pytest.mark.slow


def _stop_after(steps: int) -> Callable[[], int]:
    done = iter(range(1, 10**6))
    return lambda: signal.SIGTERM if next(done) >= steps else 0


def _weights(trained: loop.Trained) -> list[np.ndarray]:
    return [np.array(one.value.numpy()) for one in trained.built.model.trainable_variables]


def _assert_same(one: loop.Trained, other: loop.Trained) -> None:
    for left, right in zip(_weights(one), _weights(other), strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(one.predictions, other.predictions)


def _events(job: Job, kind: str) -> list[dict[str, Any]]:
    return [one for one in journal.read(job.events)[0] if one["event"] == kind]


def _elsewhere(job: Job, name: str) -> Job:
    folder = Path(job.checkpoints).parent.parent / name
    folder.mkdir(exist_ok=True)
    return replace(
        job, checkpoints=str(folder / "checkpoints"), events=str(folder / "events.jsonl")
    )


def _kill_and_resume(job: Job, *, after: int) -> loop.Trained:
    with pytest.raises(loop.Interrupted):
        loop.train(job, stop=_stop_after(after))
    return loop.train(job)


def test_a_resume_in_the_second_epoch_ends_with_the_same_weights(make_job: Any) -> None:
    # cases/training.md, training-4: 20 rows, batch 2, 3 epochs, killed in epoch 1 at step 4;
    # dropout on, so that the masks of the steps come back too
    job = make_job(seed=7, dropout=0.2)
    whole = loop.train(job)
    other = _elsewhere(job, "killed")
    resumed = _kill_and_resume(other, after=14)
    _assert_same(whole, resumed)
    assert resumed.facts["resumed_from_step"] == 14
    assert not _events(job, "resumed")
    (told,) = _events(other, "resumed")
    path = str(Path(other.checkpoints) / "step-00000014")
    assert (told["step"], told["epoch"], told["steps"], told["path"]) == (14, 2, 30, path)
    assert [one["start_step"] for one in _events(other, "training_started")] == [0, 14]
    assert resumed.history == whole.history
    losses = {one["step"]: one["epoch_loss"] for one in _events(job, "train_step")
              if "epoch_loss" in one}  # fmt: skip
    assert sorted(losses) == [10, 20, 30]
    for one in _events(other, "train_step"):
        if "epoch_loss" in one:
            assert one["epoch_loss"] == losses[one["step"]]


def test_the_same_seed_gives_the_same_weights_and_another_one_others(make_job: Any) -> None:
    job = make_job(epochs=1)
    one, same = loop.train(job), loop.train(_elsewhere(job, "same"))
    _assert_same(one, same)
    other = loop.train(replace(_elsewhere(job, "other"), training=replace(job.training, seed=8)))
    assert not np.array_equal(_weights(one)[0], _weights(other)[0])


@pytest.mark.parametrize("after", [10, 9])
def test_steps_are_counted_once_around_the_end_of_an_epoch(make_job: Any, after: int) -> None:
    # training-5, with accumulation: killed right after the epoch's checkpoint, and before it
    job = make_job(every_steps=10, global_batch=4, micro_batch=2, rows=40)
    resumed = _kill_and_resume(job, after=after)
    assert resumed.facts["steps"] == 30
    started = _events(job, "training_started")[-1]
    assert (started["start_step"], started["accumulation_steps"]) == (after, 2)
    assert [one["epoch"] for one in resumed.history] == [1, 2, 3]
    assert [one["step"] for one in resumed.history] == [10, 20, 30]


def test_a_finished_training_is_not_done_again(make_job: Any) -> None:
    job = make_job(epochs=1)
    first, again = loop.train(job), loop.train(job)
    _assert_same(first, again)
    assert again.history == first.history
    assert again.facts["resumed_from_step"] == again.facts["steps"] == 10
    assert len(_events(job, "evaluation")) == 1
    assert again.facts["examples_per_second"] == first.facts["examples_per_second"]


def test_more_epochs_go_on_and_fewer_are_refused(make_job: Any) -> None:
    job = make_job(epochs=2, schedule="constant")
    loop.train(job)
    longer = replace(job, training=replace(job.training, epochs=3))
    assert loop.train(longer).facts["steps"] == 30
    with pytest.raises(SettingError, match=r"training\.epochs: .*30 steps are done") as caught:
        loop.train(replace(job, training=replace(job.training, epochs=1)))
    assert caught.value.holds == "1"
    assert caught.value.right.startswith("3 or more")


def test_checkpoints_of_another_training_are_refused(make_job: Any) -> None:
    job = make_job(epochs=1)
    loop.train(job)
    with pytest.raises(CheckpointError, match="another training"):
        loop.train(replace(job, training=replace(job.training, global_batch=5)))


def test_everything_that_adam_and_the_schedule_need_comes_back(make_job: Any) -> None:
    # training-11: 6 steps straight against 3 and 3, in mixed_float16 with its loss scale
    job = make_job(steps=6, precision="mixed_float16", schedule="cosine")
    whole = loop.train(job)
    resumed = _kill_and_resume(_elsewhere(job, "killed"), after=3)
    _assert_same(whole, resumed)
    assert whole.facts["skipped_steps"] == resumed.facts["skipped_steps"]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(make_job: Any) -> None:
    # training-13
    job = make_job(every_steps=2, steps=6)
    whole = loop.train(job)
    newest = Path(job.checkpoints) / "step-00000006"
    with open(newest / layout.STATE, "r+b") as file:
        file.truncate(100)
    again = loop.train(job)
    assert again.facts["resumed_from_step"] == 4
    _assert_same(whole, again)
    assert any("step 6" in one["message"] for one in _events(job, "warning"))


def test_the_best_is_remembered_over_a_restart_and_kept(make_job: Any) -> None:
    # training-13, its last way: a worse evaluation after a restart is not the best
    job = make_job(epochs=8, learning_rate=0.3, schedule="constant", keep=1)
    resumed = _kill_and_resume(job, after=45)
    losses = {one["step"]: one["loss"] for one in resumed.history}
    best = min(losses, key=losses.get)
    assert resumed.facts["best_step"] == best
    assert (Path(job.checkpoints) / f"step-{best:08d}").is_dir()
    _assert_same(resumed, loop.train(_elsewhere(job, "whole")))


def test_a_clock_that_jumps_changes_nothing_that_is_trained_or_timed(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(seed=7)
    whole = loop.train(job)
    # An hour back, then two days forth, at every look: as when somebody sets the clock.
    times = itertools.cycle([1.8e9, 1.8e9 - 3600, 1.8e9 + 172_800])
    monkeypatch.setattr(journal.time, "time", lambda: next(times))
    jumped = loop.train(_elsewhere(job, "jumped"))
    _assert_same(whole, jumped)
    assert whole.history == jumped.history
    events = journal.read(_elsewhere(job, "jumped").events)[0]
    assert max(one["time"] for one in events) - min(one["time"] for one in events) > 86_400
    speeds = [one["examples_per_second"] for one in events if one["event"] == "train_step"]
    assert speeds
    assert all(0 < one < 1e6 for one in speeds)
    assert all(one["seconds"] >= 0 for one in events if one["event"] == "checkpoint")


def test_an_early_stop_ends_with_the_best_weights(make_job: Any) -> None:
    job = make_job(
        epochs=50, learning_rate=0.3, schedule="constant", every_steps=1000,
        early_stop=EarlyStopSettings(after_rises=1),
    )  # fmt: skip
    trained = loop.train(job)
    losses = [one["loss"] for one in trained.history]
    assert trained.facts["stopped_early"]
    assert losses[-1] > losses[-2]
    assert trained.facts["steps"] == 10 * len(losses) < 500
    best = trained.history[int(np.argmin(losses))]
    assert (trained.facts["best_step"], trained.facts["best_epoch"]) == (
        best["step"],
        best["epoch"],
    )
    (said,) = _events(job, "warning")
    assert said["id"] == "Trainer"
    assert said["message"].startswith(f"stopped early after epoch {len(losses)}: the loss rose ")
    assert said["message"].endswith(f"; the weights of epoch {best['epoch']} are kept")
    # What is reported is said of the weights that are kept, not of the last ones.
    label = Columns.open(job.eval, job.features).label
    found = metrics(trained.predictions, label, label_feature=job.features.label)
    assert found["loss"] == best["loss"]
    kept = checkpoint.load(Path(job.checkpoints) / f"step-{trained.facts['best_step']:08d}", {})
    assert kept.step == best["step"]
    again = loop.train(job)
    _assert_same(trained, again)
    assert again.facts["steps"] == trained.facts["steps"]


def test_fewer_rows_than_a_batch_train_in_one_padded_step(make_job: Any) -> None:
    # training-10
    job = make_job(rows=10, eval_rows=3, global_batch=16, epochs=1)
    trained = loop.train(job)
    assert trained.facts["steps"] == 1
    assert len(trained.predictions) == 3
    (step,) = _events(job, "train_step")
    assert 0 < step["epoch_loss"] < 10


def test_a_diverged_training_fails_and_names_the_step(make_job: Any) -> None:
    # cases/tracking.md, tracking-1
    job = make_job(learning_rate=1e30, schedule="constant", clip_norm=0.0)
    with pytest.raises(NotFinite) as caught:
        loop.train(job)
    assert "not finite" in str(caught.value) or "NaN" in str(caught.value)
    assert not _events(job, "training_done")


def test_weights_that_the_last_step_broke_fail_before_they_are_saved(make_job: Any) -> None:
    # The loss of the only step is finite: it is of the weights before the step.
    job = make_job(steps=1, learning_rate=1e30, schedule="constant", clip_norm=0.0)
    with pytest.raises(NotFinite, match="of 40 predictions are NaN or infinite") as caught:
        loop.train(job)
    assert caught.value.exit_code == 4
    assert not _events(job, "checkpoint")
    assert not _events(job, "training_done")


def test_a_rare_class_is_met_with_its_share_and_beats_the_baseline(make_job: Any) -> None:
    job = make_job(rows=400, eval_rows=400, global_batch=200, epochs=1)
    # 16 of 400 rows are of class 1, those with the largest x; 2 updates are made.
    for folder in (job.train, job.eval):
        x = np.load(f"{folder}/1.values.npy")
        np.save(f"{folder}/label.npy", (x >= np.sort(x)[-16]).astype(np.int32))
    label = replace(job.features.label, frequencies=(0.96, 0.04))
    job = replace(job, features=replace(job.features, label=label))
    trained = loop.train(job)
    right = Columns.open(job.eval, job.features).label
    assert trained.history[0]["loss"] < baseline(label, right)["loss"]


def test_accumulated_training_equals_plain(make_job: Any) -> None:
    job = make_job(rows=23, global_batch=8, epochs=2)
    plain = loop.train(job)
    settings = replace(job.training, micro_batch=3)
    parts = loop.train(replace(_elsewhere(job, "parts"), training=settings))
    # float32 sums in another order, over six updates of Adam
    np.testing.assert_allclose(parts.predictions, plain.predictions, rtol=1e-3, atol=1e-4)
    for one, other in zip(parts.history, plain.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)


def test_events_hold_what_the_journal_promises(make_job: Any) -> None:
    job = make_job(epochs=1)
    loop.train(job)
    (started,), (done,) = _events(job, "training_started"), _events(job, "training_done")
    assert {"steps", "steps_per_epoch", "epochs", "start_step", "global_batch", "micro_batch",
            "accumulation_steps", "precision", "recompute", "planned_memory_bytes", "parameters",
            "device"} <= started.keys()  # fmt: skip
    assert {"steps", "examples_per_second", "peak_memory_bytes", "planned_memory_bytes",
            "process_memory_bytes", "micro_batch", "resumed_from_step", "skipped_steps",
            "stopped_early"} <= done.keys()  # fmt: skip
    last = _events(job, "train_step")[-1]
    assert {"step", "epoch", "loss", "learning_rate", "gradient_norm", "loss_scale",
            "skipped_steps", "examples_per_second", "updates_per_second",
            } <= last.keys()  # fmt: skip
    assert last["step"] == done["steps"] == 10
    assert done["planned_memory_bytes"] > 0
    (evaluated,) = _events(job, "evaluation")
    assert evaluated["loss"] > 0
    assert [one["step"] for one in _events(job, "checkpoint")] == [5, 10]
