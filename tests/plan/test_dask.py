"""Node shards on a Dask cluster of several worker processes: the same answer, also when one is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import pytest

from engine.api.errors import Unavailable
from engine.plan import on_dask
from engine.plan.cluster import Cluster, ask
from engine.plan.questions.evict import EvictParameters
from engine.plan.questions.preempt import PreemptParameters

distributed = pytest.importorskip("distributed", reason="needs Dask: pip install 'kubengine[dask]'")
dask = pytest.importorskip("dask")

ASKED = PreemptParameters(critical=True, requests={"cpu": 2, "memory": "2Gi"})

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("dask"))
    with warnings.catch_warnings(), dask.config.set({"temporary-directory": directory}):
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=directory,
            silence_logs=50,
        ) as cluster:
            yield cluster


@pytest.mark.parametrize(
    ("name", "asked"), [("preempt", ASKED), ("evict", EvictParameters(available="1Gi", threshold="50%"))]
)
def test_the_answer_is_the_same_bit_for_bit(cluster, workers, name, asked):
    here = ask(Cluster(cluster), name, asked)
    there = ask(Cluster(cluster), name, asked, dask=workers.scheduler_address, shard_pods=60)
    assert there.table.equals(here.table)
    assert there.notes == here.notes


def test_large_shards_cause_no_warning(cluster, workers):
    """Shards travel with their tasks, which Dask finds large."""
    small = dask.config.set({"distributed.admin.large-graph-warning-threshold": "1kB"})
    with small, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ask(Cluster(cluster), "preempt", ASKED, dask=workers.scheduler_address)
    assert [str(one.message) for one in heard if "large graph" in str(one.message)] == []


def test_a_killed_worker_changes_nothing(cluster, workers, monkeypatch):
    here = ask(Cluster(cluster), "preempt", ASKED)
    killed, done = [], []

    def slow_shards():
        for index, shard in enumerate(Cluster(cluster).shards(30)):
            if index == 4:
                with distributed.Client(workers.scheduler_address, set_as_default=False) as client:
                    pids = client.run(os.getpid)
                victim = next(iter(pids.values()))
                threading.Timer(0.05, os.kill, (victim, signal.SIGKILL)).start()
                killed.append(victim)
            time.sleep(0.02)
            yield shard

    there = on_dask.ask_on_dask(workers.scheduler_address, "preempt", ASKED, slow_shards(), done.append)
    assert killed
    assert sum(done) == cluster.placed
    assert there.table.equals(here.table)


def test_no_scheduler_is_one_clear_error(cluster, monkeypatch):
    monkeypatch.setattr(on_dask, "CONNECT_TIMEOUT", 1.0)
    with pytest.raises(Unavailable, match="no Dask scheduler answers"):
        ask(Cluster(cluster), "preempt", ASKED, dask="tcp://127.0.0.1:9")
