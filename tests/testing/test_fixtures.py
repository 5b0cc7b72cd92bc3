"""The fixtures of the pytest plugin, used as their users do: without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.errors import NotFound, Refused, Unavailable
from engine.testing import ApiServerFault, DevicePluginFault, HollowNode, ThreadedApiServer

GPU = {"example.com/gpu": "1"}


def pod(name: str, *, limits: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": limits or {}}}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def test_a_pod_runs_ends_restarts_and_is_deleted(hollow_node: HollowNode) -> None:
    started = hollow_node.run(pod("web"))
    assert started["metadata"]["name"] == "web-node"
    hollow_node.end_container("web", exit_code=3, reason="Error")
    hollow_node.wait_until(lambda: restarts(hollow_node, "web") == 1)
    assert [event.container for event in hollow_node.events("Started")] == ["main", "main"]
    hollow_node.delete("web")
    with pytest.raises(NotFound, match="node node: the node has no pod web"):
        hollow_node.pod("web")
    with pytest.raises(NotFound, match="pod web: no container"):
        hollow_node.end_container("web")


def restarts(node: HollowNode, name: str) -> int:
    return sum(each["restartCount"] for each in (node.status(name) or {}).get("containerStatuses", ()))


def test_a_pod_survives_a_restart_of_the_agent(hollow_node: HollowNode) -> None:
    before = hollow_node.run(pod("web"))
    hollow_node.stop()
    with pytest.raises(Unavailable, match="its agent is stopped"):
        hollow_node.pod("web")
    hollow_node.start()
    after = hollow_node.run(pod("web"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(hollow_node, "web") == 0


def test_a_wait_that_ends_explains_the_state(hollow_node: HollowNode) -> None:
    name = hollow_node.apply(pod("big", limits={"cpu": "100k"}))
    with pytest.raises(Unavailable, match=r"(?s)pod .*big-node: still not as awaited.*res: cpu"):
        hollow_node.wait_until(lambda: False, timeout=0.5, about=name)


def test_a_pod_that_cannot_run_is_refused_with_the_cause(hollow_node: HollowNode) -> None:
    def refused(wanted: dict[str, Any]) -> str:
        with pytest.raises(Refused) as error:
            hollow_node.run(wanted, timeout=600)
        return str(error.value)

    message = refused(pod("big", limits={"cpu": "100k"}))
    assert message.startswith("pod default/big-node: will not be Running: it is Failed. ")
    assert "res: cpu" in message
    lost = {"name": "v", "hostPath": {"path": "/nowhere", "type": "Directory"}}
    message = refused(pod("mounts", volumes=[lost], containers=[mounting("v")]))
    assert message == (
        "pod default/mounts-node: will not be Running: MountVolume.SetUp failed for volume "
        '"v" : hostPath type check failed: /nowhere is not a directory'
    )
    message = refused(pod("outside", volumes=[{"name": "v", "configMap": {"name": "c"}}]))
    assert "default.outside.json: spec.volumes[0]: a config map volume needs an API server" in message


def mounting(volume: str) -> dict[str, Any]:
    return {"name": "main", "volumeMounts": [{"name": volume, "mountPath": "/v"}]}


def test_a_configuration_counts_and_a_wrong_one_is_refused() -> None:
    with HollowNode("small", {"maxPods": 1}) as node:
        assert node.allocatable()["pods"] == "1"
        node.run(pod("first"))
        rejected = node.run(pod("second"), "Failed")
        assert "res: pods" in rejected["status"]["message"]
    with pytest.raises(Exception, match="maxPods"):
        HollowNode("wrong", {"maxPods": "many"})


def test_devices_are_allocated_and_fail_on_demand(
    hollow_node: HollowNode, device_plugin: Callable[..., Any]
) -> None:
    plugin = device_plugin("example.com/gpu", count=2)
    hollow_node.run(pod("train", limits=GPU))
    assert plugin.allocations == [[["gpu-0"]]]
    plugin.set_health("gpu-1", "Unhealthy")
    hollow_node.wait_until(lambda: hollow_node.allocatable()["example.com/gpu"] == "1")
    plugin.set_health("gpu-1", "Healthy")
    hollow_node.wait_until(lambda: hollow_node.allocatable()["example.com/gpu"] == "2")
    plugin.fail_with(DevicePluginFault.ALLOCATE_FAILS)
    refused = hollow_node.run(pod("other", limits=GPU), "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"


def test_a_node_of_a_cluster_goes_on_after_faults(
    api_server: ThreadedApiServer, cluster_node: HollowNode
) -> None:
    api_server.fail(ApiServerFault.DROP, path="/pods/web/status", times=2)
    cluster_node.run(pod("web"))
    path = "/api/v1/namespaces/default/pods/web"
    cluster_node.wait_until(lambda: api_server.get(path)["status"]["phase"] == "Running")
    cluster_node.delete("web")
    cluster_node.wait_until(lambda: not api_server.list("/api/v1/namespaces/default/pods"))


@pytest.mark.root
def test_a_csi_driver_mounts_a_volume_and_fails_on_demand(
    cluster_node: HollowNode, csi_driver: Callable[..., Any]
) -> None:
    driver = csi_driver("files.example.com")
    driver.faults["NodePublishVolume"] = 13
    container = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volumes = [{"name": "v", "csi": {"driver": driver.name}}]
    cluster_node.apply(pod("p", containers=[container], volumes=volumes))
    cluster_node.wait_until(lambda: cluster_node.events("FailedMount"))
    driver.faults.clear()
    cluster_node.wait_until(lambda: (cluster_node.status("p") or {}).get("phase") == "Running")
    assert len(driver.called("NodePublishVolume")) >= 2
    cluster_node.delete("p")
    assert driver.called("NodeUnpublishVolume")
