"""Failures of one pod's worker: said once while they stay the same, and tried again with growing waits."""

from __future__ import annotations

import logging

from engine.api.duration import doubled
from engine.api.errors import KubengineError
from engine.api.events import WARNING
from engine.api.pod import Pod
from engine.node.sync.services import Services
from engine.node.sync.starting import SandboxRefused
from engine.node.volumes import VolumeRefused

log = logging.getLogger("kubengine.pods")

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 10.0


def retry_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return doubled(FIRST_RETRY_SECONDS, failures, LAST_RETRY_SECONDS)


class Failures:
    """Those in a row of one pod."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._count = 0
        self._said = ""

    def over(self) -> None:
        """It works."""
        self._count, self._said = 0, ""

    def begin(self) -> None:
        """Something else is tried from now on."""
        self._count = 0

    def met(self, pod: Pod, error: Exception, doing: str) -> float:
        """Says what went wrong; the seconds until another try."""
        expected = isinstance(error, KubengineError | OSError)
        if not expected:
            self._services.tasks.failures.inc("pod-worker")
        if str(error) != self._said:
            self._said = str(error)
            if not expected:
                log.error("pod %s: unexpected error", pod.full_name, exc_info=error)
            event, text = _event(error, doing)
            self._services.recorder.pod(pod, WARNING, event, text)
        self._count += 1
        return retry_seconds(self._count)


def _event(error: Exception, doing: str) -> tuple[str, str]:
    """Reason and text."""
    if isinstance(error, SandboxRefused):
        return "FailedCreatePodSandBox", str(error)
    if isinstance(error, VolumeRefused):
        return error.reason, str(error)
    return "FailedSync", f"Error {doing} pod: {error}"
