"""A cluster that kubeadm makes with the Debian package's agent as /usr/bin/kubelet, from init to reset."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest

from tests.system.vm import kubeadm_in_machine
from tests.system.vm.kubeadm_in_machine import CONFIG, CONTROL_PLANE, UNIT, connect, prepare, write_disk
from tests.system.vm.machine import Machine, Size
from tests.system.vm.node_in_machine import LONG
from tests.system.vm.pods_in_machine import CGROUPS
from tests.system.vm.test_package import PACKAGE

SIZE = Size(cpus=2, memory=4096)
SECOND_SIZE = Size(cpus=2, memory=2048)
KUBECTL = "kubectl --kubeconfig /etc/kubernetes/admin.conf --request-timeout 5m"
__all__ = ["write_disk"]  # of each machine, before it starts
pytestmark = [
    pytest.mark.skipif(PACKAGE is None, reason="needs dist/kubengine_*.deb: `make deb`"),
    pytest.mark.skipif("CONTAINERD2_BIN" not in os.environ, reason="needs CONTAINERD2_BIN: containerd 2"),
    pytest.mark.skipif(
        bool(kubeadm_in_machine.lacking()),
        reason=f"needs {kubeadm_in_machine.lacking()}",
    ),
]


@pytest.fixture(scope="module")
def printed(machine: Machine) -> str:
    """Make a cluster with the control plane on the machine, and return what `kubeadm init` printed."""
    assert PACKAGE is not None
    connect(machine, 1)
    prepare(machine, PACKAGE)
    machine.report("kubeadm init")
    return machine.check(f"kubeadm init --config {CONFIG} 2>&1", LONG)


def wait_for_nodes(machine: Machine, *names: str) -> dict[str, str]:
    """Wait until n1 and the nodes of these names are ready, with the control plane on n1 and a proxy on each.

    Return the container of each program, such as "etcd on n1".
    """
    nodes = {"n1", *names}
    expected = {f"{program} on n1" for program in CONTROL_PLANE} | {f"kube-proxy on {name}" for name in nodes}
    found: dict[str, str] = {}

    def ready() -> bool:
        nonlocal found
        pods = listed(machine, "pods -n kube-system")
        found = {
            f"{status['name']} on {pod['spec']['nodeName']}": status["containerID"].removeprefix(
                "containerd://"
            )
            for pod in filter(is_ready, pods)
            for status in pod["status"]["containerStatuses"]
        }
        ready_nodes = {each["metadata"]["name"] for each in filter(is_ready, listed(machine, "nodes"))}
        return found.keys() == expected and ready_nodes == nodes

    machine.until(ready, LONG, f"{' and '.join(sorted(nodes))} and their pods to be ready")
    return found


def listed(machine: Machine, what: str) -> list[dict[str, Any]]:
    """Return these objects; none while the API server does not answer."""
    answer = machine.run(f"{KUBECTL} get {what} -o json", LONG)
    items: list[dict[str, Any]] = json.loads(answer.output)["items"] if answer.code == 0 else []
    return items


def is_ready(thing: dict[str, Any]) -> bool:
    conditions = thing["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_init(machine: Machine, printed: str) -> None:
    assert "initialized successfully" in printed
    assert "[WARNING" not in printed
    wait_for_nodes(machine)
    assert machine.check(f"systemctl show {UNIT} -p NRestarts --value").strip() == "0"
    (node,) = listed(machine, "nodes")
    assert "+kubengine-" in node["status"]["nodeInfo"]["kubeletVersion"]
    groups = machine.check(f"find {CGROUPS}/kubepods.slice -name 'cri-containerd-*.scope'").split()
    classes = Counter(each.split("/")[5] for each in groups)  # two a pod, the sandbox and the container
    assert classes == {
        "kubepods-burstable.slice": 2 * len(CONTROL_PLANE),
        "kubepods-besteffort.slice": 2,
    }


@pytest.mark.usefixtures("printed")
def test_restart_of_the_unit_keeps_containers(machine: Machine) -> None:
    before = wait_for_nodes(machine)
    machine.check(f"systemctl restart {UNIT}", LONG)
    healthy = "curl -sf --max-time 60 http://127.0.0.1:10248/healthz"
    machine.until(lambda: machine.run(healthy).code == 0, LONG, "the restarted agent to be healthy")
    assert wait_for_nodes(machine) == before


@pytest.mark.usefixtures("printed")
def test_upgrade_of_the_node(machine: Machine) -> None:
    """kubeadm renews the certificates of the control plane, and starts its pods again; others stay."""
    before = wait_for_nodes(machine)
    machine.report("kubeadm upgrade node")
    assert "was successfully upgraded" in machine.check("kubeadm upgrade node 2>&1", LONG)
    after = wait_for_nodes(machine)
    assert [name for name in after if after[name] == before[name]] == ["kube-proxy on n1"]


@pytest.mark.usefixtures("printed")
def test_reboot(machine: Machine) -> None:
    before = wait_for_nodes(machine)
    machine.reboot()
    after = wait_for_nodes(machine)
    assert not set(before.values()) & set(after.values())


@pytest.mark.usefixtures("printed")
def test_join_and_reset_of_a_worker(machine: Machine, second_machine: Machine) -> None:
    assert PACKAGE is not None
    wait_for_nodes(machine)
    connect(second_machine, 2)
    prepare(second_machine, PACKAGE)
    command = machine.check("kubeadm token create --print-join-command", LONG).strip()
    second_machine.report("kubeadm join")
    printed = second_machine.check(f"{command} 2>&1", LONG)
    assert "This node has joined the cluster" in printed
    wait_for_nodes(machine, "n2")
    reset(second_machine)


@pytest.mark.usefixtures("printed")
def test_reset(machine: Machine) -> None:
    wait_for_nodes(machine)
    reset(machine)


def reset(machine: Machine) -> None:
    """Reset a node, and check that nothing of its pods is left."""
    machine.report("kubeadm reset")
    machine.check("kubeadm reset -f 2>&1", LONG)
    assert machine.run(f"systemctl is-active {UNIT}").output.strip() == "inactive"
    assert machine.check("ctr -n k8s.io tasks ls -q; ctr -n k8s.io containers ls -q") == ""
    assert machine.run("pgrep -a kube; pgrep -a etcd; pgrep -a containerd-shim").output == ""
    assert machine.run("grep -E '/var/lib/kubelet|/run/containerd/io' /proc/mounts").output == ""
    assert machine.run(f"find {CGROUPS}/kubepods.slice -name '*.scope'").output == ""
