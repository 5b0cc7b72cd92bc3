"""A node on a containerd of its own in a user namespace: `containerd_program.py DIRECTORY`, run as its root.

Prints what it saw as JSON. It is a program of its own because the user may not read every directory of the
interpreter that runs the tests.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine import KubeletConfiguration, Node, Pod
from engine.testing.containerd import Containerd
from engine.testing.images import write_busybox

LONGEST = 90
"""Seconds that the pod may take until it is ready."""
RUNS = "id -u; echo done > /memory/done; exec sleep 1000"


class RootlessContainerd(Containerd):
    """Run a containerd without cgroups, which the user may not create here."""

    def _write_config(self) -> None:
        super()._write_config()
        config = self.directory / "config.toml"
        own = "disable_apparmor = true\n"
        config.write_text(config.read_text().replace(own, own + "  disable_cgroup = true\n"))


def pod() -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", RUNS],
        "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
        "readinessProbe": {"exec": {"command": ["cat", "/memory/done"]}, "periodSeconds": 1},
    }
    volume = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}


async def run(directory: Path, containerd: Containerd) -> dict[str, Any]:
    """Run a node until its pod is ready, and remove the pod."""
    manifests, logs = directory / "pods", directory / "logs"
    manifests.mkdir()
    (manifests / "web.json").write_text(json.dumps(pod()))
    config = KubeletConfiguration(
        static_pod_path=str(manifests),
        pod_logs_dir=str(logs),
        resolv_conf="",
        enable_server=False,
        eviction_hard={},
        cgroups_per_qos=False,
        enforce_node_allocatable=[],
    )
    node = Node(config=config, runtime_endpoint=str(containerd.socket), root=directory / "root", name="n1")
    await node.start()
    shown: list[Pod] = []
    try:
        async with asyncio.timeout(LONGEST):
            while not any(status.ready for each in shown for status in each.status.container_statuses or ()):
                await asyncio.sleep(0.1)
                shown = node.pods()
    except TimeoutError:
        said = containerd.log.read_text()[-4000:]
        raise AssertionError(f"not ready within {LONGEST} s: {shown}; containerd: {said}") from None
    (log,) = logs.glob("*/*/*.log")
    seen = {
        "uid_map": [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()],
        "address": shown[0].status.pod_ip,
        "log": [line.split()[-1] for line in log.read_text().splitlines()],
    }
    await node.remove_all_pods()
    await node.stop()
    return {**seen, "left": containerd.ctr("containers", "list", "-q").split()}


def main(directory: Path) -> None:
    for command in (
        "mount -t proc proc /proc",
        "mount -t tmpfs tmpfs /run",
        "mount -t tmpfs tmpfs /var/lib/cni",
        "ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    with RootlessContainerd(directory) as containerd:
        containerd.import_image(write_busybox(directory / "busybox.tar"))
        sys.stdout.write(json.dumps(asyncio.run(run(directory, containerd))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
