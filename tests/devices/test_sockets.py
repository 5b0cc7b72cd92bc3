"""The sockets themselves: who may register and how, lying plugins, the pod-resources API."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from engine.api.errors import Refused
from engine.devices.endpoint import DevicePluginDeadlines, Endpoint
from engine.devices.manager import LIST_ACTIVE_GATE
from engine.testing.device_plugin import SampleDevicePlugin
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from engine.wire import podresources_v1_pb2 as v1
from engine.wire.podresources_v1_pb2_grpc import PodResourcesListerStub
from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"


async def test_a_second_plugin_of_a_resource_replaces_the_first(agent):
    first = await agent.plugin(count=2)
    second = await agent.plugin(count=3, socket="second.sock", register=False)
    await agent.registered(second)
    assert agent.counts() == (3, 3)
    await first.stop()
    await asyncio.sleep(0.05)
    assert agent.counts() == (3, 3), "the end of the replaced plugin changes nothing"


async def test_a_plugin_that_answers_late_does_not_replace_one_that_registered_later(
    agent, monkeypatch: pytest.MonkeyPatch
):
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def late(*_: object) -> wire.DevicePluginOptions:
        asked.set()
        await may_answer.wait()
        return wire.DevicePluginOptions()

    with monkeypatch.context() as patch:
        patch.setattr(SampleDevicePlugin, "GetDevicePluginOptions", late)
        first = await agent.plugin(count=2, register=False)
    registering = asyncio.create_task(first.register(agent.plugin_dir))
    await asked.wait()
    second = await agent.plugin(count=3, socket="second.sock", register=False)
    await agent.registered(second)
    may_answer.set()
    with pytest.raises(Refused, match=r"replaced by the plugin at .*second\.sock"):
        await registering
    assert agent.counts() == (3, 3)


async def test_repeated_and_unnamed_devices_are_sorted_out(agent):
    plugin = await agent.plugin(count=1)
    await plugin.set_devices(
        [
            wire.Device(ID="a", health="Healthy"),
            wire.Device(ID="a", health="Unhealthy"),
            wire.Device(ID="", health="Healthy"),
            wire.Device(ID="b", health="healthy"),
            wire.Device(ID="c", health="Healthy"),
        ]
    )
    await eventually(lambda: agent.counts() == (3, 1))
    (resource,) = agent.manager.describe()["resources"]
    assert (
        resource["complaint"]
        == "1 devices with repeated ids, 1 devices with empty ids, 1 devices with odd health"
    )


async def test_a_hundred_thousand_devices(agent):
    plugin = await agent.plugin(count=100_000)
    assert agent.counts() == (100_000, 100_000)
    await plugin.set_devices([])
    await eventually(lambda: agent.counts() == (0, 0))


@pytest.mark.parametrize(
    ("resource", "version", "endpoint", "words"),
    [
        (GPU, "v1alpha1", "gpu.sock", 'requested API version "v1alpha1" is not supported'),
        ("gpu", "v1beta1", "gpu.sock", 'the ResourceName "gpu" is invalid'),
        ("requests.example.com/gpu", "v1beta1", "gpu.sock", "is invalid"),
        (GPU, "v1beta1", "../gpu.sock", "expected a socket's file name"),
        (GPU, "v1beta1", "absent.sock", "no answer at"),
        (GPU, "v1beta1", f"{'x' * 120}.sock", "longer than the 107 bytes"),
    ],
    ids=["version", "native-name", "prefixed-name", "path", "nobody", "long-path"],
)
async def test_registrations_that_are_refused(agent, resource, version, endpoint, words):
    await agent.restart(deadlines=DevicePluginDeadlines(dial=0.2))
    plugin = await agent.plugin(resource, register=False)
    plugin.socket = plugin.socket.with_name(endpoint) if "/" not in endpoint else plugin.socket
    request = wire.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
    async with grpc.aio.insecure_channel(f"unix:{agent.plugin_dir / 'kubelet.sock'}") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.Empty.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request, timeout=PATIENCE)
    assert words in (refused.value.details() or "")
    assert agent.counts(resource) == (None, None)
    assert agent.registry.metrics["kubelet_device_plugin_registration_total"].values == {(resource,): 1}


async def test_a_plugin_with_a_malformed_answer_is_refused(tmp_path):
    async def garbage(request: bytes, context: object) -> bytes:
        return b"\xff"

    server = grpc.aio.server()
    handlers = {"GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(garbage)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
    server.add_insecure_port(f"unix:{tmp_path / 's'}")
    await server.start()
    endpoint = Endpoint(GPU, tmp_path / "s", DevicePluginDeadlines())
    with pytest.raises(Refused, match="options: rpc error: code = Internal desc = the response cannot be"):
        await endpoint.connect()
    await endpoint.close()
    await server.stop(None)


async def test_endless_names_do_not_grow_the_metrics(agent, monkeypatch):
    monkeypatch.setattr("engine.devices.registration.MOST_NAMES", 3)
    async with grpc.aio.insecure_channel(f"unix:{agent.plugin_dir / 'kubelet.sock'}") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.Empty.FromString,
        )
        for number in (0, 1, 2, 3, 4, 1):
            request = wire.RegisterRequest(version="v1beta1", endpoint="x", resource_name=f"odd-{number}")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(request, timeout=PATIENCE)
    counted = agent.registry.metrics["kubelet_device_plugin_registration_total"].values
    assert counted == {("odd-0",): 1, ("odd-1",): 2, ("odd-2",): 1, ("other",): 2}


async def test_the_plugin_watcher_finds_sockets(agent):
    early = await agent.plugin(register=False, registry_socket=agent.registry_dir / "sub" / "gpu.sock")
    await eventually(lambda: agent.counts() == (4, 4))
    await eventually(lambda: bool(early.status))
    assert early.status[0].plugin_registered
    pod = await agent.admit(agent.make_pod("a"))
    await agent.restart()
    await eventually(lambda: agent.counts() == (4, 4))
    assert agent.devices(pod) == ["gpu-0"]
    await early.stop()
    await eventually(lambda: agent.counts() == (4, 0))


async def test_the_plugin_watcher_reports_refusals(agent):
    plugin = await agent.plugin("gpu", register=False, registry_socket=agent.registry_dir / "gpu.sock")
    await eventually(lambda: bool(plugin.status))
    assert plugin.status[0].error == (
        "RegisterPlugin error -- plugin validation failed with err: "
        'invalid name of device plugin socket: the ResourceName "gpu" is invalid'
    )


async def test_pod_resources_knows_single_pods_and_what_is_allocatable(agent):
    plugin = await agent.plugin(count=2, numa=2)
    await plugin.set_health("gpu-1", "Unhealthy")
    await eventually(lambda: agent.counts() == (2, 1))
    await agent.admit(agent.make_pod("a"))
    async with grpc.aio.insecure_channel(f"unix:{agent.pod_resources_dir / 'kubelet.sock'}") as channel:
        stub = PodResourcesListerStub(channel)
        one = await stub.Get(
            v1.GetPodResourcesRequest(pod_name="a", pod_namespace="default"), timeout=PATIENCE
        )
        (device,) = one.pod_resources.containers[0].devices
        assert (list(device.device_ids), [n.ID for n in device.topology.nodes]) == (["gpu-0"], [0])
        with pytest.raises(grpc.aio.AioRpcError, match="pod b in namespace default not found"):
            await stub.Get(v1.GetPodResourcesRequest(pod_name="b", pod_namespace="default"), timeout=PATIENCE)
        usable = await stub.GetAllocatableResources(v1.AllocatableResourcesRequest(), timeout=PATIENCE)
        assert [list(d.device_ids) for d in usable.devices] == [["gpu-0"]]
    errors = agent.registry.metrics["kubelet_pod_resources_endpoint_errors_get"].values
    assert errors == {("v1",): 1}


@pytest.mark.parametrize(("gates", "listed"), [({}, []), ({LIST_ACTIVE_GATE: False}, ["ended"])])
async def test_list_shows_finished_pods_if_a_gate_is_off(agent, gates, listed):
    agent.finished.append(agent.make_pod("ended"))
    await agent.restart(feature_gates=gates)
    async with grpc.aio.insecure_channel(f"unix:{agent.pod_resources_dir / 'kubelet.sock'}") as channel:
        answer = await PodResourcesListerStub(channel).List(v1.ListPodResourcesRequest(), timeout=PATIENCE)
    assert [pod.name for pod in answer.pod_resources] == listed


async def test_a_tight_loop_of_lists_is_throttled(agent):
    async with grpc.aio.insecure_channel(f"unix:{agent.pod_resources_dir / 'kubelet.sock'}") as channel:
        stub = PodResourcesListerStub(channel)
        calls = [stub.List(v1.ListPodResourcesRequest(), timeout=PATIENCE) for _ in range(100)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, grpc.aio.AioRpcError)]
    assert refused
    assert {(o.code(), o.details()) for o in refused} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    }
    assert len(outcomes) - len(refused) >= 10
