"""Reads the ResourceSlices that drivers publish for this node, and deletes stale ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.api.objects.dynamic_resources import API, ResourceSlice, ResourceSliceList
from engine.cluster.client import ApiClient, ApiError


class ResourceSlices:
    """Read and delete the slices of the node `name`, once it is `registered`.

    The selector by node name is required: the API server forbids a node any other list.
    """

    def __init__(self, client: ApiClient, name: str, registered: asyncio.Event) -> None:
        self._client = client
        self._name = name
        self._registered = registered

    async def list(self, driver: str) -> Sequence[ResourceSlice]:
        """Return the slices of a driver. Raises `Refused`."""
        await self._registered.wait()
        found = await self._client.get(f"{API}/resourceslices", ResourceSliceList, self._selected(driver))
        return found.items or ()

    async def delete(self, driver: str) -> None:
        """Delete the slices of a driver, or of all drivers if it is ''. Raises `Refused`."""
        await self._registered.wait()
        try:
            await self._client.delete(f"{API}/resourceslices", {}, self._selected(driver))
        except ApiError as error:
            # An older API server, or one without the API group, has no slices that could be stale.
            if error.code != 404:
                raise

    def _selected(self, driver: str) -> dict[str, str]:
        of_driver = f",spec.driver={driver}" if driver else ""
        return {"fieldSelector": f"spec.nodeName={self._name}{of_driver}"}
