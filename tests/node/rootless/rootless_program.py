"""A node of an ordinary user, run as a program: `rootless_program.py DIRECTORY`. Prints what it saw as JSON.

The user may not read every directory of the interpreter that runs the tests, so this runs in the machine's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from engine import KubeletConfiguration, KubengineError, Node
from engine.runtime.embedded import EmbeddedRuntime
from engine.testing import HollowRuntime

GROUPS = Path("/sys/fs/cgroup/user/kubepods")


def pod(name: str, volume: dict[str, Any]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "hollow",
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    spec = {"containers": [container], "volumes": [{"name": "v", "emptyDir": volume}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def run(directory: Path, **given: Any) -> dict[str, Any]:
    """Run a node until one of its pods runs and the other one is refused its volume."""
    manifests = directory / "pods"
    manifests.mkdir(exist_ok=True)
    for name, volume in (("disk", {}), ("memory", {"medium": "Memory"})):
        (manifests / f"{name}.json").write_text(json.dumps(pod(name, volume)))
    config = KubeletConfiguration(
        static_pod_path=str(manifests),
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        enable_server=False,
        eviction_hard={},
        **given,
    )
    socket = directory / "cri.sock"
    async with HollowRuntime(socket) as _:
        node = Node(config=config, runtime_endpoint=str(socket), root=directory / "root", name="n1")
        try:
            await node.start()
        except KubengineError as error:
            await node.stop()
            return {"refused": str(error)}
        mounts: list[str] = []
        while not mounts or "Running" not in [pod.status.phase for pod in node.pods()]:
            await asyncio.sleep(0.05)
            mounts = [event.message for event in node.recorder if event.reason == "FailedMount"]
        limits = [path.read_text().strip() for path in GROUPS.glob("pod*/memory.max")]
        seen = {
            "phases": {pod.metadata.name: pod.status.phase for pod in node.pods()},
            "limits": limits,
            "mounts": mounts,
        }
        await node.remove_all_pods()
        await node.stop()
        return seen


async def main(directory: Path) -> None:
    seen: dict[str, Any] = {"uid": os.getuid(), "outside": await run(directory)}
    seen["inside"] = await run(directory, cgroup_root="/user")
    seen["left"] = [path.name for path in GROUPS.glob("pod*")]
    try:
        EmbeddedRuntime(socket=directory / "e.sock", root=directory / "e", state=directory / "s")
    except KubengineError as error:
        seen["embedded"] = str(error)
    sys.stdout.write(json.dumps(seen))


asyncio.run(main(Path(sys.argv[1])))
