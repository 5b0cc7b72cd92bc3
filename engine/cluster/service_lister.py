"""Follows the cluster's services with one watch, for the environment variables of containers."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.meta import ObjectMeta
from engine.api.objects.cluster_objects import Service
from engine.cluster.client import ApiClient
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler


class ServiceLister:
    """List the services that have a cluster IP. Of their metadata only name and namespace are kept."""

    def __init__(self, client: ApiClient) -> None:
        self._known: dict[tuple[str, str], Service] = {}
        self._watch = ResourceWatch(
            client,
            WatchedResource("/api/v1/services", Service, "spec.clusterIP!=None"),
            WatchHandler(self._replaced, self._changed, self._deleted),
        )

    async def run(self) -> None:
        """Follow services until cancelled."""
        await self._watch.run()

    def all(self) -> Sequence[Service] | None:
        """Return the services, or None before they have been read."""
        return list(self._known.values()) if self._watch.synced.is_set() else None

    def _replaced(self, services: Sequence[Service]) -> None:
        self._known.clear()
        for service in services:
            self._changed(service)

    def _changed(self, service: Service) -> None:
        meta = service.metadata
        service.metadata = ObjectMeta(name=meta.name, namespace=meta.namespace)
        self._known[meta.namespace, meta.name] = service

    def _deleted(self, service: Service) -> None:
        self._known.pop((service.metadata.namespace, service.metadata.name), None)
