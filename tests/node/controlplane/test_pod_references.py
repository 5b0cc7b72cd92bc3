"""What pods name in their cluster costs one watch for each object, however many pods name it."""

from __future__ import annotations

import asyncio
import time

from engine.api.errors import Unavailable
from engine.api.meta import ObjectMeta
from engine.api.objects.cluster_objects import Secret
from engine.api.pod import Container, Pod, PodSpec, Volume
from engine.api.references import SecretVolume
from engine.host.tasks import Tasks
from engine.node.controlplane.pod_references import PodReferences
from tests.cluster_rig import Cluster
from tests.waiting import eventually

PODS, SECRETS, EACH = 300, 50, 3


def pod(number: int) -> Pod:
    names = [f"s{(number + each) % SECRETS}" for each in range(EACH)]
    volumes = [Volume(name=name, secret=SecretVolume(name)) for name in names]
    return Pod(
        metadata=ObjectMeta(name=f"p{number}", namespace="default", uid=f"u{number}"),
        spec=PodSpec(containers=[Container(name="c")], volumes=volumes),
    )


async def test_three_hundred_pods_of_fifty_secrets_have_fifty_watches_on_one_connection(
    cluster: Cluster,
) -> None:
    server = cluster.server
    for number in range(SECRETS):
        server.create(
            "/api/v1/namespaces/default/secrets", {"metadata": {"name": f"s{number}"}, "data": {"k": "MQ=="}}
        )
    references = PodReferences(cluster.client, Tasks(), time.time)
    changed: list[str] = []
    references.on_change(changed.append)
    pods = [pod(number) for number in range(PODS)]
    for each in pods:
        references.follow(each)
    found = await asyncio.gather(
        *(_secret(references, pods[number], f"s{number}") for number in range(SECRETS))
    )
    assert {secret.data and secret.data["k"] for secret in found} == {b"1"}
    await eventually(lambda: len(server.open_watches) == SECRETS)
    assert server.open_connections == 1
    changed.clear()
    path = "/api/v1/namespaces/default/secrets/s7"
    server.update(path, {**server.get(path), "data": {"k": "Mg=="}})
    await eventually(lambda: len(changed) == PODS // SECRETS * EACH)
    assert {int(uid[1:]) % SECRETS for uid in changed} == {5, 6, 7}
    for each in pods:
        references.forget(each.uid)
    await eventually(lambda: server.open_watches == [])
    await references.stop()


async def _secret(references: PodReferences, of: Pod, name: str) -> Secret:
    """Read a secret for a pod. Retry, since a slow machine gives the first answer later than a read waits
    (1 s)."""
    while True:
        try:
            return await references.secret(of, name)
        except Unavailable:
            continue
