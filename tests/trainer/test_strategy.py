"""TF_CONFIG is checked; with one replica everything is the identity."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer import strategy as replicated
from trainer.errors import SettingError


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}, "task": {}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}'],
)  # fmt: skip
def test_a_tf_config_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="TF_CONFIG: is not a cluster description"):
        replicated.check_tf_config(text)


@pytest.mark.parametrize(
    "text",
    ['{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}'],
)  # fmt: skip
def test_workers_that_this_training_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="names more workers"):
        replicated.check_tf_config(text)


def test_one_worker_and_none_at_all_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    replicated.check_tf_config("")
    replicated.check_tf_config(
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    )
    monkeypatch.setenv("TF_CONFIG", "nonsense")
    with pytest.raises(SettingError):
        replicated.choose()


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="needs no GPU")
def test_without_a_gpu_one_replica_gets_the_whole_batch() -> None:
    strategy = replicated.choose()
    assert replicated.replicas(strategy) == 1
    assert replicated.local_rows(strategy, 7) == 7
    batch = replicated.share(strategy, {"x": np.arange(3), "weight": np.ones(3, np.float32)})
    assert batch["x"].numpy().tolist() == [0, 1, 2]
    assert [float(one) for one in replicated.all_reduce_sum([tf.constant(2.0)])] == [2.0]
