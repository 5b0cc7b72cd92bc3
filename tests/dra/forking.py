"""Agents of a cluster for the campaign of kills: `forking.py DIRECTORY SOCKET KUBECONFIG`, then numbers on
stdin.

Each number forks an agent, with its imports done once, which kills itself at that file operation after its
start. A line with the process id answers, and when it has died an empty one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import engine.dra.driver_client  # noqa: F401  loaded once, not by every agent
from engine.api.config import KubeletConfiguration
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions

POINTS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "socket.connect"})


def die_at(number: int) -> None:
    left = number

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event in POINTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


async def agent(directory: Path, socket: str, kubeconfig: Path, last_operation: int) -> None:
    config = KubeletConfiguration(
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        cgroups_per_qos=False,
        enforce_node_allocatable=[],
        eviction_hard={"memory.available": "0%"},
        image_gc_high_threshold_percent=100,
    )
    node = Node(
        config=config,
        runtime_endpoint=f"unix://{socket}",
        root=directory / "root",
        name="n1",
        options=NodeOptions(kubeconfig=kubeconfig),
    )
    die_at(last_operation)
    await node.start()
    await asyncio.Event().wait()


def main(directory: Path, socket: str, kubeconfig: Path) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(agent(directory, socket, kubeconfig, int(line)))
            os._exit(1)
        print(child, flush=True)  # noqa: T201
        os.waitpid(child, 0)
        print(flush=True)  # noqa: T201


main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
