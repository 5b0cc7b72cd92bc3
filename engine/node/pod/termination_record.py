"""Stores `end.json` in a pod's directory: that the pod has ended for good, and how.

The runtime forgets dead containers and never knew why the node ended a pod. The record is written before the
pod is stopped, and again with its last status, so that a restarted agent can continue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.api.lifecycle import PodEnd
from engine.api.status import PodStatus
from engine.api.struct import decode_hook, to_json
from engine.host.checksummed_file import keep, kept
from engine.node.pod.life import LifeState, PodLife

FILE = "end.json"


class TerminationRecord(msgspec.Struct, frozen=True):
    """`end` is None for a pod that ended by itself; `status` is None while something of the pod runs."""

    end: PodEnd | None = None
    status: PodStatus | None = None

    @property
    def life(self) -> PodLife:
        """The state of the pod's life that the record implies."""
        if self.end is None:
            return PodLife(LifeState.FINISHED)
        return PodLife(LifeState.FAILING if self.status is None else LifeState.FAILED, self.end)


class TerminationRecords:
    """Store termination records; `pod_directory(uid)` returns the directory of a pod."""

    def __init__(self, pod_directory: Callable[[str], Path]) -> None:
        self._pod_directory = pod_directory
        self._decoder = msgspec.json.Decoder(TerminationRecord, dec_hook=decode_hook)

    def write(self, uid: str, end: TerminationRecord) -> None:
        """Write the record. Call it in a thread. Raises `OSError` or `Refused`."""
        directory = self._pod_directory(uid)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        keep(directory / FILE, to_json(end))

    def read(self, uid: str) -> TerminationRecord | None:
        """Return the record, or None if the pod is not known to have ended."""
        path = self._pod_directory(uid) / FILE
        end = kept(path, self._decoder.decode, without="it is unknown whether the pod has ended")
        return end if end is not None and (end.end is not None or end.status is not None) else None
