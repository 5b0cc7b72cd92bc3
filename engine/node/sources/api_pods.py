"""Follows the pods that the API server assigns to this node, and reports their status.

A pod counts as changed if its spec, labels, annotations or deletion changed. If only the status changed, the
node's workers are not notified (kubelet v1.36, `pkg/kubelet/config`). Mirror pods represent static pods and
never run.

Names of pods become parts of paths. An API server refuses names that lead to another directory. A pod that
has such a name nevertheless is ignored.
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

_AGENT_ANNOTATIONS = (SOURCE_ANNOTATION, SEEN_ANNOTATION, MIRROR_ANNOTATION)

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
        """Static pods by full name that are no longer desired and have not terminated yet."""
        self._restarting: set[str] = set()
        """Uids of static pods that terminated, are desired again, and have not started again."""
        self._watch = ResourceWatch(
            client,
            WatchedResource("/api/v1/pods", Pod, f"spec.nodeName={node}"),
            WatchHandler(self._replaced, self._changed, self._deleted),
        )

    def serve(self, pods: PodSink) -> None:
        self._pods = pods

    async def run(self) -> None:
        await self._watch.run()

    def stop_waiting_for_acknowledgements(self) -> None:
        """Stop waiting for the API server to acknowledge statuses."""
        self._writer.stop_waiting_for_acknowledgements()

    async def stop(self) -> None:
        await self._mirrors.stop()
        await self._writer.stop()

    # Reports from the node

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        if may_run and pod.uid in self._restarting:
            self._restarting.discard(pod.uid)
            self._update_mirrors()
        uid = self._api_uid(pod)
        if uid:
            self._writer.report(uid, pod.status, may_run=may_run)

    async def wait_final_status(self, pod: Pod) -> None:
        if is_static(pod):
            self._static_ended(pod)
        else:
            self._writer.removed(pod.uid)
            await self._writer.wait_reported(pod.uid)

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """Set the desired static pods. A pod that is no longer desired keeps its mirror until it has
        terminated.
        """
        before, self._static = self._static, {pod.full_name: pod for pod in pods if is_static(pod)}
        wanted = {pod.uid for pod in self._static.values()}
        for name, pod in before.items():
            if pod.uid not in wanted and self._pods is not None and self._pods.get(pod.uid) is not None:
                self._ending.setdefault(name, pod)
        self._restarting &= wanted
        self._update_mirrors()

    def _static_ended(self, pod: Pod) -> None:
        """Delete the mirror of a terminated static pod, even if the same pod is desired again."""
        ending, wanted = self._ending.get(pod.full_name), self._static.get(pod.full_name)
        if ending is None or ending.uid != pod.uid:
            return
        del self._ending[pod.full_name]
        if wanted is not None and wanted.uid == pod.uid:
            self._restarting.add(pod.uid)
        self._update_mirrors()

    def _update_mirrors(self) -> None:
        shown = {**self._static, **self._ending}
        self._mirrors.set_static_pods(
            {name: pod for name, pod in shown.items() if pod.uid not in self._restarting}
        )

    def _api_uid(self, pod: Pod) -> str:
        """Return the uid of the pod in the API, or an empty string; a static pod's is that of its mirror."""
        return self._mirrors.uid_of(pod) if is_static(pod) else pod.uid

    # Changes in the API

    def _replaced(self, pods: Sequence[Pod]) -> None:
        assert self._pods is not None
        mirrors = [pod for pod in pods if is_mirror(pod)]
        wanted = [pod for pod in pods if not is_mirror(pod) and _has_valid_names(pod)]
        for uid in self._seen.keys() - {pod.uid for pod in wanted}:
            self._forget(uid)
        for pod in wanted:
            self._writer.update(pod, listed=True)
        # The list may be older than the node's last report: a pod that has terminated must not start again.
        live = [pod for pod in wanted if not self._writer.is_removed(pod.uid)]
        statuses = [(pod.uid, pod.status) for pod in live]
        self._pods.set_desired([self._node_pod(pod) for pod in live], API)
        # Only after `set_desired` are there workers that can take over the statuses.
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
        if not _has_valid_names(pod):
            return
        status = pod.status
        known = self._seen.get(pod.uid)
        self._writer.update(pod)
        if self._writer.is_removed(pod.uid):
            return
        node_pod = self._node_pod(pod)
        if known is None or _is_changed(known, node_pod):
            self._pods.update_pod(node_pod, API)
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
        # The object is already deleted, but its containers still get at least the minimum grace period.
        grace = None if given is None else max(given, LEAST_GRACE_SECONDS)
        self._pods.remove_pod(pod.uid, API, grace)

    def _forget(self, uid: str) -> None:
        self._seen.pop(uid, None)
        self._writer.forget(uid)

    def _mirror_changed(self, mirror: Pod, *, listed: bool = False) -> None:
        """Send the static pod's status to a mirror that is new or was changed by another client."""
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

    def _node_pod(self, pod: Pod) -> Pod:
        """Return the pod with this source in its annotations and without managed fields. An unchanged pod
        keeps its earlier object.
        """
        meta = pod.metadata
        meta.managed_fields = None
        known = self._seen.get(pod.uid)
        if known is not None and not _is_changed(known, pod):
            return known
        kept = {k: v for k, v in pod.annotations.items() if k not in _AGENT_ANNOTATIONS}
        meta.annotations = {**kept, SOURCE_ANNOTATION: SOURCE_API}
        self._seen[pod.uid] = pod
        return pod


def _has_valid_names(pod: Pod) -> bool:
    """Tell whether all names of the pod are valid names of a file or directory; log an invalid one."""
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
        or _user_annotations(known) != _user_annotations(pod)
    )


def _user_annotations(pod: Pod) -> dict[str, str]:
    return {key: value for key, value in pod.annotations.items() if key not in _AGENT_ANNOTATIONS}
