"""Agents for `test_crash_campaign`: `forking_agents.py DIRECTORY SOCKET`, then a number per line on stdin.

Each number forks an agent on DIRECTORY and the runtime at SOCKET which kills itself at that file operation
(opening, renaming, removing, making a directory) after its start; what is imported is imported once. A line
with the agent's process id answers, and when it has died an empty one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.node import Node

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


async def live(directory: Path, socket: str) -> None:
    config = KubeletConfiguration(
        static_pod_path=str(directory / "manifests"),
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        cgroups_per_qos=False,
        enforce_node_allocatable=[],
        eviction_hard={"memory.available": "0%"},
        image_gc_high_threshold_percent=100,
    )
    node = Node(config=config, runtime_endpoint=f"unix://{socket}", root=directory / "root", name="n1")
    await node.start()
    await asyncio.Event().wait()


def main(directory: Path, socket: str) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die_at(int(line))
            asyncio.run(live(directory, socket))
            os._exit(1)
        print(child, flush=True)  # noqa: T201
        os.waitpid(child, 0)
        print(flush=True)  # noqa: T201


main(Path(sys.argv[1]), sys.argv[2])
