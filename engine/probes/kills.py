"""Limits how many containers may be killed for liveness probes, per owner of pods and per node. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod

LATE_SECONDS: Final = 0.1
"""Seconds of lateness from which a failure tells as much about the node as about its container."""


class KillBudget:
    """Apply the limits of `section` (0: none), each to the last `liveness_kills_within` seconds.

    Raises `InvalidInput` for a negative limit and an invalid period.
    """

    def __init__(self, section: ProbesSection) -> None:
        if min(section.liveness_kills_per_owner, section.liveness_kills_per_node) < 0:
            raise InvalidInput("bounds must be at least 0", subject="probes.livenessKillsPer*")
        if section.liveness_kills_within <= 0:
            raise InvalidInput("must be longer than 0 s", subject="probes.livenessKillsWithin")
        self._per_node = section.liveness_kills_per_node
        self._per_owner = section.liveness_kills_per_owner
        self._within = float(section.liveness_kills_within)
        self._taken: deque[tuple[float, str]] = deque()

    @property
    def bounds(self) -> bool:
        """Tell whether there is any limit."""
        return bool(self._per_node or self._per_owner)

    def take(self, owner: str, now: float, lateness: float = 0.0) -> str:
        """Count a kill for `owner` at `now` (seconds of any clock), or return why it is not allowed.

        `lateness` is by how many seconds the probe that failed last started too late.
        """
        while self._taken and self._taken[0][0] <= now - self._within:
            self._taken.popleft()
        of_owner = sum(taken == owner for _, taken in self._taken)
        # A node that cannot run its probes in time cannot judge containers either.
        if lateness > LATE_SECONDS:
            return f"the node ran the probe {lateness:.1f} s late"
        if self._per_owner and of_owner >= self._per_owner:
            return f"{of_owner} of {owner} within {self._within:g} s"
        if self._per_node and len(self._taken) >= self._per_node:
            return f"{len(self._taken)} on the node within {self._within:g} s"
        self._taken.append((now, owner))
        return ""


def owner_of(pod: Pod) -> str:
    """Return the controller of the pod as `namespace/Kind/name`, or the pod itself."""
    for owner in pod.metadata.owner_references or []:
        if owner.controller:
            return f"{pod.metadata.namespace}/{owner.kind}/{owner.name}"
    return pod.full_name
