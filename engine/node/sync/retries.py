"""Handles failures of one pod worker: reports each once while it stays the same, and retries with growing
delays.
"""

from __future__ import annotations

import logging

from engine.api.duration import doubled
from engine.api.errors import KubengineError
from engine.api.events import WARNING
from engine.api.pod import Pod
from engine.node.sync.services import Services
from engine.node.sync.starting import ClaimsRefused, SandboxRefused
from engine.node.volumes import VolumeRefused

log = logging.getLogger("kubengine.pods")

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 10.0


def retry_seconds(failures: int) -> float:
    """Return the delay in seconds after so many failures in a row."""
    return doubled(FIRST_RETRY_SECONDS, failures, LAST_RETRY_SECONDS)


class Failures:
    """The consecutive failures of one pod."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._count = 0
        self._said = ""

    def over(self) -> None:
        """Reset after success."""
        self._count, self._said = 0, ""

    def begin(self) -> None:
        """Start with another operation."""
        self._count = 0

    def met(self, pod: Pod, error: Exception, doing: str) -> float:
        """Report a failure, and return the seconds until the next attempt."""
        expected = isinstance(error, KubengineError | OSError)
        if not expected:
            self._services.context.tasks.failures.inc("pod-worker")
        if str(error) != self._said:
            self._said = str(error)
            if not expected:
                log.error("pod %s: unexpected error", pod.full_name, exc_info=error)
            event, text = _event(error, doing)
            self._services.context.recorder.pod(pod, WARNING, event, text)
        self._count += 1
        return retry_seconds(self._count)


def _event(error: Exception, doing: str) -> tuple[str, str]:
    """Return the reason and the text of the event."""
    if isinstance(error, SandboxRefused):
        return "FailedCreatePodSandBox", str(error)
    if isinstance(error, ClaimsRefused):
        return "FailedPrepareDynamicResources", str(error)
    if isinstance(error, VolumeRefused):
        return error.reason, str(error)
    return "FailedSync", f"Error {doing} pod: {error}"
