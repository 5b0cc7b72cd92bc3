"""A device manager that kills itself, for `test_crashes`: `killed_agent.py DIRECTORY STEP`.

It waits for its plugin, gives the pod `victim` one device, and dies without warning at the named step.
If it gets past it, it prints "started": the container would be running now.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec, ResourceRequirements
from engine.api.quantity import Quantity
from engine.devices.manager import DeviceDirectories, DeviceManager, DevicePods
from engine.host.node_context import NodeContext
from engine.topologymanager.policy import Numa

GPU = "example.com/gpu"


def pod(name: str) -> Pod:
    amounts = {GPU: Quantity.from_value(1)}
    app = Container(name="app", resources=ResourceRequirements(requests=amounts, limits=amounts))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), spec=PodSpec(containers=[app])
    )


async def main(directory: Path, step: str) -> None:
    armed = False

    def fault(reached: str) -> None:
        if armed and reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    holder, victim = pod("holder"), pod("victim")
    manager = DeviceManager(
        NodeContext.create(KubeletConfiguration()),
        DevicePods(active=lambda: [holder, victim]),
        numa=Numa(),
        directories=DeviceDirectories(directory / "dp", pod_resources=None),
        fault=fault,
    )
    await manager.start()
    while not manager.state.resources[GPU].reported:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await manager._file.flush()
    armed = True
    await manager.allocate(victim)
    print("started", flush=True)  # noqa: T201
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
