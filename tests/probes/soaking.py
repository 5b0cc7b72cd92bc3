"""Many containers with a one-second liveness probe on the hollow runtime, in this process's own network.

`python soaking.py KIND CONTAINERS PROBES [BURNERS]`, in a network namespace of its own, until each has had so
many probes; prints one JSON object. A failing liveness probe restarts the container, as the node does.
An answer may take as long as a starved machine needs. With BURNERS, processes that take all the processor
time they get beside the agent, it has a second, and what answers goes before them all.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from engine.api.events import EventRecorder
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.probes.manager import ProbeManager, ProbeResult
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.contexts import node_context
from tests.waiting import PATIENCE, eventually

PROBES = {
    "http": {"httpGet": {"port": 8080, "path": "/healthz"}},
    "tcp": {"tcpSocket": {"port": 8080}},
    "grpc": {"grpc": {"port": 9090}},
    "exec": {"exec": {"command": ["true"]}},
}
PATIENT, IN_A_SECOND = int(PATIENCE), 1
BEHIND = 10
"""How much nicer the agent and its burners are than the containers that it probes."""
IMAGE = "docker.io/library/busybox:latest"


class Containers:
    """Do what a node does for these pods: run them, update the prober, restart after a liveness failure."""

    def __init__(self, client: RuntimeClient, timeout: int) -> None:
        self.client = client
        self.often = {"periodSeconds": 1, "timeoutSeconds": timeout}
        self.manager: ProbeManager
        self.sandboxes: dict[str, tuple[str, cri.PodSandboxConfig]] = {}
        self.restarts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, number: int, probe: dict[str, Any]) -> None:
        uid, address = f"uid-{number}", f"127.1.{number // 250}.{number % 250 + 1}"
        manifest = {
            "metadata": {"name": f"pod-{number}", "namespace": "soak", "uid": uid},
            "spec": {"containers": [{"name": "app", "image": IMAGE, "livenessProbe": probe | self.often}]},
        }
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=f"pod-{number}", uid=uid, namespace="soak"),
            annotations={"runtime.kubengine.dev/ip": address},
        )
        self.sandboxes[uid] = await self.client.run_pod_sandbox(config), config
        status = await self.client.pod_sandbox_status(self.sandboxes[uid][0])
        self.manager.add_pod(msgspec.convert(manifest, Pod))
        self.manager.update_pod(uid, pod_ip=status.status.network.ip, phase="Running")
        await self.start(uid)

    async def start(self, uid: str) -> None:
        sandbox, config = self.sandboxes[uid]
        container = await self.client.create_container(
            sandbox,
            cri.ContainerConfig(
                metadata=cri.ContainerMetadata(name="app", attempt=self.restarts),
                image=cri.ImageSpec(image=IMAGE),
            ),
            config,
        )
        await self.client.start_container(container)
        self.manager.update_container(
            uid, "app", container_id=container, state="running", started_at=time.time()
        )

    def on_result(self, result: ProbeResult) -> None:
        if result.result == "failure":
            self.restarts += 1
            task = asyncio.ensure_future(self.restart(result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def restart(self, result: ProbeResult) -> None:
        await self.client.stop_container(result.container_id, 0)
        self.manager.update_container(
            result.pod_uid, "app", container_id=result.container_id, state="terminated"
        )
        await self.start(result.pod_uid)


def least(node: Containers) -> int:
    """Return the number of probes of the container that has had the fewest."""
    return min(sum(probe["outcomes"].values()) for probe in node.manager.describe()["probes"])


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def soak(kind: str, containers: int, probes: int, timeout: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ks-") as directory:
        async with HollowRuntime(Path(directory) / "cri.sock") as runtime:
            client = RuntimeClient(str(runtime.socket))
            await client.pull_image(IMAGE)
            before = open_descriptors()
            node = Containers(client, timeout)
            recorder = EventRecorder(time.time)
            node.manager = ProbeManager(
                node_context(probes=ProbesSection(), recorder=recorder, registry=Registry(), clock=time.time),
                on_result=node.on_result,
                runtime_socket=client.socket,
            )
            await node.manager.start()
            for number in range(containers):
                await node.add(number, PROBES[kind])
            await eventually(lambda: least(node) >= 2)
            entries, cpu = node.manager.entries, time.process_time()
            await eventually(lambda: least(node) >= 2 + probes, every=0.5)
            cpu = time.process_time() - cpu
            loop = node.manager.describe()["loop"]
            found = {
                "restarts": node.restarts,
                "outcomes": loop["outcomes"],
                "entries": node.manager.entries - entries,
                "late": loop["late"],
                "cpu_seconds": cpu,
                "events": sorted({event.message for event in recorder})[:5],
            }
            await node.manager.stop()
            # The runtime serves from this process and closes its ends when it hears of it.
            await eventually(lambda: open_descriptors() <= before)
            await client.close()
            return found


def main() -> None:
    kind, containers, probes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    burners = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    server = [sys.executable, str(Path(__file__).with_name("answering.py"))]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as answering:
        assert answering.stdout is not None
        answering.stdout.readline()
        with burning(burners):
            found = asyncio.run(soak(kind, containers, probes, IN_A_SECOND if burners else PATIENT))
        assert answering.stdin is not None
        answering.stdin.close()
    print(json.dumps(found))  # noqa: T201


@contextmanager
def burning(number: int) -> Iterator[None]:
    """Make this process share the CPU with `number` processes that never sleep."""
    if number:
        os.nice(BEHIND)
    burners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(number)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    main()
