"""What followed secrets keep resident: `python bench/referred_memory.py PODS SECRETS`.

Pods name three secrets each, of 1,000 bytes, at a server in a process of its own; what the client, its
connection and one followed secret take is there before. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Event, Process, Queue
from multiprocessing.synchronize import Event as EventType
from pathlib import Path
from typing import Any

from engine.api.errors import Unavailable
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec, Volume
from engine.api.references import SecretVolume
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.host.tasks import Tasks
from engine.node.controlplane.pod_references import PodReferences
from engine.testing.apiserver import ApiServer

EACH, BYTES = 3, 1000


def pod(number: int, secrets: int) -> Pod:
    names = [f"s{(number + each) % secrets}" for each in range(EACH)]
    return Pod(
        metadata=ObjectMeta(name=f"p{number}", namespace="default", uid=f"u{number}"),
        spec=PodSpec(
            containers=[Container(name="c")],
            volumes=[Volume(name=name, secret=SecretVolume(name)) for name in names],
        ),
    )


async def serve(directory: Path, secrets: int, ready: Queue[str], done: EventType) -> None:
    async with ApiServer(directory) as server:
        for number in range(secrets):
            data = {"k": base64.b64encode(os.urandom(BYTES)).decode()}
            made = {"metadata": {"name": f"s{number}"}, "data": data}
            server.create("/api/v1/namespaces/default/secrets", made)
        ready.put(str(server.kubeconfig("admin")))
        await asyncio.to_thread(done.wait)


@contextmanager
def served(directory: Path, secrets: int) -> Iterator[Path]:
    ready: Queue[str] = Queue()
    done = Event()
    process = Process(target=_serve, args=(directory, secrets, ready, done))
    process.start()
    try:
        yield Path(ready.get(timeout=60))
    finally:
        done.set()
        process.join(60)


def _serve(*given: Any) -> None:
    asyncio.run(serve(*given))


def resident() -> int:
    """Return the bytes that this process has in memory, after free memory went back to the kernel."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def measure(pods: int, secrets: int, kubeconfig: Path) -> dict[str, int]:
    config = load_kubeconfig(kubeconfig)
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="bench")
    references = PodReferences(client, Tasks(), time.time)
    known = [pod(number, secrets) for number in range(pods)]
    references.follow(known[0])
    await known_to(references, known[:1], secrets)
    before = resident()
    for each in known[1:]:
        references.follow(each)
    await known_to(references, known[:secrets], secrets)
    after = resident()
    await references.stop()
    client.close()
    return {"pods": pods, "secrets": secrets, "bytes": after - before}


async def known_to(references: PodReferences, pods: list[Pod], secrets: int) -> None:
    for number, each in enumerate(pods):
        while True:
            try:
                await references.secret(each, f"s{number % secrets}")
                break
            except Unavailable:
                continue


def main() -> None:
    pods, secrets = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as directory, served(Path(directory), secrets) as kubeconfig:
        print(json.dumps(asyncio.run(measure(pods, secrets, kubeconfig))))


if __name__ == "__main__":
    main()
