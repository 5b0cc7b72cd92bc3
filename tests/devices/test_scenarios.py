"""The kubelet's device scenarios on real sockets: a manager, and sample plugins that fail as told."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.kubengine_config import DevicesSection
from engine.api.lifecycle import AdmissionRejected
from engine.api.resources import pod_requests
from engine.devices.endpoint import DevicePluginDeadlines
from engine.testing.device_plugin import DevicePluginFault, SampleAllocation
from engine.topologymanager.policy import Numa
from engine.wire import podresources_v1_pb2 as v1
from engine.wire import podresources_v1alpha1_pb2 as v1alpha1
from engine.wire.podresources_v1_pb2_grpc import PodResourcesListerStub
from engine.wire.podresources_v1alpha1_pb2_grpc import PodResourcesListerStub as AlphaStub
from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"
NIC = "example.com/nic"


async def rejection(agent, pod) -> AdmissionRejected:
    with pytest.raises(AdmissionRejected) as caught:
        await agent.admit(pod)
    return caught.value


async def listed(agent) -> dict[str, dict[str, list[str]]]:
    """Pod → container → device ids, as the v1 API says; both versions and the state must agree."""
    socket = agent.pod_resources_dir / "kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        answer = await PodResourcesListerStub(channel).List(v1.ListPodResourcesRequest(), timeout=PATIENCE)
        alpha = await AlphaStub(channel).List(v1alpha1.ListPodResourcesRequest(), timeout=PATIENCE)
    found = {
        pod.name: {c.name: sorted(id for d in c.devices for id in d.device_ids) for c in pod.containers}
        for pod in answer.pod_resources
    }
    old = {
        pod.name: {c.name: sorted(id for d in c.devices for id in d.device_ids) for c in pod.containers}
        for pod in alpha.pod_resources
    }
    for pod in agent.pods:
        held = {
            c.name: sorted(id for e in agent.manager.state.entries_of(pod.uid, c.name) for id in e.devices)
            for c in [*(c for c in pod.init_containers if c.is_sidecar), *pod.spec.containers]
        }
        assert found[pod.metadata.name] == held
        assert old[pod.metadata.name] == {c.name: held[c.name] for c in pod.spec.containers}
    return found


async def test_a_pod_gets_environment_mount_device_node_annotation_and_cdi_name(agent, tmp_path):
    await agent.plugin(count=1, allocation=SampleAllocation(mount=tmp_path, cdi=True))
    pod = await agent.admit(agent.make_pod("a"))
    options = await agent.manager.container_config(pod, "app")
    assert options.envs == {"EXAMPLE_COM_GPU": "gpu-0"}
    assert [(m.container_path, m.host_path, m.readonly) for m in options.mounts] == [
        ("/gpu", str(tmp_path), True)
    ]
    assert [(d.container_path, d.host_path, d.permissions) for d in options.devices] == [
        ("/dev/gpu-0", "/dev/null", "rw")
    ]
    assert options.annotations == {"devices.example.com.gpu": "gpu-0"}
    assert [d.name for d in options.cdi_devices] == ["example.com/gpu=gpu-0"]
    assert await listed(agent) == {"a": {"app": ["gpu-0"]}}


async def test_a_pod_without_devices_gets_nothing(agent):
    await agent.plugin(count=1)
    pod = await agent.admit(agent.make_pod("plain", agent.container("app")))
    assert (await agent.manager.container_config(pod, "app")).envs == {}
    assert await listed(agent) == {"plain": {"app": []}}


async def test_assignments_survive_a_container_restart(agent):
    plugin = await agent.plugin(count=4)
    pod = await agent.admit(agent.make_pod("a"))
    first = await agent.manager.container_config(pod, "app")
    assert await agent.manager.container_config(pod, "app") == first
    assert plugin.allocations == [[["gpu-0"]]]


async def test_assignments_survive_an_agent_restart(agent):
    plugin = await agent.plugin(count=4)
    await agent.admit(agent.make_pod("first"))
    pod = await agent.admit(agent.make_pod("second"))
    config = await agent.manager.container_config(pod, "app")
    agent.ready, agent.running = False, {(pod.uid, "app")}
    await agent.restart()
    assert agent.counts() == (0, 0)
    await agent.manager.allocate(pod)
    assert agent.devices(pod) == ["gpu-1"]
    await agent.plugin(count=4, socket="again.sock")
    agent.ready = True
    assert agent.counts() == (4, 4)
    await agent.manager.allocate(pod)
    assert await agent.manager.container_config(pod, "app") == config
    assert plugin.allocations == [[["gpu-0"]], [["gpu-1"]]]
    third = await agent.admit(agent.make_pod("third"))
    assert agent.devices(third) == ["gpu-2"]


async def test_assignments_survive_a_plugin_restart(agent):
    plugin = await agent.plugin(count=4)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    await eventually(lambda: agent.counts() == (4, 0))
    await plugin.start()
    await agent.registered(plugin)
    assert agent.counts() == (4, 4)
    await agent.manager.allocate(pod)
    assert agent.devices(pod) == ["gpu-0"]
    assert await listed(agent) == {"a": {"app": ["gpu-0"]}}


async def test_assignments_survive_an_agent_and_a_plugin_restart(agent):
    plugin = await agent.plugin(count=4)
    pod = await agent.admit(agent.make_pod("a", agent.container("app", gpu=2)))
    await plugin.stop()
    await agent.stop_manager()
    await agent.start()
    await plugin.start()
    await agent.registered(plugin)
    await agent.manager.allocate(pod)
    assert agent.devices(pod) == ["gpu-0", "gpu-1"]
    other = await agent.admit(agent.make_pod("b", agent.container("app", gpu=2)))
    assert agent.devices(other) == ["gpu-2", "gpu-3"]


async def test_devices_of_pods_deleted_while_the_agent_was_down_are_free(agent):
    plugin = await agent.plugin(count=1)
    gone = await agent.admit(agent.make_pod("gone"))
    await agent.stop_manager()
    agent.pods.clear()
    agent.ready = False
    await agent.start()
    await plugin.stop()
    await plugin.start()
    await agent.registered(plugin)
    new = agent.make_pod("new")
    assert "requested number of devices unavailable for" in str(await rejection(agent, new))
    assert agent.devices(gone) == ["gpu-0"], "not before all pods are known"
    agent.ready = True
    await agent.admit(new)
    assert agent.devices(new) == ["gpu-0"]
    assert agent.devices(gone) == []


async def test_a_sidecar_keeps_its_device_and_an_init_container_hands_its_own_on(agent):
    plugin = await agent.plugin(count=4)
    pod = agent.make_pod(
        "a",
        agent.container("app", gpu=1),
        init=[
            agent.container("prepare", gpu=1),
            agent.container("helper", sidecar=True, gpu=1),
            agent.container("later", gpu=2),
        ],
    )
    await agent.admit(pod)
    assert agent.devices(pod, "prepare") == ["gpu-0"]
    assert agent.devices(pod, "helper") == ["gpu-0"], (
        "reuses what an init container before it had, and keeps it"
    )
    assert agent.devices(pod, "later") == ["gpu-1", "gpu-2"]
    assert agent.devices(pod, "app") == ["gpu-1"]
    assert len(plugin.allocations) == 4
    assert await listed(agent) == {"a": {"helper": ["gpu-0"], "app": ["gpu-1"]}}
    agent.pods.clear()
    agent.manager.pod_removed(pod.uid)
    assert agent.manager.state.allocated() == {}


async def test_a_plugin_with_failing_options_is_never_listed(agent):
    plugin = await agent.plugin(register=False, faults=[DevicePluginFault.OPTIONS_FAIL])
    with pytest.raises(Refused, match="failed to get device plugin options"):
        await plugin.register(agent.plugin_dir)
    assert agent.counts() == (None, None)
    assert plugin.streams == 0


async def test_one_unhealthy_device_leaves_its_pod_alone(agent):
    plugin = await agent.plugin(count=1)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.set_health("gpu-0", "Unhealthy")
    await eventually(lambda: agent.counts() == (1, 0))
    assert agent.devices(pod) == ["gpu-0"]
    await plugin.set_health("gpu-0", "Healthy")
    await eventually(lambda: agent.counts() == (1, 1))
    await agent.manager.allocate(pod)
    assert agent.devices(pod) == ["gpu-0"]
    assert await listed(agent) == {"a": {"app": ["gpu-0"]}}


async def test_four_three_two_three_four_devices(agent):
    plugin = await agent.plugin(count=4)
    for change, expected in (("gpu-3", 3), ("gpu-2", 2)):
        await plugin.remove(change)
        await eventually(lambda expected=expected: agent.counts() == (expected, expected))
    for change, expected in (("gpu-2", 3), ("gpu-3", 4)):
        await plugin.add(change)
        await eventually(lambda expected=expected: agent.counts() == (expected, expected))


async def test_a_stopped_plugin_keeps_its_capacity_for_five_minutes(agent):
    plugin = await agent.plugin(count=2)
    await plugin.stop()
    await eventually(lambda: agent.counts() == (2, 0))
    agent.now += 300
    assert agent.counts() == (2, 0)
    agent.now += 1
    assert agent.manager.capacity() == ({}, {}, [GPU])
    assert agent.manager.capacity() == ({}, {}, [])
    await plugin.start()
    await agent.registered(plugin)
    assert agent.counts() == (2, 2)


async def test_a_stream_that_fails_at_once_leaves_none_and_is_not_tried_again(agent):
    plugin = await agent.plugin(register=False, faults=[DevicePluginFault.LIST_FAILS])
    await plugin.register(agent.plugin_dir)
    await eventually(lambda: agent.counts() == (0, 0))
    await asyncio.sleep(0.1)
    assert plugin.streams == 1


async def test_a_stream_that_fails_later_takes_the_devices_away(agent):
    plugin = await agent.plugin(count=2)
    await plugin.fail_with(DevicePluginFault.LIST_FAILS)
    await eventually(lambda: agent.counts() == (2, 0))
    agent.now += 301
    assert agent.counts() == (None, None)


async def test_two_plugins_for_one_pod_and_one_fails(agent):
    gpus = await agent.plugin(GPU, count=2)
    nics = await agent.plugin(NIC, count=2, faults=[DevicePluginFault.ALLOCATE_FAILS])
    pod = agent.make_pod("a", agent.container("first", gpu=1), agent.container("second", gpu=1, nic=1))
    error = await rejection(agent, pod)
    assert error.reason == "UnexpectedAdmissionError"
    assert "told to fail" in str(error)
    assert agent.manager.state.allocated() == {}
    assert agent.manager.state.pods == []
    await nics.fail_with()
    await agent.admit(pod)
    assert agent.devices(pod, "first") == ["gpu-0"]
    assert agent.devices(pod, "second") == ["gpu-1"]
    assert agent.devices(pod, "second", NIC) == ["nic-0"]
    assert len(gpus.allocations) == 4
    assert await listed(agent) == {"a": {"first": ["gpu-0"], "second": ["gpu-1", "nic-0"]}}


@pytest.mark.parametrize(
    "fault",
    [
        DevicePluginFault.ALLOCATE_EMPTY,
        DevicePluginFault.ALLOCATE_HANGS,
        DevicePluginFault.PREFERRED_FAILS,
        DevicePluginFault.PREFERRED_HANGS,
    ],
)
async def test_nothing_leaks_when_a_call_goes_wrong(agent, fault):
    await agent.restart(deadlines=DevicePluginDeadlines(allocate=0.2, preferred=0.2))
    await agent.plugin(count=3, faults=[fault], allocation=SampleAllocation(prefer=["gpu-2"]))
    error = await rejection(agent, agent.make_pod("a"))
    assert error.reason == "UnexpectedAdmissionError"
    failed = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = "
    assert (failed in error.message) is fault.startswith("preferred")
    assert agent.manager.state.allocated() == {}


async def test_a_hanging_plugin_keeps_no_other_waiting(agent):
    await agent.plugin(GPU, count=2, faults=[DevicePluginFault.ALLOCATE_HANGS])
    slow = await agent.plugin(NIC, count=2, register=False, faults=[DevicePluginFault.OPTIONS_HANG])
    registering = asyncio.create_task(slow.register(agent.plugin_dir))
    stuck = asyncio.create_task(agent.manager.allocate(agent.make_pod("stuck")))
    await agent.plugin("example.com/tpu", count=2)
    pod = await agent.admit(agent.make_pod("quick", agent.container("app", tpu=1)))
    assert agent.devices(pod, resource="example.com/tpu") == ["tpu-0"]
    assert not stuck.done()
    assert not registering.done()
    for task in (stuck, registering):
        with pytest.raises((AdmissionRejected, Refused)):
            await task


async def test_a_restarted_agent_without_its_plugin_rejects_with_the_kubelets_message(agent):
    plugin = await agent.plugin(count=1)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    agent.ready = False
    await agent.restart()
    error = await rejection(agent, pod)
    assert str(error) == (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        "example.com/gpu, which is unexpected"
    )
    assert agent.devices(pod) == ["gpu-0"], "a refused pod's earlier assignment is still reported"


async def test_devices_that_became_unhealthy_are_not_given_again(agent):
    plugin = await agent.plugin(count=2)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.set_health("gpu-0", "Unhealthy")
    await eventually(lambda: agent.counts() == (2, 1))
    assert "previously allocated devices are no longer healthy" in str(await rejection(agent, pod))


async def test_a_changed_request_is_refused(agent):
    await agent.plugin(count=4)
    await agent.admit(agent.make_pod("a"))
    error = await rejection(agent, agent.make_pod("a", agent.container("app", gpu=2)))
    assert 'changed request for resource "example.com/gpu" from 1 to 2' in str(error)


async def test_admission_retry_waits_for_the_plugin(agent):
    plugin = await agent.plugin(count=1)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    await agent.restart(section=DevicesSection(admission_retry=30))
    waiting = asyncio.create_task(agent.manager.allocate(pod))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await plugin.start()
    await agent.registered(plugin)
    await waiting
    assert agent.devices(pod) == ["gpu-0"]


async def test_waiting_before_and_in_admission_shares_one_allowance(agent):
    plugin = await agent.plugin(count=1)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    await agent.restart(section=DevicesSection(admission_retry=0.05))
    await agent.manager.await_plugins(pod)
    until = dict(agent.manager._waiting)
    await agent.manager.await_plugins(pod)
    assert agent.manager._waiting == until != {}
    assert "no healthy devices present" in str(await rejection(agent, pod))
    assert agent.manager._waiting == {}


async def test_admission_retry_is_bounded(agent):
    plugin = await agent.plugin(count=1)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    await agent.restart(section=DevicesSection(admission_retry=0.05))
    assert "no healthy devices present" in str(await rejection(agent, pod))


async def test_released_init_surplus_serves_others(agent):
    await agent.restart(section=DevicesSection(release_init_surplus=True))
    await agent.plugin(count=4)
    pod = agent.make_pod("a", agent.container("app", gpu=1), init=[agent.container("prepare", gpu=3)])
    await agent.admit(pod)
    assert agent.manager.state.allocated() == {GPU: 3}
    counted = agent.manager.app_containers_started(pod)
    assert counted is not None
    assert {name: amount.value for name, amount in pod_requests(counted).items()} == {GPU: 1}
    assert agent.manager.app_containers_started(pod) is None
    assert agent.manager.state.allocated() == {GPU: 1}
    assert agent.devices(pod) == ["gpu-0"]
    await agent.manager.allocate(pod)
    assert agent.manager.state.allocated() == {GPU: 1}, "a restarted agent does not take the surplus again"
    await agent.manager.container_config(pod, "prepare")
    assert agent.devices(pod, "prepare") == ["gpu-0", "gpu-1", "gpu-2"], (
        "unless the init containers run again"
    )


async def test_init_surplus_stays_by_default(agent):
    await agent.plugin(count=4)
    pod = agent.make_pod("a", agent.container("app", gpu=1), init=[agent.container("prepare", gpu=3)])
    await agent.admit(pod)
    agent.manager.app_containers_started(pod)
    assert agent.manager.state.allocated() == {GPU: 3}


async def test_one_allocate_call_per_pod(agent):
    await agent.restart(section=DevicesSection(one_allocate_per_pod=True))
    plugin = await agent.plugin(count=4)
    pod = agent.make_pod(
        "a",
        agent.container("one", gpu=1),
        agent.container("two", gpu=2),
        init=[agent.container("init", gpu=1)],
    )
    await agent.admit(pod)
    assert plugin.allocations == [[["gpu-0"], ["gpu-0"], ["gpu-1", "gpu-2"]]]
    assert (await agent.manager.container_config(pod, "two")).envs == {"EXAMPLE_COM_GPU": "gpu-1,gpu-2"}


async def test_the_plugin_s_preference_is_followed_as_far_as_it_makes_sense(agent):
    plugin = await agent.plugin(
        count=4,
        allocation=SampleAllocation(prefer=["gpu-3", "gpu-1"]),
        faults=[DevicePluginFault.PREFERRED_LIES],
    )
    pod = await agent.admit(agent.make_pod("a", agent.container("app", gpu=3)))
    assert agent.devices(pod) == ["gpu-0", "gpu-1", "gpu-3"]
    (explained,) = agent.manager.describe(explain="a")["explain"]
    assert explained["why"] == [
        {"reason": "preferred by the plugin", "devices": ["gpu-3", "gpu-1"]},
        {"reason": "lowest free id", "devices": ["gpu-0"]},
    ]
    assert plugin.allocations == [[["gpu-3", "gpu-1", "gpu-0"]]]


async def test_pre_start_is_called_before_each_start(agent):
    plugin = await agent.plugin(count=1, allocation=SampleAllocation(pre_start=True))
    pod = await agent.admit(agent.make_pod("a"))
    await agent.manager.container_config(pod, "app")
    await agent.manager.container_config(pod, "app")
    assert plugin.pre_started == [["gpu-0"], ["gpu-0"]]
    plugin.faults = {DevicePluginFault.PRE_START_FAILS}
    with pytest.raises(Refused, match="PreStartContainer rpc failed"):
        await agent.manager.container_config(pod, "app")
    assert agent.devices(pod) == ["gpu-0"]


async def test_a_start_waits_for_the_plugin_that_prepares_its_devices(agent):
    plugin = await agent.plugin(count=1, allocation=SampleAllocation(pre_start=True))
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    await eventually(lambda: not agent.manager.state.resources[GPU].connected)
    with pytest.raises(Unavailable, match="away"):
        await agent.manager.container_config(pod, "app")
    again = await agent.plugin(count=1, socket="again.sock", allocation=SampleAllocation(pre_start=True))
    await agent.manager.container_config(pod, "app")
    assert again.pre_started == [["gpu-0"]]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("single-numa-node", ["gpu-2", "gpu-3"]),
        ("restricted", ["gpu-2", "gpu-3"]),
        ("none", ["gpu-1", "gpu-2"]),
    ],
)
@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_devices_come_from_one_numa_node(agent, policy, expected, scope):
    await agent.restart(topology_manager_policy=policy, topology_manager_scope=scope, numa=Numa((0, 1)))
    await agent.plugin(count=4, numa=2)
    await agent.admit(agent.make_pod("one"))
    pod = await agent.admit(agent.make_pod("two", agent.container("app", gpu=2)))
    assert agent.devices(pod) == expected


async def test_a_pod_that_cannot_be_aligned_is_refused(agent):
    await agent.restart(topology_manager_policy="single-numa-node")
    await agent.plugin(count=4, numa=2)
    error = await rejection(agent, agent.make_pod("wide", agent.container("app", gpu=3)))
    assert error.reason == "TopologyAffinityError"
    assert str(error) == "Resources cannot be allocated with Topology locality"
    assert agent.registry.metrics["kubelet_topology_manager_admission_errors_total"].values == {(): 1}


@pytest.mark.parametrize(("policy", "errors"), [("none", 0), ("best-effort", 1)])
async def test_the_policy_none_counts_no_admission_error(agent, policy, errors):
    await agent.restart(topology_manager_policy=policy)
    await agent.plugin(count=1)
    await rejection(agent, agent.make_pod("big", agent.container("app", gpu=2)))
    assert agent.registry.metrics["kubelet_topology_manager_admission_requests_total"].values == {(): 1}
    assert agent.registry.metrics["kubelet_topology_manager_admission_errors_total"].values == {(): errors}


async def test_a_pod_waits_for_the_numa_room_of_one_that_ends(agent):
    """A device is free at each node; two at one node are, once a pod has gone."""
    ending: set[str] = set()
    await agent.restart(
        topology_manager_policy="single-numa-node", section=DevicesSection(), leaves=ending.__contains__
    )
    await agent.plugin(count=4, numa=2)
    first, _, third = [await agent.admit(agent.make_pod(name)) for name in ("a", "b", "c")]
    gone(agent, first)
    wide = agent.make_pod("wide", agent.container("app", gpu=2))
    assert (await rejection(agent, wide)).reason == "TopologyAffinityError"
    ending.add(third.uid)
    reasons: list[str] = []

    async def tell(reason: str, message: str) -> None:
        reasons.append(reason)

    allocating = asyncio.create_task(agent.manager.allocate(wide, tell))
    await eventually(lambda: reasons == ["AwaitingDevices"])
    gone(agent, third)
    await allocating
    assert agent.devices(wide) == ["gpu-2", "gpu-3"]


async def test_alignments_count_from_zero(agent):
    """The kubelet's own suite expects the zeros, which the kubelet sets too early for its registry."""
    await agent.restart(topology_manager_policy="restricted")
    for counter in ("count", "failure_count"):
        counted = agent.registry.metrics[f"kubelet_container_aligned_compute_resources_{counter}"].values
        assert dict(counted) == {("container", "numa_node"): 0, ("pod", "numa_node"): 0}


@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_a_pod_that_waits_counts_one_failed_alignment(agent, scope):
    """Each try of a waiting pod fails; the admission fails once."""
    ending: set[str] = set()
    await agent.restart(
        topology_manager_policy="single-numa-node",
        topology_manager_scope=scope,
        section=DevicesSection(),
        leaves=ending.__contains__,
    )
    await agent.plugin(count=4, numa=2)
    first = await agent.admit(agent.make_pod("a"))
    ending.add(first.uid)
    told: list[str] = []

    async def tell(reason: str, message: str) -> None:
        told.append(reason)

    wide = agent.make_pod("wide", agent.container("narrow", gpu=1), agent.container("app", gpu=3))
    allocating = asyncio.create_task(agent.manager.allocate(wide, tell))
    await eventually(lambda: told == ["AwaitingDevices"])
    gone(agent, first)
    with pytest.raises(AdmissionRejected, match="Topology locality"):
        await allocating
    counted = agent.registry.metrics["kubelet_container_aligned_compute_resources_failure_count"].values
    assert counted[scope, "numa_node"] == 1
    aligned = agent.registry.metrics["kubelet_container_aligned_compute_resources_count"].values
    assert aligned[scope, "numa_node"] == {"container": 2, "pod": 1}[scope]


def gone(agent, pod):
    agent.pods.remove(pod)
    agent.manager.pod_removed(pod.uid)


async def test_an_unaligned_pod_is_admitted_by_best_effort(agent):
    await agent.restart(topology_manager_policy="best-effort")
    await agent.plugin(count=4, numa=2)
    pod = await agent.admit(agent.make_pod("wide", agent.container("app", gpu=3)))
    assert agent.devices(pod) == ["gpu-0", "gpu-1", "gpu-2"]


async def test_a_held_device_that_vanishes_stays_with_its_pod(agent):
    plugin = await agent.plugin(count=2)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.remove("gpu-0")
    await eventually(lambda: agent.counts() == (1, 1))
    assert agent.devices(pod) == ["gpu-0"]
    other = await agent.admit(agent.make_pod("b"))
    assert agent.devices(other) == ["gpu-1"]
    await plugin.add("gpu-0")
    await eventually(lambda: agent.counts() == (2, 2))
    assert "unavailable" in str(await rejection(agent, agent.make_pod("c")))


async def test_admission_computes_with_what_is_allocated(agent):
    plugin = await agent.plugin(count=2)
    pod = await agent.admit(agent.make_pod("a"))
    await plugin.stop()
    await eventually(lambda: agent.counts() == (2, 0))
    assert {k: q.value for k, q in agent.manager.sanitize_allocatable(pod, {}).items()} == {GPU: 1}
    new = agent.manager.sanitize_allocatable(agent.make_pod("new"), {})
    assert {k: q.value for k, q in new.items()} == {GPU: 2}, "asked before it has its own"
    plain = agent.make_pod("plain", agent.container("app"))
    assert agent.manager.sanitize_allocatable(plain, {}) == {}


async def test_lost_records_are_made_again_when_the_container_starts(agent):
    await agent.plugin(count=2)
    pod = agent.make_pod("a")
    agent.pods.append(pod)
    options = await agent.manager.container_config(pod, "app")
    assert options.envs == {"EXAMPLE_COM_GPU": "gpu-0"}
    with pytest.raises(InvalidInput, match="no container 'other'"):
        await agent.manager.container_config(pod, "other")


async def test_pods_admitted_at_once_are_all_aligned(agent):
    await agent.restart(topology_manager_policy="single-numa-node", topology_manager_scope="pod")
    await agent.plugin(count=8, numa=2)
    pods = [
        agent.make_pod(f"p{i}", agent.container("one", gpu=1), agent.container("two", gpu=1))
        for i in range(4)
    ]
    agent.pods.extend(pods)
    await asyncio.gather(*(agent.manager.allocate(pod) for pod in pods))
    for pod in pods:
        held = agent.devices(pod, "one") + agent.devices(pod, "two")
        assert len({int(id.removeprefix("gpu-")) // 4 for id in held}) == 1, held
    assert agent.manager.state.allocated() == {GPU: 8}
