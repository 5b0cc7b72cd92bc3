"""What many pods that share secrets cost a real API server: a watch for each secret, on one connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from engine.api.errors import Unavailable
from engine.api.objects.cluster_objects import Secret
from engine.api.pod import Pod
from engine.cluster.client import ApiClient, ApiError
from engine.host.tasks import Tasks
from engine.node.controlplane.pod_references import PodReferences
from tests.cluster.control_plane import ControlPlane, Object
from tests.cluster.objects import NAMESPACE, encoded
from tests.waiting import eventually

PODS, SECRETS = 300, 50


def connections(port: int) -> int:
    """Count the TCP connections of this process to `port`."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            own.add(str(descriptor.readlink()))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in own for row in rows)


async def make(admin: ApiClient) -> list[Pod]:
    """Create the secrets, and PODS pods of the node that name one of them each. Retry until the server
    knows the pods' service account."""
    await admin.create(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "many"}}, Object)
    for number in range(SECRETS):
        secret = {"metadata": {"name": f"s{number}"}, "data": {"k": encoded("1")}}
        await admin.create(f"{NAMESPACE}/secrets", secret, Object)
    pods = []
    for number in range(PODS):
        spec = {
            "nodeName": "n1",
            "serviceAccountName": "many",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "busybox:1"}],
            "volumes": [{"name": "v", "secret": {"secretName": f"s{number % SECRETS}"}}],
        }
        pods.append(await _create(admin, {"metadata": {"name": f"many-{number}"}, "spec": spec}))
    return pods


async def _create(admin: ApiClient, pod: Object) -> Pod:
    while True:
        try:
            return await admin.create(f"{NAMESPACE}/pods", pod, Pod)
        except ApiError as error:
            if "service account" not in str(error):
                raise
            await asyncio.sleep(0.1)


async def read(references: PodReferences, pod: Pod, name: str) -> Secret:
    """Read a secret for `pod`. Retry, since a slow machine gives the first answer later than a pod waits
    for it."""
    while True:
        try:
            return await references.secret(pod, name)
        except Unavailable:
            continue


@pytest.mark.root
async def test_many_pods_of_few_secrets_cost_a_watch_for_each_on_one_connection(
    real: ControlPlane, connect: Callable[[Path], ApiClient]
) -> None:
    admin, client = connect(real.admin), connect(real.node)
    pods = await make(admin)
    references = PodReferences(client, Tasks(), time.time)
    for pod in pods:
        references.follow(pod)
    found = await asyncio.gather(*(read(references, pods[n], f"s{n}") for n in range(SECRETS)))
    assert {secret.data and secret.data["k"] for secret in found} == {b"1"}

    def watched() -> set[tuple[str, str]]:
        return {each for each in real.watched_by("system:node:n1") if each[0].endswith("/secrets")}

    await eventually(lambda: len(watched()) == SECRETS, every=0.2)
    admin.close()
    port = int(client.peer.rpartition(":")[2])
    await eventually(lambda: connections(port) == 1)
    for pod in pods:
        references.forget(pod.uid)
    await eventually(lambda: not watched(), every=0.2)
    await references.stop()
    another = connect(real.admin)
    for pod in pods:
        await another.delete(f"{NAMESPACE}/pods/{pod.metadata.name}", {"gracePeriodSeconds": 0})
    client.close()
    another.close()
    await eventually(lambda: connections(port) == 0)
