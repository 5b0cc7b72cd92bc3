"""Maintains mirror pods, which represent static pods in the API.

Facts of kubelet v1.36 (`pkg/kubelet/pod/mirror_client.go`): a mirror is the static pod with its hash in the
annotation `kubernetes.io/config.mirror` and the Node as owner. A mirror that was deleted or has another hash
is created again; one without a static pod is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError, Unavailable
from engine.api.meta import OwnerReference
from engine.api.pod import Pod
from engine.api.qos import HASH_ANNOTATION, MIRROR_ANNOTATION
from engine.api.struct import to_builtins
from engine.cluster.client import ApiClient, ApiError

RETRIES: Final = RetryDelays(0.5, 30.0)

log = logging.getLogger("kubengine.cluster")


def mirror_of(static: Pod, node: str, node_uid: str) -> dict[str, Any]:
    """Return the mirror pod to create."""
    meta = static.metadata
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=node_uid, controller=True)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            **({"labels": meta.labels} if meta.labels else {}),
            "annotations": {**static.annotations, MIRROR_ANNOTATION: _hash(static)},
            "ownerReferences": [to_builtins(owner)],
        },
        "spec": to_builtins(static.spec),
    }


def represents(mirror: Pod, static: Pod) -> bool:
    """Tell whether a mirror pod has the hash of this static pod, and is not being deleted."""
    same = mirror.annotations.get(MIRROR_ANNOTATION) == _hash(static)
    return same and mirror.metadata.deletion_timestamp is None


class MirrorPods:
    """Maintain the mirrors of static pods.

    The owner calls `set_static_pods` with the static pods by full name, and forwards the events of a watch to
    `replaced`, `changed` and `deleted`. Nothing is written before both have been received.
    """

    def __init__(self, client: ApiClient, node: str, *, node_uid: Callable[[], str]) -> None:
        self._client = client
        self._node = node
        self._node_uid = node_uid
        self._static: Mapping[str, Pod] | None = None
        self._mirrors: dict[str, Pod] | None = None
        self._failures: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deleted_meanwhile: dict[str, str] = {}
        """Full name → uid of a mirror whose deletion was reported during an operation on that name."""

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set_static_pods(self, static: Mapping[str, Pod]) -> None:
        self._static = static
        self._reconcile_all()

    def replaced(self, mirrors: Sequence[Pod]) -> list[str]:
        """Replace the known mirrors; return the uids of deleted ones."""
        before, now = self._mirrors or {}, {mirror.uid for mirror in mirrors}
        self._mirrors = {mirror.full_name: mirror for mirror in mirrors}
        self._reconcile_all()
        return [mirror.uid for mirror in before.values() if mirror.uid not in now]

    def changed(self, mirror: Pod) -> None:
        if self._mirrors is not None:
            self._mirrors[mirror.full_name] = mirror
            self._reconcile(mirror.full_name)

    def deleted(self, mirror: Pod) -> None:
        known = (self._mirrors or {}).get(mirror.full_name)
        if known is not None and known.uid == mirror.uid:
            assert self._mirrors is not None
            del self._mirrors[mirror.full_name]
        if mirror.full_name in self._tasks:
            self._deleted_meanwhile[mirror.full_name] = mirror.uid
        self._reconcile(mirror.full_name)

    def uid_of(self, static: Pod) -> str:
        """Return the uid of a static pod's mirror, or an empty text."""
        mirror = (self._mirrors or {}).get(static.full_name)
        return mirror.uid if mirror is not None and represents(mirror, static) else ""

    def static_pod_of(self, mirror: Pod) -> Pod | None:
        static = (self._static or {}).get(mirror.full_name)
        return static if static is not None and represents(mirror, static) else None

    def _reconcile_all(self) -> None:
        for name in {**(self._static or {}), **(self._mirrors or {})}:
            self._reconcile(name)

    def _reconcile(self, name: str) -> None:
        if self._static is None or self._mirrors is None or name in self._tasks:
            return
        static, mirror = self._static.get(name), self._mirrors.get(name)
        if (static is None and mirror is None) or (static and mirror and represents(mirror, static)):
            self._failures.pop(name, None)
            return
        self._tasks[name] = asyncio.create_task(self._work(name, static, mirror), name=f"mirror {name}")

    async def _work(self, name: str, static: Pod | None, mirror: Pod | None) -> None:
        """Delete or create a mirror. The watch then reports the result, which starts the next step."""
        try:
            if mirror is not None:
                await self._delete(mirror)
            elif static is not None:
                await self._create(static)
        # Any failure is retried: nothing else would make the mirror.
        except Exception as error:
            times = self._failures[name] = self._failures.get(name, 0) + 1
            if times == 1:
                trace = None if isinstance(error, KubengineError) else error
                text = "cannot update the mirror pod of static pod %s: %s"
                log.warning(text, name, error, exc_info=trace)
            await asyncio.sleep(RETRIES.after(times))
        finally:
            del self._tasks[name]
            self._deleted_meanwhile.pop(name, None)
        self._reconcile(name)

    async def _create(self, static: Pod) -> None:
        path, node_uid = f"/api/v1/namespaces/{static.metadata.namespace}/pods", self._node_uid()
        if not node_uid:
            raise Unavailable("the API server has no Node that could own it", subject=self._node)
        made = await self._client.create(path, mirror_of(static, self._node, node_uid), Pod)
        assert self._mirrors is not None
        # The watch may report the deletion of this mirror before the response to its creation arrives.
        if self._deleted_meanwhile.get(made.full_name) != made.uid:
            self._mirrors.setdefault(made.full_name, made)

    async def _delete(self, mirror: Pod) -> None:
        meta = mirror.metadata
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": mirror.uid},
        }
        try:
            await self._client.delete(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", options)
        except ApiError as error:
            # 409: another pod has the name now, so this mirror no longer exists.
            if error.code not in (404, 409):
                raise
        known = (self._mirrors or {}).get(mirror.full_name)
        if known is not None and known.uid == mirror.uid:
            assert self._mirrors is not None
            del self._mirrors[mirror.full_name]


def _hash(static: Pod) -> str:
    return static.annotations.get(HASH_ANNOTATION, "")
