"""Obtains and renews the certificates of pods (kubelet v1.36, `pkg/kubelet/podcertificate`).

Each `podCertificate` source of a projected volume has a task: it creates a key and a PodCertificateRequest,
waits for the signer, and does so again when the signer wants the certificate renewed. Keys are in memory
only, so a restarted agent requests every certificate again, and the old files stay until the new one is here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError, Refused, Unavailable
from engine.api.events import WARNING
from engine.api.objects.cluster_objects import ServiceAccount
from engine.api.pod import Pod
from engine.api.references import PodCertificateProjection
from engine.cluster.certificates.openssl import new_key, stub_request
from engine.cluster.certificates.pod_request import (
    API_VERSION,
    RESOURCE,
    Ended,
    Issued,
    Outcome,
    PodCertificate,
    PodCertificateRequest,
    certificate_sources,
    new_request,
    outcome,
)
from engine.cluster.client import ApiClient
from engine.cluster.names import field_is, object_path
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.host.node_context import NodeContext
from engine.metrics import Sample

RETRIES: Final = RetryDelays(1.0, 120.0)
MOST_JITTER: Final = 5 * 60.0
ABANDON_SECONDS: Final = 10 * 60.0
"""Seconds after which a request that the watch does not show was deleted."""
OVERDUE_SECONDS: Final = 10 * 60.0
FIRST_WAIT_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 300.0
"""Seconds between readings of the clock, since clocks are changed and machines are suspended."""
NOT_ISSUED: Final = "credential bundle is not issued yet"

log = logging.getLogger("kubengine.cluster")

_Key = tuple[str, str]
"""The namespace and the name of a request."""


class CertificateTiming(msgspec.Struct, frozen=True):
    """Hold the random numbers for jitter in [0, 1), and the sleep function (seconds)."""

    chance: Callable[[], float] = random.random
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep


class PodCertificates:
    """Hold the certificates of the pods of one node, from `follow` to `forget`. `node_uid()` is '' before the
    Node object is known. Belongs to one event loop.
    """

    def __init__(
        self,
        context: NodeContext,
        client: ApiClient,
        node_uid: Callable[[], str],
        timing: CertificateTiming | None = None,
    ) -> None:
        self._client = client
        self._node, self._node_uid = context.name, node_uid
        self._clock, self._timing = context.clock, timing or CertificateTiming()
        self._recorder = context.recorder
        self._changed: Callable[[str], None] = lambda _: None
        self._of_pods: dict[str, dict[tuple[str, int], _Projection]] = {}
        self._tasks = context.tasks.passing("pod-certificate")
        self._requests = _NodeRequests(client, context.name)
        self._watching: asyncio.Task[None] | None = None
        context.registry.collected(
            "gauge",
            "kubelet_podcertificate_states",
            "Sources of pod certificates in projected volumes, by signer and state.",
            ("signer_name", "state"),
            self._states,
        )

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Call `changed(pod uid)` when a pod has another certificate, or will get none."""
        self._changed = changed

    def follow(self, pod: Pod) -> None:
        """Obtain the certificates of a pod and keep them current, from now on."""
        if pod.uid in self._of_pods:
            for known in self._of_pods[pod.uid].values():
                known.pod = pod
            return
        found = {
            (volume, index): _Projection(pod, source) for volume, index, source in certificate_sources(pod)
        }
        if not found:
            return
        self._of_pods[pod.uid] = found
        if self._watching is None:
            self._watching = self._tasks.start_retrying(self._requests.watch.run, RESOURCE)
        for (volume, index), projection in found.items():
            named = f"of {pod.full_name}, volume {volume}, source {index}"
            projection.task = self._tasks.start(self._keep(projection), named)

    def forget(self, uid: str) -> None:
        """Forget the certificates of a pod."""
        for projection in self._of_pods.pop(uid, {}).values():
            if projection.task is not None:
                projection.task.cancel()
        if not self._of_pods and self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._requests = _NodeRequests(self._client, self._node)

    async def certificate(self, pod: Pod, volume: str, index: int) -> PodCertificate:
        """Return the current key and certificates of a source; waits briefly for the first.

        Raises `Unavailable` while there are none, and `Refused` if the signer refused them.
        """
        projection = self._of_pods.get(pod.uid, {}).get((volume, index))
        if projection is None:
            raise Unavailable(NOT_ISSUED)
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT_SECONDS):
                await projection.decided.wait()
        if projection.ended is not None:
            raise Refused(projection.ended.refusal())
        if projection.certificate is None:
            raise Unavailable(f"{NOT_ISSUED}: {projection.trouble}" if projection.trouble else NOT_ISSUED)
        return projection.certificate

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _keep(self, projection: _Projection) -> None:
        """Obtain a certificate and renew it, until the signer refuses one."""
        while True:
            key, name, found = await self._obtain(projection)
            if isinstance(found, Ended):
                projection.ended = found
                text = found.event(f"{projection.pod.metadata.namespace}/{name}")
                self._recorder.pod(projection.pod, WARNING, found.type, text)
            else:
                refresh_at = found.refresh_at + self._jitter()
                projection.hold(key, Issued(found.chain, refresh_at, found.not_after))
            projection.decided.set()
            self._changed(projection.pod.uid)
            if isinstance(found, Ended):
                return
            # Not at once, even if a signer or a clock is wrong and the certificate is due already.
            left = max(projection.refresh_at - self._clock(), LEAST_SECONDS)
            while left > 0:
                await self._timing.pause(min(left, CHECK_SECONDS))
                left = projection.refresh_at - self._clock()

    async def _obtain(self, projection: _Projection) -> tuple[bytes, str, Outcome]:
        """Request until a request has an outcome; return the key, the request's name and the outcome."""
        while True:
            key, name = await self._request_until_it_works(projection)
            found = await self._outcome(projection, name)
            if found is not None:
                return key, name, found
            log.warning("pod %s: certificate request %s was deleted", projection.pod.full_name, name)

    async def _request_until_it_works(self, projection: _Projection) -> tuple[bytes, str]:
        key = stub = b""
        for pause in RETRIES:
            self._warn_if_late(projection)
            try:
                if not stub:  # an RSA key takes seconds, so one that was not used is kept for the next try
                    key = await new_key(projection.source.key_type)
                    stub = await stub_request(key, projection.source.key_type)
                name = await self._create(projection, stub)
            except KubengineError as error:
                if str(error) != projection.trouble:
                    projection.trouble = str(error)
                    log.warning("pod %s: no certificate requested: %s", projection.pod.full_name, error)
            else:
                projection.trouble = ""
                return key, name
            await self._timing.pause(pause * (1.0 + 0.1 * self._timing.chance()))
        raise AssertionError("pauses do not end")

    async def _create(self, projection: _Projection, stub: bytes) -> str:
        """Create a request and return its name."""
        pod, node_uid = projection.pod, self._node_uid()
        if not node_uid:
            raise Unavailable("the API server has no Node object for this node yet")
        namespace = pod.metadata.namespace
        account = pod.spec.service_account_name or "default"
        accounts = f"{object_path('/api/v1/namespaces', namespace)}/serviceaccounts"
        known = await self._client.get(object_path(accounts, account), ServiceAccount)
        request = new_request(
            pod,
            projection.source,
            stub,
            node=(self._node, node_uid),
            account=(account, known.metadata.uid),
        )
        path = f"{object_path(f'/apis/{API_VERSION}/namespaces', namespace)}/{RESOURCE}"
        made = await self._client.create(path, request, PodCertificateRequest)
        return made.metadata.name

    async def _outcome(self, projection: _Projection, name: str) -> Outcome | None:
        """Wait for the outcome of a request; return None if the request was deleted.

        A request that the watch does not show may only be too new. It counts as deleted after ten minutes.
        """
        key = projection.pod.metadata.namespace, name
        abandon_at = self._clock() + ABANDON_SECONDS + self._jitter()
        while True:
            self._warn_if_late(projection)
            known = self._requests.known(key)
            if known is not None and known.outcome is not None:
                return known.outcome
            now = self._clock()
            if known is None and now >= abandon_at:
                return None
            times = [now + CHECK_SECONDS, *projection.warning_times()]
            if known is None:
                times.append(abandon_at)
            await self._requests.heard_of(key, min(times) - now)

    def _jitter(self) -> float:
        return MOST_JITTER * self._timing.chance()

    def _warn_if_late(self, projection: _Projection) -> None:
        """Report once that a certificate should have been renewed, and once that it has expired."""
        for reason, text in projection.warnings(self._clock()):
            self._recorder.pod(projection.pod, WARNING, reason, text)

    def _states(self) -> Iterator[Sample]:
        now = self._clock()
        counts = Counter(
            (projection.source.signer_name, projection.state(now))
            for projections in self._of_pods.values()
            for projection in projections.values()
        )
        yield from counts.items()


class _Projection:
    """Hold what is known about one source: its certificate, or why it has none."""

    __slots__ = (
        "_issued",
        "_reported",
        "certificate",
        "decided",
        "ended",
        "pod",
        "source",
        "task",
        "trouble",
    )

    def __init__(self, pod: Pod, source: PodCertificateProjection) -> None:
        self.pod, self.source = pod, source
        self.task: asyncio.Task[None] | None = None
        self.decided = asyncio.Event()
        self.certificate: PodCertificate | None = None
        self.ended: Ended | None = None
        self.trouble = ""
        self._issued: Issued | None = None
        self._reported: set[str] = set()

    @property
    def refresh_at(self) -> float:
        """Return the Unix time of the renewal."""
        assert self._issued is not None
        return self._issued.refresh_at

    def hold(self, key: bytes, issued: Issued) -> None:
        self.certificate = PodCertificate(key, issued.chain)
        self._issued = issued
        self._reported.clear()

    def warning_times(self) -> Iterator[float]:
        """Yield the Unix times of the warnings that have not been given."""
        for at, reason, _ in self._limits():
            if reason not in self._reported:
                yield at

    def warnings(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield the reason and the text of each warning that is due, once."""
        for at, reason, text in self._limits():
            if now > at and reason not in self._reported:
                self._reported.add(reason)
                yield reason, text

    def state(self, now: float) -> str:
        """Return the state as the metric names it."""
        if self.ended is not None:
            return self.ended.state
        if self._issued is None:
            return "not_yet_issued"
        if now > self._issued.not_after:
            return "expired"
        return "overdue_for_refresh" if now > self._issued.refresh_at + OVERDUE_SECONDS else "fresh"

    def _limits(self) -> Iterator[tuple[float, str, str]]:
        if self._issued is not None:
            overdue_at = self._issued.refresh_at + OVERDUE_SECONDS
            yield overdue_at, "CertificateOverdueForRefresh", "PodCertificate refresh overdue"
            yield self._issued.not_after, "CertificateExpired", "PodCertificate expired"


class _Known(msgspec.Struct):
    """Hold a request of the watch; `outcome` is None while it is pending."""

    outcome: Outcome | None


class _NodeRequests:
    """Follow the requests of this node, the only ones that it may list."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._known: dict[_Key, _Known] = {}
        self._waiting: dict[_Key, asyncio.Event] = {}
        resource = WatchedResource(
            f"/apis/{API_VERSION}/{RESOURCE}", PodCertificateRequest, field_is("spec.nodeName", node)
        )
        handler = WatchHandler(self._on_replaced, self._on_changed, self._on_deleted)
        self.watch = ResourceWatch(client, resource, handler)

    def known(self, key: _Key) -> _Known | None:
        return self._known.get(key)

    async def heard_of(self, key: _Key, seconds: float) -> None:
        """Wait until the request changes, appears or vanishes, or until the time has passed."""
        heard = self._waiting[key] = asyncio.Event()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0)):
                    await heard.wait()
        finally:
            del self._waiting[key]

    def _on_replaced(self, requests: Sequence[PodCertificateRequest]) -> None:
        before, self._known = self._known, {}
        for request in requests:
            self._on_changed(request)
        for key in before.keys() - self._known.keys():
            self._hear(key)

    def _on_changed(self, request: PodCertificateRequest) -> None:
        key = request.metadata.namespace, request.metadata.name
        self._known[key] = _Known(outcome(request))
        self._hear(key)

    def _on_deleted(self, request: PodCertificateRequest) -> None:
        key = request.metadata.namespace, request.metadata.name
        self._known.pop(key, None)
        self._hear(key)

    def _hear(self, key: _Key) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.set()
