"""The node's Ready condition follows its runtime; what the runtime or the host lacks turns pods away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from engine.admission.sysctls import SysctlAllowlist
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Container, Pod, PodSecurityContext, PodSpec, SecurityProfile
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.node import pod_admission
from engine.node.nodeinfo.node_events import NodeEvents
from engine.node.pod_admission import app_armor_enabled
from engine.node.runtime_view import runtime_health
from engine.node.runtime_view.runtime_health import HandlerFeatures, RuntimeHealth
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig, container
from tests.waiting import eventually


class Watched:
    """Watch a runtime and judge its health by a clock that a test moves."""

    def __init__(self, endpoint: Path) -> None:
        self.now = 1000.0
        self.changes = 0
        self.client = RuntimeClient(str(endpoint))
        self.watch = RuntimeWatch(
            self.client,
            on_change=lambda _: None,
            on_trouble=self.trouble,
            clock=lambda: self.now,
            registry=Registry(),
            relist_seconds=0.05,
        )
        self.health = RuntimeHealth(
            self.client, last_contact=self.watch.last_contact, on_change=self.change, clock=lambda: self.now
        )

    def trouble(self) -> None:
        self.health.check_now()

    def change(self) -> None:
        self.changes += 1

    async def start(self) -> None:
        await self.watch.start()
        await self.health.start()

    async def stop(self) -> None:
        await self.health.stop()
        await self.watch.stop()
        await self.client.close()


@pytest.fixture
async def watched(hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(runtime_health, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr("engine.node.runtime_view.runtime_watch.STREAM_SETTLED_SECONDS", 0.05)
    watched = Watched(hollow.socket)
    await watched.start()
    yield watched
    await watched.stop()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_runtime_that_is_gone_for_30_s_is_down_and_then_well_again(
    watched: Watched, hollow: HollowRuntime, streams: bool
):
    if streams:
        await eventually(lambda: watched.watch.streaming)
    else:
        await watched.watch._following.stop()
    watched.now += 3600
    await eventually(lambda: not watched.health.problems() and watched.changes % 2 == 0)
    before = watched.changes
    await hollow._server.stop()
    await eventually(lambda: watched.watch.last_error and not watched.watch.streaming)
    watched.now += 29
    assert not watched.health.problems()
    watched.now += 1
    assert watched.health.problems() == ["container runtime is down"]
    await eventually(lambda: watched.changes == before + 1)
    await hollow._server.start()
    await eventually(lambda: not watched.health.problems())
    await eventually(lambda: watched.changes == before + 2)


async def test_the_runtimes_own_conditions_are_reported(
    hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    answer = cri.StatusResponse(
        status=cri.RuntimeStatus(
            conditions=[
                cri.RuntimeCondition(type="RuntimeReady", status=True),
                cri.RuntimeCondition(type="NetworkReady", reason="NoPlugin", message="no cni"),
            ]
        ),
        runtime_handlers=[
            cri.RuntimeHandler(name="kata", features=cri.RuntimeHandlerFeatures(user_namespaces=True)),
            cri.RuntimeHandler(features=cri.RuntimeHandlerFeatures(recursive_read_only_mounts=True)),
        ],
        features=cri.RuntimeFeatures(supplemental_groups_policy=True),
    )

    async def status(self: object, *, verbose: bool = False) -> cri.StatusResponse:
        return answer

    monkeypatch.setattr(RuntimeClient, "status", status)
    watched = Watched(hollow.socket)
    await watched.start()
    assert watched.health.problems() == [
        "container runtime network not ready: NetworkReady=false reason:NoPlugin message:no cni"
    ]
    features = watched.health.features
    assert features.supplemental_groups_policy
    assert features.of_handler("") == HandlerFeatures(recursive_read_only_mounts=True)
    assert features.of_handler("kata") == HandlerFeatures(user_namespaces=True)
    assert features.of_handler("none") == HandlerFeatures()
    answer.status.ClearField("conditions")
    await watched.health._read()
    assert watched.health.problems() == [
        "container runtime not ready: <nil>",
        "container runtime network not ready: <nil>",
    ]
    await watched.stop()


def ready(rig: Rig) -> Any:
    return next(c for c in rig.node.node_object().status.conditions if c.type == "Ready")


async def test_the_node_is_ready_or_names_the_reason_and_each_change_is_an_event(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runtime_health, "CHECK_SECONDS", 0.05)
    node = await rig.start()
    assert (ready(rig).status, ready(rig).reason) == ("True", "KubeletReady")
    since = ready(rig).last_transition_time
    await eventually(lambda: datetime.now(UTC) > since + timedelta(seconds=1))
    problems: list[str] = ["a", "b", "a"]
    monkeypatch.setattr(node.running.runtime_health, "problems", lambda: problems)
    node.running.runtime_health.check_now()
    await eventually(lambda: "NodeNotReady" in rig.reasons())
    assert (ready(rig).reason, ready(rig).message) == ("KubeletNotReady", "[a, b]")
    assert ready(rig).last_transition_time > since
    del problems[1:]
    assert ready(rig).message == "a"
    problems.clear()
    await eventually(lambda: rig.reasons().count("NodeReady") == 2)
    said = [(e.reason, e.message) for e in rig.node.recorder if not e.pod]
    assert said[:5] == [
        ("Starting", "Starting kubelet."),
        ("NodeHasSufficientMemory", "Node n1 status is now: NodeHasSufficientMemory"),
        ("NodeHasNoDiskPressure", "Node n1 status is now: NodeHasNoDiskPressure"),
        ("NodeHasSufficientPID", "Node n1 status is now: NodeHasSufficientPID"),
        ("NodeReady", "Node n1 status is now: NodeReady"),
    ]


async def test_a_reboot_is_an_event(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    await rig.start()
    await rig.restart()
    assert "Rebooted" not in rig.reasons()
    monkeypatch.setattr("engine.node.nodeinfo.machine.boot_id", lambda: "another")
    await rig.restart()
    said = [e.message for e in rig.node.recorder if e.reason == "Rebooted"]
    assert said == ["Node n1 has been rebooted, boot id: another"]
    await rig.restart()
    assert "Rebooted" not in rig.reasons()


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        (
            {"securityContext": {"sysctls": [{"name": "kernel.printk_ratelimit_burst", "value": "1"}]}},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.printk_ratelimit_burst" not allowlisted',
        ),
        (
            {"securityContext": {"supplementalGroupsPolicy": "Strict"}},
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
    ],
)
async def test_a_pod_that_needs_what_the_host_lacks_is_rejected(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, spec, reason, message
):
    monkeypatch.setattr("engine.node.running_node.app_armor_enabled", lambda: False)
    monkeypatch.setattr(runtime_health.RuntimeFeatures, "of", lambda _: runtime_health.RuntimeFeatures())
    await rig.start()
    rig.write("asks", {"containers": [container()], **spec})
    await eventually(lambda: rig.phase("asks") == "Failed")
    status = rig.pod("asks").status
    assert (status.reason, status.message) == (reason, f"Pod was rejected: {message}")
    assert not status.container_statuses
    assert not status.conditions
    assert [e.message for e in rig.node.recorder if e.reason == reason] == [message]
    await asyncio.sleep(0.2)
    assert rig.phase("asks") == "Failed"


async def test_an_allow_list_of_the_hosts_own_sysctls_stops_the_agent(rig: Rig):
    rig.config.allowed_unsafe_sysctls = ["vm.*"]
    with pytest.raises(InvalidInput, match="allowedUnsafeSysctls"):
        await rig.start()
    await rig.node.stop()
    rig.node = None


def test_app_armor_is_where_the_kernel_shows_it_switched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("container", raising=False)
    assert not app_armor_enabled(tmp_path)
    (tmp_path / "sys/kernel/security/apparmor").mkdir(parents=True)
    assert not app_armor_enabled(tmp_path)
    switch = tmp_path / "sys/module/apparmor/parameters/enabled"
    switch.parent.mkdir(parents=True)
    switch.write_text("N\n")
    assert not app_armor_enabled(tmp_path)
    switch.write_text("Y\n")
    assert app_armor_enabled(tmp_path)
    monkeypatch.setenv("container", "docker")
    assert not app_armor_enabled(tmp_path)


def test_an_app_armor_profile_needs_a_name():
    support = pod_admission.HostSupport(
        sysctls=SysctlAllowlist((), ()), app_armor=True, features=runtime_health.RuntimeFeatures
    )
    profile = SecurityProfile(type="Localhost", localhost_profile="mine")
    spec = PodSpec(
        containers=[Container(name="c")], security_context=PodSecurityContext(app_armor_profile=profile)
    )
    support.check(Pod(spec=spec))
    profile.localhost_profile = " "
    with pytest.raises(AdmissionRejected, match="invalid empty AppArmor profile name"):
        support.check(Pod(spec=spec))


def test_enforcing_node_allocatable_is_an_event(tmp_path: Path):
    recorder = EventRecorder(lambda: 1.0)
    config = KubeletConfiguration(
        enforce_node_allocatable=["pods", "system-reserved", "kube-reserved"],
        system_reserved={"cpu": "1m"},
        system_reserved_cgroup="/system",
        kube_reserved={"cpu": "1m"},
        kube_reserved_cgroup="/kube",
    )
    settings = CgroupSettings.resolve(config, {"cpu": 1000, "memory": 1 << 30}, cgroup_v2=True)
    NodeEvents(recorder, "n1", tmp_path / "boot_id").enforced(settings)
    assert {event.reason for event in recorder} == {"NodeAllocatableEnforced"}
    assert [event.message for event in recorder] == [
        "Updated Node Allocatable limit across pods",
        "Updated limits on system reserved cgroup /system",
        "Updated limits on kube reserved cgroup /kube",
    ]
