"""Which uid a static pod has: the one under which it is here already, as long as its manifest is the same.

A kubelet's uid for a manifest depends on the kubelet's version and on every field, so a pod that one left
running, or that has finished, is known by what the runtime holds: name, namespace, the mark of a
manifest's pod and containers that agree with the manifest. Nothing of it is restarted then. What manifest
a uid stands for is kept with the accepted pod, so that an edit while no agent was there is an edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engine.api.pod import Pod
from engine.api.qos import SOURCE_FILE, SOURCE_HTTP
from engine.cri.records import PodRecord
from engine.node.pod.accepted_spec import AcceptedSpecs
from engine.node.spec.container_hash import container_hash


class StaticUids:
    """Of one source. `records()`: what the runtime holds."""

    def __init__(self, records: Callable[[], Iterable[PodRecord]], accepted: AcceptedSpecs) -> None:
        self._records = records
        self._accepted = accepted
        self._chosen: set[str] = set()

    def held(self) -> dict[str, PodRecord]:
        """Manifests' pods of the runtime by namespace and name, the newest where there are several."""
        newest: dict[str, PodRecord] = {}
        for record in self._records():
            known = newest.get(record.full_name)
            if _from_manifest(record) and (known is None or _age(known) < _age(record)):
                newest[record.full_name] = record
        return newest

    def choose(self, pod: Pod, digest: str, new: Callable[[], str], held: Mapping[str, PodRecord]) -> str:
        """The uid of a pod that has its final name: the held one's where it is the same pod, else `new()`."""
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
    """Whether all containers that the runtime holds are the pod's, by name and by hash."""
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
