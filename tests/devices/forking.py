"""Processes for the campaigns of crashes: `forking.py agent|plugin|runtime DIRECTORY SOCKET [CGROUP]`, then
numbers on stdin.

Each number forks one on DIRECTORY, with what is imported imported once: an agent on the runtime at SOCKET or
the embedded runtime there, which kills itself at that file operation (opening, renaming, removing, making a
directory) after its start, or a plugin with so many devices. The agent's pods have their groups below CGROUP,
or none. A line with the process id answers, and when it has died an empty one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.node import Node
from engine.runtime.embedded import EmbeddedRuntime
from engine.testing.device_plugin import SampleDevicePlugin

GPU = "example.com/gpu"
POINTS = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})


def die_at(number: int) -> None:
    left = number

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event in POINTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


async def agent(directory: Path, socket: str, cgroup: str, last_operation: int) -> None:
    die_at(last_operation)
    config = KubeletConfiguration(
        static_pod_path=str(directory / "manifests"),
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        cgroups_per_qos=bool(cgroup),
        cgroup_root=cgroup or "/",
        enforce_node_allocatable=[],
        eviction_hard={"memory.available": "0%"},
        image_gc_high_threshold_percent=100,
    )
    node = Node(config=config, runtime_endpoint=f"unix://{socket}", root=directory / "root", name="n1")
    await node.start()
    await asyncio.Event().wait()


async def runtime(directory: Path, socket: str, _: str, last_operation: int) -> None:
    die_at(last_operation)
    served = EmbeddedRuntime(socket=socket, root=directory / "images", state=directory / "state")
    await served.start()
    await asyncio.Event().wait()


async def plugin(directory: Path, _: str, __: str, count: int) -> None:
    plugin_dir = directory / "root/device-plugins"
    sample = SampleDevicePlugin(GPU, plugin_dir / "gpu.sock", count=count)
    await sample.start()
    sample.follow(plugin_dir)
    await asyncio.Event().wait()


def fork(life: Coroutine[Any, Any, None]) -> int:
    child = os.fork()
    if child == 0:
        asyncio.run(life)
        os._exit(1)
    life.close()
    return child


ROLES = {"agent": agent, "plugin": plugin, "runtime": runtime}


def main(role: str, directory: Path, socket: str, cgroup: str) -> None:
    for line in sys.stdin:
        child = fork(ROLES[role](directory, socket, cgroup, int(line)))
        print(child, flush=True)  # noqa: T201
        os.waitpid(child, 0)
        print(flush=True)  # noqa: T201


main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
