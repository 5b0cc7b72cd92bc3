"""The checkout's agent in a machine: on containerd under the systemd cgroup driver, as a service."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from engine.testing.images import BUSYBOX_TAG, PAUSE_TAG, write_busybox, write_pause
from tests.system.vm.image import SHARE
from tests.system.vm.machine import Machine

ROOT = Path(__file__).parents[3]
PYTHON = f"{ROOT}/.venv/bin/python"
SOCKET = "/var/lib/kubelet/kubengine.sock"
MANIFESTS = "/etc/kubernetes/manifests"
UNIT = "agent.service"
RESOURCES = {
    "guaranteed": {
        "requests": {"cpu": "100m", "memory": "32Mi"},
        "limits": {"cpu": "100m", "memory": "32Mi"},
    },
    "burstable": {"requests": {"cpu": "100m", "memory": "32Mi"}},
    "besteffort": {},
}
CONTAINERD = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_TAG}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]},
        }
    ],
}
CONFIG = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: systemd
"""
SERVICE = f"""[Unit]
After=containerd.service checkout.service
Requires=checkout.service
[Service]
Type=notify
WorkingDirectory={ROOT}
ExecStart={ROOT}/.venv/bin/kubengine run --config /etc/kubengine.yaml
TimeoutStartSec=10min
KillMode=process
Delegate=yes
[Install]
WantedBy=multi-user.target
"""
NINE_P = "trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose"


def checkout_unit() -> str:
    """Return a service that mounts the checkout and this Python at their own paths. The machine keeps
    what it changes in the checkout on its own disk."""
    layers = "lowerdir=/run/checkout,upperdir=/var/checkout/changed,workdir=/var/checkout/work"
    lines = [
        f"/bin/mkdir -p /run/checkout {ROOT} /var/checkout/changed /var/checkout/work",
        f"/bin/mount -t 9p -o {NINE_P} checkout /run/checkout",
        f"/bin/mount -t overlay -o {layers} overlay {ROOT}",
    ]
    if Path(sys.base_prefix) != Path("/usr"):
        lines += [
            f"/bin/mkdir -p {sys.base_prefix}",
            f"/bin/mount -t 9p -o {NINE_P} python {sys.base_prefix}",
        ]
    starts = "".join(f"ExecStart={line}\n" for line in lines)
    return f"[Service]\nType=oneshot\nRemainAfterExit=yes\n{starts}"


def install(machine: Machine) -> None:
    """Containerd with busybox and a network, and the agent's unit, which is not started."""
    write_pause(machine.share / "pause.tar")
    write_busybox(machine.share / "busybox.tar")
    put(machine, "/etc/containerd/config.toml", CONTAINERD)
    put(machine, "/etc/cni/net.d/10-pods.conflist", json.dumps(NETWORK))
    put(machine, "/etc/kubengine.yaml", textwrap.dedent(CONFIG))
    put(machine, "/etc/systemd/system/checkout.service", checkout_unit())
    put(machine, f"/etc/systemd/system/{UNIT}", SERVICE)
    machine.check(f"mkdir -p {MANIFESTS}; systemctl daemon-reload")
    machine.check("systemctl enable --now containerd; systemctl start checkout")
    for name in ("pause", "busybox"):
        machine.check(f"ctr -n k8s.io images import {SHARE}/{name}.tar")


def put(machine: Machine, path: str, text: str) -> None:
    """Write a file of the machine."""
    (machine.share / "put").write_text(text)
    machine.check(f"mkdir -p $(dirname {path}); cp {SHARE}/put {path}")


def write_pods(machine: Machine) -> None:
    """A pod of each QoS class."""
    for name, resources in RESOURCES.items():
        container = {
            "name": "c",
            "image": BUSYBOX_TAG,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 1; done"],
            "resources": resources,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
        }
        put(machine, f"{MANIFESTS}/{name}.yaml", json.dumps(pod))


def pods(machine: Machine) -> list[dict[str, Any]]:
    """The agent's pods; none while it does not answer."""
    answer = machine.run(f"curl -s --max-time 20 --unix-socket {SOCKET} http://agent/pods")
    return json.loads(answer.output)["items"] or [] if answer.code == 0 else []


def containers(machine: Machine) -> dict[str, str]:
    """By pod, the id of its running container."""
    return {
        pod["metadata"]["name"].removesuffix("-vm"): status["containerID"]
        for pod in pods(machine)
        for status in pod["status"].get("containerStatuses", [])
        if "running" in status["state"]
    }


def wait_for_pods(
    machine: Machine, *, other_than: dict[str, str] | None = None, seconds: float = 600
) -> None:
    """Wait until each of `write_pods` runs, in other containers than these where some are given."""
    before = other_than or {}

    def run() -> bool:
        now = containers(machine)
        return now.keys() == RESOURCES.keys() and all(before.get(name) != now[name] for name in now)

    machine.until(run, seconds, "not every pod runs")


def faults(machine: Machine) -> str:
    """What `kubengine cgroups check` says."""
    return machine.check(f"{ROOT}/.venv/bin/kubengine cgroups check").strip()
