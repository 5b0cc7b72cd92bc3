"""A cluster's objects for its pods (`engine.node.cluster_objects.ClusterObjects`), from its API server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.api.cluster_objects import ConfigMap, Secret, Service
from engine.api.pod import Pod
from engine.api.storage import PersistentVolume, PersistentVolumeClaim
from engine.cluster.client import ApiClient
from engine.cluster.known_services import KnownServices
from engine.cluster.referred import Reference, ReferredObjects
from engine.cluster.tokens import Token, Tokens
from engine.host.tasks import Tasks
from engine.node.cluster_objects import config_map_names, secret_names


class PodReferences:
    """Names are looked up in the pod's own namespace. `clock` gives Unix seconds."""

    def __init__(self, client: ApiClient, tasks: Tasks, clock: Callable[[], float]) -> None:
        self._client = client
        self._heard: list[Callable[[str], None]] = []
        self._objects = ReferredObjects(client, tasks, self._changed)
        self._tokens = Tokens(client, clock=clock)
        self._services = KnownServices(client)

    async def run(self) -> None:
        """Follows the services until it is cancelled; the objects of pods are followed with their pods."""
        await self._services.run()

    async def stop(self) -> None:
        await self._objects.stop()

    def follow(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        wanted = [Reference(Secret, namespace, name) for name in secret_names(pod)]
        wanted += [Reference(ConfigMap, namespace, name) for name in config_map_names(pod)]
        self._objects.refer(pod.uid, wanted)

    def leave(self, uid: str) -> None:
        self._objects.refer(uid, ())
        self._tokens.forget(uid)

    def on_change(self, changed: Callable[[str], None]) -> None:
        self._heard.append(changed)

    async def secret(self, pod: Pod, name: str) -> Secret:
        return await self._objects.get(Secret, pod.metadata.namespace, name)

    async def config_map(self, pod: Pod, name: str) -> ConfigMap:
        return await self._objects.get(ConfigMap, pod.metadata.namespace, name)

    async def token(self, pod: Pod, audience: str, seconds: int) -> Token:
        return await self._tokens.token(pod, audience, seconds)

    async def claim(self, pod: Pod, name: str) -> PersistentVolumeClaim:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/persistentvolumeclaims/{name}"
        return await self._client.get(path, PersistentVolumeClaim)

    async def persistent_volume(self, name: str) -> PersistentVolume:
        return await self._client.get(f"/api/v1/persistentvolumes/{name}", PersistentVolume)

    def services(self) -> Sequence[Service] | None:
        return self._services.all()

    def _changed(self, uid: str) -> None:
        for heard in self._heard:
            heard(uid)
