"""Who trains: the shares of a batch, and with one replica the identity."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from trainer import cluster
from trainer import strategy as replicated
from trainer.cluster import Workers
from trainer.errors import SettingError, WorkerLost
from trainer.strategy import Replicas

NO_GPU = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="needs a machine without a GPU"
)


def test_a_tf_config_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "nonsense")
    with pytest.raises(SettingError, match="TF_CONFIG"):
        replicated.choose()


@NO_GPU
def test_a_peer_that_is_missing_is_named_before_tensorflow_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = cluster.free_addresses(2)
    monkeypatch.setenv(cluster.VARIABLE, cluster.describe(addresses, 0))
    with pytest.raises(WorkerLost, match=rf"worker 1 at {addresses[1]} did not answer in 0\.3 s"):
        replicated.choose(wait_seconds=0.3)


@NO_GPU
def test_without_a_gpu_one_replica_gets_the_whole_batch() -> None:
    replicas = replicated.choose()
    assert replicated.replicas(replicas) == 1
    assert replicated.local_rows(replicas, 7) == 7
    batch = replicated.share(replicas, {"x": np.arange(3), "weight": np.ones(3, np.float32)})
    assert batch["x"].numpy().tolist() == [0, 1, 2]
    assert [float(one) for one in replicated.all_reduce_sum([tf.constant(2.0)])] == [2.0]
    assert replicas.control.agree(True)
    assert not replicas.control.agree(False)


@given(rows=st.integers(1, 12), workers=st.integers(1, 5))
def test_each_row_is_one_worker_s_and_each_worker_has_as_many(rows: int, workers: int) -> None:
    batch = {"x": np.arange(2 * rows).reshape(rows, 2) + 1.0, "weight": np.ones(rows, np.float32)}
    shares = [
        replicated.share(Replicas(workers=Workers(workers, rank)), batch) for rank in range(workers)
    ]
    each = -(-rows // workers)
    assert {tuple(one["x"].shape) for one in shares} == {(each, 2)}
    weight = np.concatenate([one["weight"] for one in shares])
    x = np.concatenate([one["x"] for one in shares])
    assert weight.sum() == rows
    np.testing.assert_array_equal(x[weight > 0], batch["x"])
    # a worker for which no row is left has padding alone
    assert not x[weight == 0].any()
    for one in shares:
        assert np.all(np.diff(one["weight"]) <= 0)
