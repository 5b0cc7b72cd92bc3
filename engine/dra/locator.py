"""Finds where the devices of claims are, and tells the topology manager.

Implements `engine.topologymanager.provider.HintProvider` for claims: it hints and gives nothing, since the
scheduler has given already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from engine.api.errors import KubengineError
from engine.api.objects.dynamic_resources import ResourceClaim, ResourceSlice
from engine.api.pod import Container, Pod
from engine.dra.claims import base_request, container_requests, has_claims, pod_claims
from engine.dra.numa_nodes import DeviceLocation, claim_hints, in_words, locate_devices, unlisted
from engine.topologymanager.policy import Hint, Hints, Numa

LOCATE_SECONDS: Final = 10.0
"""How long a pod waits for slices that drivers publish again after a restart of the agent."""

POLL_SECONDS: Final = 0.5
SYSFS: Final = Path("/sys")

log = logging.getLogger("kubengine.dra")


class ClaimReader(Protocol):
    async def resource_claim(self, pod: Pod, name: str) -> ResourceClaim:
        """Read a claim in the pod's namespace. Raises `Refused` in the API server's words."""


class SliceReader(Protocol):
    async def list(self, driver: str) -> Sequence[ResourceSlice]:
        """List this node's slices of a driver. Raises `Refused`."""


class SysfsPci:
    """Implement `engine.dra.numa_nodes.PciNodes`, below `root`."""

    def __init__(self, root: Path = SYSFS) -> None:
        self._root = root

    def of_device(self, bus_id: str) -> int | None:
        return _number(self._root / "bus/pci/devices" / bus_id.lower() / "numa_node")

    def of_root(self, root: str) -> int | None:
        directory = self._root / "devices" / root.lower()
        nodes = {_number(path) for path in directory.glob("[0-9a-f]*:*/numa_node")}
        return nodes.pop() if len(nodes) == 1 else None


def _number(path: Path) -> int | None:
    """Read a node's number; the kernel writes -1 where it knows none."""
    try:
        number = int(path.read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


class ClaimLocator:
    """Keep the locations of the devices of pods, from `locate` until `forget`."""

    def __init__(
        self, claims: ClaimReader, slices: SliceReader, numa: Numa, pci: SysfsPci | None = None
    ) -> None:
        self._claims = claims
        self._slices = slices
        self._numa = numa
        self._pci = pci or SysfsPci()
        self._locations: dict[str, list[DeviceLocation]] = {}

    async def locate(self, pod: Pod) -> None:
        """Find the NUMA nodes of the pod's allocated devices.

        Waits a while for slices that are missing: drivers publish theirs again when the agent has started. A
        device that nobody describes then has no hint.
        """
        if not has_claims(pod):
            return
        failure = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOCATE_SECONDS):
                while True:
                    try:
                        claims, slices = await self._read(pod)
                    except KubengineError as error:
                        failure = str(error)
                    else:
                        locations = await asyncio.to_thread(locate_devices, claims, slices, self._pci)
                        self._locations[pod.uid] = locations
                        missing = unlisted(claims, slices)
                        if not missing:
                            return
                        failure = "no ResourceSlice has " + ", ".join(
                            "/".join(name) for name in sorted(missing)
                        )
                    await asyncio.sleep(POLL_SECONDS)
        log.warning("pod %s: the NUMA nodes of its claims are unknown: %s", pod.full_name, failure)

    async def _read(self, pod: Pod) -> tuple[list[ResourceClaim], list[ResourceSlice]]:
        claims = [await self._claims.resource_claim(pod, claim.name) for claim in pod_claims(pod)]
        drivers = sorted({result.driver for claim in claims for result in claim.allocated})
        return claims, [each for driver in drivers for each in await self._slices.list(driver)]

    def locations(self, pod_uid: str) -> Sequence[DeviceLocation]:
        return self._locations.get(pod_uid, ())

    def describe(self, pod_uid: str) -> str:
        """Return in words where the devices of a pod's claims are; empty if that is not known."""
        return in_words(self.locations(pod_uid))

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is over."""
        self._locations.pop(pod_uid, None)

    # The topology manager's provider

    def concerns(self, pod: Pod) -> bool:
        return pod.uid in self._locations

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        return claim_hints(self.locations(pod.uid), self._numa)

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        used = [(claim.name, base_request(request)) for claim, request in container_requests(pod, container)]
        return claim_hints(self.locations(pod.uid), self._numa, used)

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None: ...

    def allocate_pod(self, pod: Pod, hint: Hint) -> None: ...

    def count_failure(self, pod: Pod, lacking: Collection[str]) -> bool:
        return False

    @property
    def pod_uids(self) -> Collection[str]:
        return ()

    def release(self, pod_uid: str) -> None: ...

    def collect(self, keep: Collection[str]) -> None:
        for uid in [uid for uid in self._locations if uid not in keep]:
            del self._locations[uid]

    def adopted(self, pod: Pod, choose: Callable[[Pod, Container], Hint]) -> None:
        """Do nothing: claims of a running pod stay prepared, and there is nothing to choose."""

    async def flush(self) -> None: ...
