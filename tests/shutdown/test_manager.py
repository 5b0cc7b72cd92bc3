"""The inhibitor lock, the order of ends, cancelled shutdowns, and a logind that is not as it should be."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import Refused
from engine.api.events import EventRecorder
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.shutdown import manager as module
from engine.shutdown.groups import Period
from engine.shutdown.logind import Logind
from engine.shutdown.manager import LogindPlaces, ShutdownManager
from engine.shutdown.metrics import ShutdownMetrics
from tests.contexts import node_context
from tests.shutdown.logind import StandInLogind
from tests.waiting import eventually

CRITICAL = 2_000_000_000
NOW = 1_790_000_000.0
MakeLogind = Callable[..., StandInLogind]


class Pods:
    """Stand in for pods of these priorities; `finish` ends a pod and unmounts its volumes."""

    def __init__(self, **priorities: int) -> None:
        self.pods = [
            Pod(metadata=ObjectMeta(name=name, namespace="d", uid=name), spec=PodSpec(priority=priority))
            for name, priority in priorities.items()
        ]
        self.ends: list[tuple[str, PodEnd]] = []
        self.killed: dict[str, asyncio.Event] = {name: asyncio.Event() for name in priorities}
        self.unmounted: dict[str, asyncio.Event] = {name: asyncio.Event() for name in priorities}

    async def kill(self, pod: Pod, end: PodEnd) -> None:
        self.ends.append((pod.metadata.name, end))
        await self.killed[pod.metadata.name].wait()

    async def volumes_left(self, pod: Pod) -> None:
        await self.unmounted[pod.metadata.name].wait()

    def finish(self, *names: str) -> None:
        for name in names:
            self.killed[name].set()
            self.unmounted[name].set()

    @property
    def ended(self) -> list[str]:
        return [name for name, _ in self.ends]


class Shutdowns:
    def __init__(self, directory: Path, bus: str) -> None:
        self.directory, self.bus = directory, bus
        self.recorder = EventRecorder(lambda: NOW)
        self.registry = Registry()
        self.changes = 0
        self.managers: list[ShutdownManager] = []

    async def start(self, pods: Pods, *periods: Period) -> ShutdownManager:
        manager = ShutdownManager(
            node_context(
                root=self.directory, recorder=self.recorder, tasks=Tasks(self.registry), clock=lambda: NOW
            ),
            periods or (Period(0, 20), Period(CRITICAL, 10)),
            LogindPlaces(self.bus, self.directory / "logind.conf.d"),
            active_pods=lambda: pods.pods,
            kill_pod=pods.kill,
            volumes_left=pods.volumes_left,
            changed=self._changed,
            metrics=ShutdownMetrics(self.registry),
        )
        self.managers.append(manager)
        await manager.start()
        return manager

    def _changed(self) -> None:
        self.changes += 1

    @property
    def events(self) -> list[str]:
        return [event.message for event in self.recorder if event.reason == "Shutdown"]

    def times(self) -> tuple[float, float]:
        names = ("start", "end")
        metrics = self.registry.metrics
        return tuple(metrics[f"kubelet_graceful_shutdown_{name}_time_seconds"].values[()] for name in names)  # type: ignore[return-value]

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory / "graceful_node_shutdown_state").read_text())
        return state


@pytest.fixture
async def shutdowns(tmp_path: Path, bus: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shutdowns]:
    monkeypatch.setattr(module, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(module, "RELOAD_PAUSES", (0.01, 0.01))
    made = Shutdowns(tmp_path, bus)
    yield made
    for manager in made.managers:
        await manager.stop()


async def test_pods_end_by_priority_while_the_lock_is_held(shutdowns: Shutdowns, logind: MakeLogind):
    served = logind()
    pods = Pods(web=0, worker=-5, system=CRITICAL)
    manager = await shutdowns.start(pods)
    await eventually(lambda: served.locks_held() == [True])
    assert served.locks[0][0] == (
        *("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay"),
    )
    manager.check_admission()
    served.prepare_for_shutdown(True)
    await eventually(lambda: len(pods.ends) == 2)
    assert sorted(pods.ended) == ["web", "worker"]
    assert manager.problem() == "node is shutting down"
    with pytest.raises(AdmissionRejected, match="Pod was rejected as the node is shutting down") as rejected:
        manager.check_admission()
    assert rejected.value.reason == "NodeShutdown"
    assert (shutdowns.changes, shutdowns.times()) == (1, (NOW, 0))
    assert shutdowns.state["endTime"] == "0001-01-01T00:00:00Z"
    end = pods.ends[0][1]
    assert (end.reason, end.message, end.condition_reason, end.grace_period_seconds) == (
        "Terminated",
        "Pod was terminated in response to imminent node shutdown.",
        "TerminationByKubelet",
        20,
    )
    pods.killed["web"].set()
    pods.finish("worker")
    await asyncio.sleep(0.1)
    assert len(pods.ends) == 2, "volumes of the first group are waited for"
    pods.finish("web")
    await eventually(lambda: len(pods.ends) == 3)
    assert served.locks_held() == [True]
    pods.finish("system")
    await eventually(lambda: served.locks_held() == [False])
    assert shutdowns.events == ["Shutdown manager detected shutdown event"]
    assert shutdowns.times() == (NOW, NOW)


async def test_a_group_has_only_its_own_time(shutdowns: Shutdowns, logind: MakeLogind):
    served = logind()
    pods = Pods(slow=0, at_once=50, last=100)
    await shutdowns.start(pods, Period(0, 1), Period(50, 0), Period(100, 20))
    await eventually(lambda: served.locks_held() == [True])
    served.prepare_for_shutdown(True)
    await eventually(lambda: pods.ended == ["slow", "at_once", "last"])
    pods.finish("last")
    await eventually(lambda: served.locks_held() == [False])
    assert [end.grace_period_seconds for _, end in pods.ends] == [1, 0, 20]
    pods.finish("slow", "at_once")


async def test_after_a_cancelled_shutdown_the_next_one_is_delayed_again(
    shutdowns: Shutdowns, logind: MakeLogind
):
    served = logind()
    pods = Pods(web=0, system=CRITICAL)
    manager = await shutdowns.start(pods)
    await eventually(lambda: served.locks_held() == [True])
    served.prepare_for_shutdown(True)
    await eventually(lambda: pods.ended == ["web"])
    served.prepare_for_shutdown(False)
    await eventually(lambda: served.locks_held() == [False, True])
    assert manager.problem() == ""
    manager.check_admission()
    pods.finish("web")
    await asyncio.sleep(0.1)
    assert pods.ended == ["web"], "pods whose turn had not come live on"
    assert shutdowns.events == [
        "Shutdown manager detected shutdown event",
        "Shutdown manager detected shutdown cancellation",
    ]
    served.prepare_for_shutdown(True)
    await eventually(lambda: pods.ended == ["web", "web", "system"])
    pods.finish("system")
    await eventually(lambda: served.locks_held() == [False, False])


async def test_logind_is_asked_to_wait_as_long_as_pods_need(
    shutdowns: Shutdowns, logind: MakeLogind, tmp_path: Path
):
    served = logind(delay=5)
    await shutdowns.start(Pods(), Period(0, 40), Period(CRITICAL, 2))
    await eventually(lambda: served.locks_held() == [True])
    assert served.delay == 42
    assert served.reloads == [("systemd-logind.service", "all", 1)]
    written = (tmp_path / "logind.conf.d/99-kubelet.conf").read_text()
    assert written.endswith("[Login]\nInhibitDelayMaxSec=42\n")


async def test_a_stop_releases_a_lock_that_is_being_taken(
    shutdowns: Shutdowns, logind: MakeLogind, monkeypatch: pytest.MonkeyPatch
):
    inhibit = Logind.inhibit

    def inhibit_slowly(opened: Logind) -> int:
        lock = inhibit(opened)
        time.sleep(0.3)
        return lock

    monkeypatch.setattr(Logind, "inhibit", inhibit_slowly)
    served = logind()
    manager = await shutdowns.start(Pods())
    await eventually(lambda: served.locks_held() == [True])
    await manager.stop()
    assert served.locks_held() == [False]


async def test_a_longer_delay_of_logind_is_kept(shutdowns: Shutdowns, logind: MakeLogind, tmp_path: Path):
    served = logind(delay=600)
    await shutdowns.start(Pods())
    await eventually(lambda: served.locks_held() == [True])
    assert not served.reloads
    assert not (tmp_path / "logind.conf.d").exists()


async def test_where_logind_keeps_its_delay_pods_have_that(
    shutdowns: Shutdowns, logind: MakeLogind, caplog: pytest.LogCaptureFixture
):
    served = logind(delay=5, ignores_reloads=True)
    await shutdowns.start(Pods())
    await eventually(lambda: served.locks_held() == [True])
    (message,) = (record.message for record in caplog.records if record.name == "kubengine.shutdown")
    assert message == (
        "a shutdown may need 30 s to end pods, but logind waits only 5 s: "
        "logind: InhibitDelayMaxSec is 5 s after logind reloaded its configuration"
    )


async def test_a_logind_that_restarts_gives_another_lock(shutdowns: Shutdowns, logind: MakeLogind):
    first = logind()
    await shutdowns.start(Pods())
    await eventually(lambda: first.locks_held() == [True])
    first.end()
    first.locks.clear()
    second = logind()
    await eventually(lambda: second.locks_held() == [True])


async def test_a_machine_without_logind_is_reported_once_and_logind_is_used_once_it_starts(
    shutdowns: Shutdowns, logind: MakeLogind, caplog: pytest.LogCaptureFixture
):
    await shutdowns.start(Pods())
    await asyncio.sleep(0.5)
    messages = [record.message for record in caplog.records if record.name == "kubengine.shutdown"]
    assert len(messages) == 1
    assert messages[0].startswith("a shutdown of this machine will not wait for its pods: ")
    assert "org.freedesktop.login1" in messages[0]
    served = logind()
    await eventually(lambda: served.locks_held() == [True])


async def test_a_shutdown_signal_of_another_process_is_ignored(
    shutdowns: Shutdowns, logind: MakeLogind, bus: str
):
    from jeepney import new_signal  # type: ignore[import-untyped]
    from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]

    from tests.shutdown.logind import MANAGER

    served = logind()
    manager = await shutdowns.start(Pods(web=0))
    await eventually(lambda: served.locks_held() == [True])
    with open_dbus_connection(bus) as stranger:
        stranger.send(new_signal(MANAGER, "PrepareForShutdown", "b", (True,)))
    await asyncio.sleep(0.2)
    assert not manager.shutting_down


async def test_the_last_shutdowns_times_are_shown_a_kubelets_too(shutdowns: Shutdowns, tmp_path: Path):
    (tmp_path / "graceful_node_shutdown_state").write_text(
        '{"startTime":"2026-09-21T16:53:20.123456789+02:00","endTime":"0001-01-01T00:00:00Z"}'
    )
    await shutdowns.start(Pods())
    assert shutdowns.times() == (1790002400, 0)


async def test_a_damaged_state_is_reported_and_replaced(
    shutdowns: Shutdowns, logind: MakeLogind, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "graceful_node_shutdown_state").write_text("{")
    served = logind()
    await shutdowns.start(Pods())
    assert "the times of the last shutdown are unknown" in caplog.text
    await eventually(lambda: served.locks_held() == [True])
    served.prepare_for_shutdown(True)
    await eventually(lambda: served.locks_held() == [False])
    assert set(shutdowns.state) == {"startTime", "endTime"}


async def test_a_pod_that_cannot_be_killed_holds_up_no_other(shutdowns: Shutdowns, logind: MakeLogind):
    served = logind()
    pods = Pods(broken=0, fine=0)

    async def kill(pod: Pod, end: PodEnd) -> None:
        pods.ends.append((pod.metadata.name, end))
        if pod.metadata.name == "broken":
            raise Refused("no", subject="runtime")

    pods.kill = kill  # type: ignore[method-assign]
    pods.finish("broken", "fine")
    await shutdowns.start(pods)
    await eventually(lambda: served.locks_held() == [True])
    served.prepare_for_shutdown(True)
    await eventually(lambda: served.locks_held() == [False])
    assert sorted(pods.ended) == ["broken", "fine"]
