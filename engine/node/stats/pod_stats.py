"""Reads the runtime's statistics of all pods, leaving out what it cannot provide.

containerd 1.6 fails the whole list if one pod has finished. Then each pod is read by itself, and if that
fails too, each container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from engine.api.errors import Refused, Unavailable
from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.cri.records import PodRecord
from engine.node.stats import runtime_numbers
from engine.node.stats.runtime_numbers import RuntimeStats
from engine.wire import cri_v1_pb2 as cri

ASKED_AT_ONCE = 16


async def pod_stats(runtime: RuntimeClient, pods: Iterable[PodRecord]) -> RuntimeStats:
    """Return the statistics of each readable pod. Raises `Unavailable` if the runtime does not answer."""
    try:
        return await runtime.read_pod_sandbox_stats(runtime_numbers.read)
    except Unavailable:
        raise
    except Refused:
        slots = asyncio.Semaphore(ASKED_AT_ONCE)
        asked = [_one(runtime, record, slots) for record in pods if record.may_run]
        found = [stats for stats in await asyncio.gather(*asked) if stats is not None]
        return runtime_numbers.read(cri.ListPodSandboxStatsResponse(stats=found).SerializeToString())


async def _one(
    runtime: RuntimeClient, record: PodRecord, slots: asyncio.Semaphore
) -> cri.PodSandboxStats | None:
    sandbox = record.sandbox
    if sandbox is None:
        return None
    async with slots:
        try:
            return await runtime.pod_sandbox_stats(sandbox.id)
        except Unavailable:
            raise
        except Refused:
            return await _containers_only(runtime, record, sandbox.id)


async def _containers_only(
    runtime: RuntimeClient, record: PodRecord, sandbox: str
) -> cri.PodSandboxStats | None:
    found = []
    for container in record.may_run:
        try:
            found.append(await runtime.container_stats(container.id))
        except Unavailable:
            raise
        except Refused:
            continue
    if not found:
        return None
    metadata = cri.PodSandboxMetadata(name=record.name, uid=record.uid, namespace=record.namespace)
    known = {labels.POD_NAME: record.name, labels.POD_NAMESPACE: record.namespace, labels.POD_UID: record.uid}
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(id=sandbox, metadata=metadata, labels=known),
        linux=cri.LinuxPodSandboxStats(containers=found),
    )
