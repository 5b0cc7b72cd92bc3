"""A node with real containers in a user namespace: `user_namespace_program.py DIRECTORY`, run as its root.

Prints what it saw as JSON. It is a program of its own because the user may not read every directory of the
interpreter that runs the tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from engine import KubeletConfiguration, Node, Pod
from engine.runtime.embedded import EmbeddedRuntime
from engine.testing.images import write_busybox

GROUPS = Path("/sys/fs/cgroup/user/kubepods")
WRITES = "id -u > /memory/uid; echo gone > /dev/null; exec sleep 1000"


def pod(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "busybox", "imagePullPolicy": "Never", **container}
    # The kernel of these tests has no bridge.
    spec = {"hostNetwork": True, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


WEB = pod(
    "web",
    {
        "command": ["sh", "-c", WRITES],
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
        "readinessProbe": {"exec": {"command": ["cat", "/memory/uid"]}, "timeoutSeconds": 60},
    },
    volumes=[{"name": "memory", "emptyDir": {"medium": "Memory"}}],
)
OTHER_USER = pod("other-user", {"command": ["sleep", "1000"], "securityContext": {"runAsUser": 1234}})
HOST = pod("host", {"image": "host", "command": ["sleep", "1000"]})


async def main(directory: Path) -> None:
    manifests = directory / "pods"
    manifests.mkdir()
    for document in (WEB, OTHER_USER, HOST):
        (manifests / f"{document['metadata']['name']}.json").write_text(json.dumps(document))
    config = KubeletConfiguration(
        static_pod_path=str(manifests),
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        enable_server=False,
        eviction_hard={},
        enforce_node_allocatable=[],
        cgroup_root="/user",
    )
    socket = directory / "cri.sock"
    runtime = EmbeddedRuntime(socket=socket, root=directory / "images", state=directory / "state")
    await runtime.start()
    await runtime.import_image(write_busybox(directory / "b.tar"))
    node = Node(config=config, runtime_endpoint=str(socket), root=directory / "root", name="n1")
    await node.start()
    ready: set[str] = set()
    refused: set[str] = set()
    deadline = asyncio.get_running_loop().time() + 240
    while len(ready) < 2 or not refused:
        await asyncio.sleep(0.1)
        if asyncio.get_running_loop().time() > deadline:
            sys.exit("\n".join(f"{event.reason} {event.message}" for event in node.recorder))
        ready = {pod.metadata.name for pod in node.pods() if _is_ready(pod)}
        refused = {event.message for event in node.recorder if "not mapped" in event.message}
    seen = {
        "map": Path("/proc/self/uid_map").read_text().split(),
        "ready": sorted(ready),
        "refused": sorted(refused),
        "written": [path.read_text().strip() for path in sorted((directory / "root").rglob("memory/uid"))],
        "limits": [path.read_text().strip() for path in GROUPS.glob("pod*/memory.max")],
    }
    await node.remove_all_pods()
    await node.stop()
    await runtime.purge()
    seen["left"] = [path.name for path in GROUPS.glob("pod*")]
    sys.stdout.write(json.dumps(seen))


def _is_ready(pod: Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


assert os.getuid() == 0
asyncio.run(main(Path(sys.argv[1])))
