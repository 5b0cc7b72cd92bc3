"""States how packages reject or end pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from engine.api.defaults import DEFAULT_GRACE_SECONDS
from engine.api.errors import KubengineError
from engine.api.pod import Pod

LEAST_KILL_SECONDS: Final = 10.0

log = logging.getLogger("kubengine.pods")


class AdmissionRejected(KubengineError):
    """Raised if the node does not admit a pod; `reason` and the message become its status.

    `lacking` are the resources of which the node has too little.
    """

    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, reason: str, message: str, *, lacking: Collection[str] = ()) -> None:
        self.reason = reason
        self.lacking = lacking
        super().__init__(message)


class PodEnd(msgspec.Struct, frozen=True):
    """Describe why and how the node itself ends a pod.

    `grace_period_seconds` None means the pod's own. `condition_reason` is the reason of the DisruptionTarget
    condition, none if empty; its message is `condition_message`, or else `message`. `reason` and `message` go
    into the failed status, which is everything in the status of a `rejected` pod. `by_exit_codes`: if all
    containers end successfully, the pod has succeeded, and only the condition shows that the node ended it
    (kubelet v1.36, evicted and preempted pods). `until_restart`: a static pod runs again when the agent
    starts again.
    """

    reason: str
    message: str
    grace_period_seconds: int | None = None
    condition_reason: str = ""
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    rejected: bool = False
    condition_message: str = ""
    by_exit_codes: bool = False
    until_restart: bool = False


KillPod = Callable[[Pod, PodEnd], Awaitable[None]]
"""Ends a pod for good (phase Failed) and returns when its containers have stopped.

Raises `Refused` or `Unavailable` if the runtime would not stop them.
"""


class PodKills:
    """End pods, and wait for each one and a half times its grace period, as the kubelet does for evictions.

    A kill that takes longer, or whose caller is cancelled, goes on until `stop`.
    """

    def __init__(self, kill: KillPod) -> None:
        self._kill = kill
        self._running: set[asyncio.Future[None]] = set()

    async def end(self, pod: Pod, end: PodEnd) -> None:
        """End a pod. Raises `TimeoutError` after the wait, and what `KillPod` raises."""
        grace = end.grace_period_seconds
        if grace is None:
            grace = pod.spec.termination_grace_period_seconds
        seconds = max(1.5 * (DEFAULT_GRACE_SECONDS if grace is None else grace), LEAST_KILL_SECONDS)
        kill = asyncio.ensure_future(self._kill(pod, end))
        self._running.add(kill)
        kill.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(seconds):
                # A cancelled kill could leave a pod half stopped, without anything that stops the rest.
                await asyncio.shield(kill)
        finally:
            if not kill.done():
                kill.add_done_callback(_report_failure)

    async def stop(self) -> None:
        """Cancel the kills in progress, and wait for their ends."""
        for kill in self._running:
            kill.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _report_failure(kill: asyncio.Future[None]) -> None:
    if not kill.cancelled() and kill.exception() is not None:
        log.warning("a pod could not be killed after its grace period: %s", kill.exception())


ReportWaiting = Callable[[str, str], Awaitable[None]]
"""Receives why a pod has to wait for admission: a reason and a message for its status."""


async def report_nothing(reason: str, message: str) -> None:
    """Ignore the reasons for waiting."""


def longest_grace(pods: Iterable[Pod]) -> float:
    """Return the seconds after which the last of some pods has ended, if each uses its whole grace period."""
    graces = (pod.spec.termination_grace_period_seconds for pod in pods)
    return max((DEFAULT_GRACE_SECONDS if grace is None else grace for grace in graces), default=0)
