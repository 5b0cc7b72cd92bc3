"""Records what is prepared on the node: claims, their pods, and the devices that drivers named. Pure.

A claim is in the table from before the first call that prepares it until every driver that was asked to
prepare it has taken that back. So an agent that dies at any moment finds each claim that a driver may hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

ANY_DRIVER: Final = "<any>"

ClaimKey = tuple[str, str]
"""Namespace and name."""


class PreparedDevice(msgspec.Struct, frozen=True):
    """Hold a device as its driver named it. Without `requests` it belongs to every request of its claim."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()

    def serves(self, request: str) -> bool:
        return not request or not self.requests or request in self.requests


class ClaimState(msgspec.Struct):
    """Hold one claim. `drivers` are those that were asked to prepare it and have not unprepared it since,
    with the devices that they named; of these, `prepared` have answered this agent.
    """

    uid: str
    name: str
    namespace: str
    pods: set[str] = msgspec.field(default_factory=set)
    drivers: dict[str, tuple[PreparedDevice, ...]] = msgspec.field(default_factory=dict)
    prepared: set[str] = msgspec.field(default_factory=set)

    @property
    def key(self) -> ClaimKey:
        return self.namespace, self.name

    @property
    def is_prepared(self) -> bool:
        return self.drivers.keys() == self.prepared

    def devices(self, request: str = "") -> Iterator[tuple[str, PreparedDevice]]:
        """Yield each device of a request, or of all requests, with its driver, in order of driver."""
        for driver, devices in sorted(self.drivers.items()):
            for device in devices:
                if device.serves(request):
                    yield driver, device


class ClaimTable:
    """Hold claims by namespace and name."""

    def __init__(self, claims: Iterable[ClaimState] = ()) -> None:
        self._claims: dict[ClaimKey, ClaimState] = {}
        self._of_pods: dict[str, set[ClaimKey]] = {}
        for claim in claims:
            self.add(claim)

    def __iter__(self) -> Iterator[ClaimState]:
        return iter(self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)

    def get(self, key: ClaimKey) -> ClaimState | None:
        return self._claims.get(key)

    def add(self, claim: ClaimState) -> None:
        self._claims[claim.key] = claim
        for pod in claim.pods:
            self._of_pods.setdefault(pod, set()).add(claim.key)

    def use(self, claim: ClaimState, pod: str) -> None:
        """Record that the pod uses the claim."""
        claim.pods.add(pod)
        self._of_pods.setdefault(pod, set()).add(claim.key)

    def release(self, claim: ClaimState, pod: str) -> None:
        """Record that the pod no longer uses the claim."""
        claim.pods.discard(pod)
        keys = self._of_pods.get(pod, set())
        keys.discard(claim.key)
        if not keys:
            self._of_pods.pop(pod, None)

    def remove(self, claim: ClaimState) -> None:
        """Remove a claim that no driver holds any longer."""
        for pod in list(claim.pods):
            self.release(claim, pod)
        self._claims.pop(claim.key, None)

    @property
    def pods(self) -> list[str]:
        """Return the uids of the pods that use a claim."""
        return list(self._of_pods)

    def of_pod(self, uid: str) -> list[ClaimState]:
        """Return the claims that a pod uses, in order of name."""
        return [self._claims[key] for key in sorted(self._of_pods.get(uid, ()))]

    def users_of(self, driver: str, devices: Iterable[tuple[str, str]]) -> set[str]:
        """Return the uids of the pods that use one of these devices (pool, device)."""
        wanted = set(devices)
        return {
            pod
            for claim in self
            if any((d.pool, d.device) in wanted for d in claim.drivers.get(driver, ()))
            for pod in claim.pods
        }

    def in_use(self) -> Mapping[str, int]:
        """Count the prepared claims by driver, and in all (`ANY_DRIVER`)."""
        prepared = [claim for claim in self if claim.is_prepared]
        counts = Counter(driver for claim in prepared for driver in claim.drivers)
        return {**counts, ANY_DRIVER: len(prepared)}
