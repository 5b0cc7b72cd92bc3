"""What registered probes keep resident: `python bench/probe_memory.py PODS PROBES_PER_POD`.

Pods are accepted, observed and remembered as the node does it, a container and an address each, kinds
mixed; what the node keeps of them anyway (manifest, status, the runtime's record) is there before.
Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod
from engine.api.status import ContainerStatus, PodStatus
from engine.cri.records import RUNNING, ContainerRecord, PodRecord
from engine.host.node_context import NodeContext
from engine.host.records.store import RecordStore
from engine.node.pod.records import ReadinessRecords
from engine.node.sync.probing import Probing
from engine.probes.manager import ProbeManager

KINDS: tuple[dict[str, Any], ...] = (
    {"httpGet": {"path": "/healthz", "port": 8080}},
    {"tcpSocket": {"port": 6379}},
    {"grpc": {"port": 9000, "service": "shop.Cart"}},
    {"exec": {"command": ["cat", "/tmp/healthy"]}},
)
TYPES = ("readinessProbe", "livenessProbe", "startupProbe")
BEYOND = 86_400
HOST_IPS = ("192.0.2.1",)


def pod(number: int, probes: int) -> tuple[Pod, PodRecord]:
    """None of its probes is due during the measurement."""
    given = {
        type: {**KINDS[(number + index) % len(KINDS)], "periodSeconds": BEYOND}
        for index, type in enumerate(TYPES[:probes])
    }
    container_id = f"{number:064x}"
    manifest = {
        "metadata": {
            "name": f"web-{number}",
            "namespace": "shop",
            "uid": f"{number:08x}-5d1c-4ab1-bd4a-000000000000",
        },
        "spec": {"containers": [{"name": "app", "image": "shop/web:1", **given}]},
    }
    made = msgspec.json.decode(msgspec.json.encode(manifest), type=Pod)
    status = ContainerStatus(
        name="app", container_id=f"containerd://{container_id}", ready=False, started=True, restart_count=0,
        image="", image_id="",
    )  # fmt: skip
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    made = msgspec.structs.replace(
        made, status=PodStatus(phase="Running", pod_ip=address, container_statuses=[status])
    )
    now = time.time()
    record = PodRecord(made.uid, made.metadata.name, "shop")
    record.containers.append(ContainerRecord(container_id, "app", "s", RUNNING, 0, now, started_at=now))
    return made, record


def resident() -> int:
    """Return the bytes that this process has in memory, after free memory went back to the kernel."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def measure(pods: int, probes: int, directory: Path) -> dict[str, float]:
    known = [pod(number, probes) for number in range(pods)]
    manager = ProbeManager(
        NodeContext.create(KubeletConfiguration()),
        on_result=lambda result: None,
        runtime_socket=Path("/nowhere.sock"),
        jitter=lambda: 1.0,
    )
    records = RecordStore(directory / "records")
    records.open()
    records.start()
    probing = Probing(manager, ReadinessRecords(records))
    for made, record in known[:1]:
        probing.accepted(made)
        probing.observed(made, record, HOST_IPS)
        probing.remember(made)
    await records.flush()
    before = resident()
    for made, record in known[1:]:
        probing.accepted(made)
        probing.observed(made, record, HOST_IPS)
        probing.remember(made)
    await records.flush()
    after = resident()
    registered = (pods - 1) * probes
    await records.stop()
    assert manager.describe(pod=known[-1][0].uid)["loop"]["registered"] == pods * probes
    return {"probes": registered, "bytes_per_probe": (after - before) / registered}


def main() -> None:
    pods, probes = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        print(json.dumps(asyncio.run(measure(pods, probes, Path(directory)))))


if __name__ == "__main__":
    main()
