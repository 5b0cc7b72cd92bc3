"""Renews the node's lease in kube-node-lease every quarter of its duration.

As in kubelet v1.36, a lease lasts 40 s and is renewed every 10 s by a PUT of the last known object, with five
attempts. After a conflict it is read again, a missing lease is created, and the Node owns it.

Only the node writes its lease. If the server's lease is older than the last one written, or missing, the
store was replaced by an older one and may have lost other objects too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError
from engine.api.meta import ObjectMeta, OwnerReference
from engine.api.objects.lease import Lease, LeaseSpec
from engine.api.timestamps import rfc3339_micro
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.resource_version import is_newer

NAMESPACE = "kube-node-lease"
RENEWALS = 4
TRIES = 5
RETRIES = RetryDelays(0.2, 7.0)

log = logging.getLogger("kubengine.cluster")


def renewed(known: Lease | None, node: str, node_uid: str, seconds: int, now: float) -> Lease:
    """Return the lease to write at `now` (Unix seconds); an existing owner stays."""
    meta = known.metadata if known is not None else ObjectMeta(name=node, namespace=NAMESPACE)
    if not meta.owner_references and node_uid:
        owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=node_uid)
        meta = msgspec.structs.replace(meta, owner_references=[owner])
    return Lease(
        api_version="coordination.k8s.io/v1",
        kind="Lease",
        metadata=meta,
        spec=LeaseSpec(
            holder_identity=node,
            lease_duration_seconds=seconds,
            renew_time=rfc3339_micro(now),
        ),
    )


class LeaseController:
    """Renew the lease of `node` until `run` is cancelled.

    `node_uid()` is "" until it is known. `lost` is called if the server has lost a lease that it had
    acknowledged.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        *,
        node_uid: Callable[[], str],
        seconds: int,
        clock: Callable[[], float],
        lost: Callable[[], None],
    ) -> None:
        self._client = client
        self._node, self._node_uid = node, node_uid
        self._seconds = seconds
        self._clock, self._lost = clock, lost
        self._lease: Lease | None = None
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"

    async def run(self) -> None:
        while True:
            await self.renew()
            await asyncio.sleep(self._seconds / RENEWALS)

    async def renew(self) -> bool:
        """Renew the lease; return whether it worked. Failures are logged."""
        last: KubengineError | None = None
        for failures in range(1, TRIES + 1):
            try:
                self._lease = await self._write()
                return True
            except KubengineError as error:
                last = error
            await asyncio.sleep(RETRIES.after(failures))
        log.warning("cannot renew the node's lease: %s", last)
        return False

    async def _write(self) -> Lease:
        if self._lease is not None:
            try:
                return await self._client.update(f"{self._all}/{self._node}", self._next(self._lease), Lease)
            except ApiError as error:
                # 409: another client wrote the lease (an agent before a restart). 404: it was deleted, or the
                # store was replaced by an older one.
                if error.code not in (404, 409):
                    raise
        known = await self._read()
        # Assigned before `lost` is called, so that a failure below does not report the same loss again.
        before, self._lease = self._lease, known
        if before is not None and (known is None or is_newer(before.metadata, known.metadata)):
            log.warning("the API server no longer has the node's lease: listing all resources again")
            self._lost()
        if known is None:
            return await self._client.create(self._all, self._next(None), Lease)
        return await self._client.update(f"{self._all}/{self._node}", self._next(known), Lease)

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(f"{self._all}/{self._node}", Lease)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def _next(self, known: Lease | None) -> Lease:
        return renewed(known, self._node, self._node_uid(), self._seconds, self._clock())
