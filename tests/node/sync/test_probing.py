"""Which address the probes of a pod get from the runtime's record."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.kubengine_config import ProbesSection
from engine.api.status import IP
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.host.records.store import RecordStore
from engine.node.pod.records import ReadinessRecords
from engine.node.sync.probing import Probing
from tests.contexts import node_context
from tests.probes.probed_pods import Rig, pod_with

HOST = ("192.0.2.1",)


@pytest.fixture
def rig() -> Rig:
    return Rig(ProbesSection())


@pytest.fixture
def probing(rig: Rig, tmp_path: Path) -> Probing:
    return Probing(rig.manager, ReadinessRecords(RecordStore(tmp_path / "records", node_context().tasks)))


def record(*ips: str) -> PodRecord:
    container = ContainerRecord("id-app", "app", "s", RUNNING, 0, 1.0)
    return PodRecord("u1", "p", "default", [SandboxRecord("s", True, 1, 1.0, ips)], [container])


def test_the_probes_of_a_new_sandbox_go_to_its_address_and_not_to_the_published_one(
    rig: Rig, probing: Probing
):
    pod = pod_with(readiness={"tcpSocket": {"port": 80}})
    pod.status.pod_ip, pod.status.pod_ips = "10.0.0.1", [IP(ip="10.0.0.1")]
    probing.accepted(pod)
    probing.observed(pod, record("10.0.0.2"), HOST)
    assert rig.probe("readiness")["target"] == "10.0.0.2:80"


def test_a_pod_in_the_hosts_network_is_probed_at_the_nodes_address_from_the_start(rig: Rig, probing: Probing):
    pod = pod_with(readiness={"tcpSocket": {"port": 80}})
    pod.spec.host_network = True
    probing.accepted(pod)
    probing.observed(pod, record(), HOST)
    assert rig.probe("readiness")["target"] == "192.0.2.1:80"
