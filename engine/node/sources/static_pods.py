"""Converts manifests to static pods with the names, uids and annotations that a kubelet gives them.

Pure, except that it modifies the given manifest. A manifest with the annotation `kubernetes.io/config.source:
api` is not a static pod: it is critical only by its priority, and its name gets no suffix. The uid depends on
the manifest's path and content, so a changed manifest is a new pod. The digest leaves out CPU and memory
amounts, so that a pod can be resized in place unless its QoS class changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from engine.api.defaults import apply_defaults, default_selectors
from engine.api.encoding.digest import blake2b
from engine.api.encoding.json_text import encode_json_sorted
from engine.api.errors import InvalidInput
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.qos import (
    HASH_ANNOTATION,
    SEEN_ANNOTATION,
    SOURCE_ANNOTATION,
    SOURCE_API,
    SOURCE_FILE,
    SOURCE_HTTP,
    compute_qos_class,
)
from engine.api.resources import CPU, MEMORY
from engine.api.scheduling import Toleration
from engine.api.struct import forget_empty, to_builtins
from engine.api.timestamps import rfc3339_micro
from engine.api.validation import check_pod
from engine.cri.records import PodRecord
from engine.node.pod.records import AcceptedSpecs
from engine.node.sources.kubelet_uid import Unprintable, kubelet_uid
from engine.node.spec.cri_config import container_hash

UidOf = Callable[[Pod, str, Callable[[], str]], str]


def static_pod(
    manifest: Pod,
    *,
    node_name: str,
    origin: str,
    seen_at: float,
    source: str = SOURCE_FILE,
    uid_of: UidOf = lambda pod, digest, new: digest,
) -> Pod:
    """Convert `manifest` to the static pod of this node. `origin` is its file or URL (`source`), and its
    position there.

    `uid_of(pod, digest, new)` returns the uid of a pod whose manifest has none. The pod has its final name by
    then; an unchanged digest means the same pod; `new()` returns the uid that a kubelet would assign. Raises
    `InvalidInput` naming the origin and every invalid field.
    """
    pod, given = manifest, msgspec.structs.replace(manifest.metadata)
    apply_defaults(pod)
    meta = pod.metadata
    if not meta.name:
        raise InvalidInput("metadata.name: expected a name", subject=origin)
    from_api = pod.annotations.get(SOURCE_ANNOTATION) == SOURCE_API
    qos = compute_qos_class(pod)
    digest = _digest(pod, node_name, origin, qos)
    if not from_api:
        meta.name = f"{meta.name}-{node_name.lower()}"
    check_pod(pod, origin)
    if not meta.uid:
        meta.uid = uid_of(pod, digest, lambda: _new_uid(pod, given, node_name, origin, source, digest))
    default_selectors(pod)
    forget_empty(pod.metadata)
    forget_empty(pod.spec)
    meta.annotations = {
        **pod.annotations,
        HASH_ANNOTATION: meta.uid,
        SEEN_ANNOTATION: rfc3339_micro(seen_at),
        SOURCE_ANNOTATION: SOURCE_API if from_api else source,
    }
    pod.spec.node_name = node_name
    if not from_api and source == SOURCE_FILE:
        pod.spec.tolerations = _tolerating_all(pod.spec.tolerations or [])
    pod.status.phase = "Pending"
    # Set last, because the kubelet computes the uid from the manifest's pod, including its empty status.
    pod.status.qos_class = qos
    return pod


def _tolerating_all(tolerations: list[Toleration]) -> list[Toleration]:
    """Add the toleration of all NoExecute taints; it replaces the same toleration with limited seconds."""
    everything = Toleration(operator="Exists", effect="NoExecute")
    others = [
        everything if msgspec.structs.replace(one, toleration_seconds=None) == everything else one
        for one in tolerations
    ]
    return others if everything in others else [*others, everything]


def _new_uid(pod: Pod, given: ObjectMeta, node_name: str, origin: str, source: str, digest: str) -> str:
    """Return the kubelet's uid, or the digest if the kubelet's is not known."""
    try:
        place = f"host:{node_name}file:{origin}" if source == SOURCE_FILE else f"url:{origin}"
        return kubelet_uid(pod, metadata=given, place=place)
    except Unprintable:
        return digest


def _digest(pod: Pod, node_name: str, origin: str, qos: str) -> str:
    content = to_builtins(pod.spec)
    for holder in (content, *content.get("containers", ()), *content.get("initContainers", ())):
        for amounts in holder.get("resources", {}).values():
            for name in (CPU, MEMORY) if isinstance(amounts, dict) else ():
                amounts.pop(name, None)
    parts = [node_name, origin, to_builtins(pod.metadata), content, qos]
    return blake2b(encode_json_sorted(parts), digest_size=16).hexdigest()


class StaticUids:
    """Choose the uids of one source's pods. A running pod keeps its uid while its manifest stays the same.

    A kubelet's uid for a manifest depends on the kubelet's version and on every field. A pod that a kubelet
    left running, or that has finished, is therefore recognized by its records in the runtime: name,
    namespace, the label of a static pod, and containers that agree with the manifest. Such a pod is adopted
    without a restart. The manifest's digest is stored for each uid, so that an edit during downtime is
    detected. `records()` returns the pods in the runtime.
    """

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
        """Return the uid of the same pod in the runtime, or `new()`. The pod must have its final name."""
        record = held.get(pod.full_name)
        uid = record.uid if record is not None and self._comes_from(record, pod, digest) else new()
        self._accepted.set_manifest(uid, digest)
        self._chosen.add(uid)
        return uid

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget the manifests of all other pods of this source of which the runtime holds nothing.

        Another manifest with the same names and images must not adopt what the runtime still holds.
        """
        unwanted = self._chosen - set(uids)
        if unwanted:
            gone = unwanted - {record.uid for record in self._records()}
            self._accepted.forget_manifests(gone)
            self._chosen -= gone

    def _comes_from(self, record: PodRecord, pod: Pod, digest: str) -> bool:
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
