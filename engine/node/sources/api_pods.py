"""Follows the pods that the API server assigns to this node, and reports their status.

A pod has changed if its spec, labels, annotations or deletion changed; a change of the status alone only
tells what the server knows (kubelet v1.36, `pkg/kubelet/config`). Mirror pods represent static pods and
never run.

Names of pods become parts of paths. An API server refuses names that lead elsewhere; if a pod has one
nevertheless, it is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.api.pod import Pod
from engine.api.qos import (
    MIRROR_ANNOTATION,
    SEEN_ANNOTATION,
    SOURCE_ANNOTATION,
    SOURCE_API,
    is_mirror,
    is_static,
)
from engine.cluster.client import ApiClient
from engine.cluster.mirror_pods import MirrorPods
from engine.cluster.pod_status_manager import PodStatusManager
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.node.sources.pod_sink import API, LEAST_GRACE_SECONDS, PodSink

_OURS = (SOURCE_ANNOTATION, SEEN_ANNOTATION, MIRROR_ANNOTATION)

log = logging.getLogger("kubengine.pods")


class ApiPods:
    """Follow the pods of the API; call `serve` with the node's pods before `run`, which runs
    until cancelled.
    """

    def __init__(
        self, client: ApiClient, node: str, *, node_uid: Callable[[], str], clock: Callable[[], float]
    ) -> None:
        self._writer = PodStatusManager(client, clock=clock)
        self._mirrors = MirrorPods(client, node, node_uid=node_uid)
        self._pods: PodSink | None = None
        self._seen: dict[str, Pod] = {}
        self._static: dict[str, Pod] = {}
        self._ending: dict[str, Pod] = {}
        """Static pods by full name that are no longer wanted and have not ended yet."""
        self._back: set[str] = set()
        """Uids of static pods that ended, are wanted again, and have not started again."""
        self._watch = ResourceWatch(
            client,
            WatchedResource("/api/v1/pods", Pod, f"spec.nodeName={node}"),
            WatchHandler(self._replaced, self._changed, self._deleted),
        )

    def serve(self, pods: PodSink) -> None:
        self._pods = pods

    async def run(self) -> None:
        await self._watch.run()

    def stop_waiting(self) -> None:
        """Stop waiting for the API server to acknowledge statuses."""
        self._writer.stop_waiting()

    async def stop(self) -> None:
        await self._mirrors.stop()
        await self._writer.stop()

    # Reports from the node

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        if may_run and pod.uid in self._back:
            self._back.discard(pod.uid)
            self._show()
        uid = self._in_api(pod)
        if uid:
            self._writer.report(uid, pod.status, may_run=may_run)

    async def end_known(self, pod: Pod) -> None:
        if is_static(pod):
            self._static_ended(pod)
        else:
            self._writer.removed(pod.uid)
            await self._writer.wait_reported(pod.uid)

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """Take the wanted static pods. A pod that is no longer wanted keeps its mirror until it has ended."""
        before, self._static = self._static, {pod.full_name: pod for pod in pods if is_static(pod)}
        wanted = {pod.uid for pod in self._static.values()}
        for name, pod in before.items():
            if pod.uid not in wanted and self._pods is not None and self._pods.get(pod.uid) is not None:
                self._ending.setdefault(name, pod)
        self._back &= wanted
        self._show()

    def _static_ended(self, pod: Pod) -> None:
        """Delete the mirror of an ended static pod, even if the same pod is wanted again."""
        ending, wanted = self._ending.get(pod.full_name), self._static.get(pod.full_name)
        if ending is None or ending.uid != pod.uid:
            return
        del self._ending[pod.full_name]
        if wanted is not None and wanted.uid == pod.uid:
            self._back.add(pod.uid)
        self._show()

    def _show(self) -> None:
        shown = {**self._static, **self._ending}
        self._mirrors.set_static_pods({name: pod for name, pod in shown.items() if pod.uid not in self._back})

    def _in_api(self, pod: Pod) -> str:
        """Return the uid under which the API has the pod, or an empty text."""
        return self._mirrors.uid_of(pod) if is_static(pod) else pod.uid

    # Changes in the API

    def _replaced(self, pods: Sequence[Pod]) -> None:
        assert self._pods is not None
        mirrors = [pod for pod in pods if is_mirror(pod)]
        wanted = [pod for pod in pods if not is_mirror(pod) and _can_have_a_place(pod)]
        for uid in self._seen.keys() - {pod.uid for pod in wanted}:
            self._forget(uid)
        for pod in wanted:
            self._writer.update(pod, listed=True)
        # The list may be older than the node's last report: a pod that has ended here does not begin again.
        here = [pod for pod in wanted if not self._writer.is_removed(pod.uid)]
        statuses = [(pod.uid, pod.status) for pod in here]
        self._pods.set_desired([self._known_as(pod) for pod in here], API)
        # Only now are there workers to take the statuses over.
        for uid, status in statuses:
            self._pods.update_conditions(uid, status)
            self._report(uid)
        for mirror in self._mirrors.replaced(mirrors):
            self._writer.forget(mirror)
        for pod in mirrors:
            self._mirror_changed(pod, listed=True)

    def _changed(self, pod: Pod) -> None:
        assert self._pods is not None
        if is_mirror(pod):
            self._mirrors.changed(pod)
            self._mirror_changed(pod)
            return
        if not _can_have_a_place(pod):
            return
        status = pod.status
        known = self._seen.get(pod.uid)
        self._writer.update(pod)
        if self._writer.is_removed(pod.uid):
            return
        ours = self._known_as(pod)
        if known is None or _is_changed(known, ours):
            self._pods.update_pod(ours, API)
            self._report(pod.uid)
        self._pods.update_conditions(pod.uid, status)

    def _deleted(self, pod: Pod) -> None:
        assert self._pods is not None
        self._writer.forget(pod.uid)
        if is_mirror(pod):
            self._mirrors.deleted(pod)
            return
        self._seen.pop(pod.uid, None)
        given = pod.metadata.deletion_grace_period_seconds
        # The object is gone already, yet its containers get a moment to stop.
        grace = None if given is None else max(given, LEAST_GRACE_SECONDS)
        self._pods.remove_pod(pod.uid, API, grace)

    def _forget(self, uid: str) -> None:
        self._seen.pop(uid, None)
        self._writer.forget(uid)

    def _mirror_changed(self, mirror: Pod, *, listed: bool = False) -> None:
        """Send the static pod's status to a mirror that is new or that somebody else changed."""
        assert self._pods is not None
        mirror.metadata.managed_fields = None
        self._writer.update(mirror, listed=listed)
        static = self._mirrors.static_pod_of(mirror)
        if static is not None:
            self._report(static.uid)

    def _report(self, uid: str) -> None:
        assert self._pods is not None
        pod = self._pods.get(uid)
        if pod is not None:
            self.pod_changed(pod, may_run=self._pods.may_run(uid))

    def _known_as(self, pod: Pod) -> Pod:
        """Return the pod as the node uses it: marked with this source, without server-side fields."""
        meta = pod.metadata
        meta.managed_fields = None
        known = self._seen.get(pod.uid)
        if known is not None and not _is_changed(known, pod):
            return known
        kept = {k: v for k, v in pod.annotations.items() if k not in _OURS}
        meta.annotations = {**kept, SOURCE_ANNOTATION: SOURCE_API}
        self._seen[pod.uid] = pod
        return pod


def _can_have_a_place(pod: Pod) -> bool:
    """Tell whether each of its names is usable as the name of a file or directory."""
    meta = pod.metadata
    parts = [*pod.every_container, *(pod.spec.volumes or ())]
    wrong = [
        name
        for name in (meta.uid, meta.namespace, meta.name, *(part.name for part in parts))
        if name in ("", ".", "..") or "/" in name or "\0" in name
    ]
    if wrong:
        log.error("pod %s is ignored: it has the name %r", pod.full_name, wrong[0])
    return not wrong


def _is_changed(known: Pod, pod: Pod) -> bool:
    before, now = known.metadata, pod.metadata
    return (
        known.spec != pod.spec
        or before.labels != now.labels
        or before.deletion_timestamp != now.deletion_timestamp
        or before.deletion_grace_period_seconds != now.deletion_grace_period_seconds
        or _written(known) != _written(pod)
    )


def _written(pod: Pod) -> dict[str, str]:
    return {key: value for key, value in pod.annotations.items() if key not in _OURS}
