"""Chooses the uid of a static pod: that of the running pod, as long as the manifest is the same.

A kubelet's uid for a manifest depends on the kubelet's version and on every field. A pod that a kubelet left
running, or that has finished, is therefore recognized by what the runtime holds: name, namespace, the label
of a static pod, and containers that agree with the manifest. Such a pod is adopted without a restart. The
manifest of each uid is stored with the accepted pod, so that an edit during downtime is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engine.api.pod import Pod
from engine.api.qos import SOURCE_FILE, SOURCE_HTTP
from engine.cri.records import PodRecord
from engine.node.pod.accepted_spec import AcceptedSpecs
from engine.node.spec.cri_config import container_hash


class StaticUids:
    """The uids of one source; `records()` returns what the runtime holds."""

    def __init__(self, records: Callable[[], Iterable[PodRecord]], accepted: AcceptedSpecs) -> None:
        self._records = records
        self._accepted = accepted
        self._chosen: set[str] = set()

    def held(self) -> dict[str, PodRecord]:
        """Return the static pods in the runtime by namespace and name, the newest of each."""
        newest: dict[str, PodRecord] = {}
        for record in self._records():
            known = newest.get(record.full_name)
            if _from_manifest(record) and (known is None or _age(known) < _age(record)):
                newest[record.full_name] = record
        return newest

    def choose(self, pod: Pod, digest: str, new: Callable[[], str], held: Mapping[str, PodRecord]) -> str:
        """Return the uid of a pod with its final name: that of the same running pod, or `new()`."""
        record = held.get(pod.full_name)
        uid = record.uid if record is not None and self._stands_for(record, pod, digest) else new()
        self._accepted.comes_from(uid, digest)
        self._chosen.add(uid)
        return uid

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget the manifests of all other pods of this source."""
        wanted = set(uids)
        self._accepted.forget_manifests(self._chosen - wanted)
        self._chosen &= wanted

    def _stands_for(self, record: PodRecord, pod: Pod, digest: str) -> bool:
        known = self._accepted.manifest(record.uid)
        return known == digest if known else agrees(pod, record)


def agrees(pod: Pod, record: PodRecord) -> bool:
    """Tell whether all containers in the runtime agree with the pod's, by name and hash."""
    expected = {container.name: container for container in pod.all_containers}
    for name in {container.name for container in record.containers}:
        newest = record.container(name)
        if name not in expected or newest is None or newest.hash != container_hash(expected[name]):
            return False
    return True


def _from_manifest(record: PodRecord) -> bool:
    return record.sandbox is not None and record.sandbox.source in (SOURCE_FILE, SOURCE_HTTP)


def _age(record: PodRecord) -> float:
    return record.sandbox.created_at if record.sandbox is not None else 0.0
