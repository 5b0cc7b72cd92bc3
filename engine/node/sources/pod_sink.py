"""Defines how sources report the pods that should run on the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from engine.api.pod import Pod
from engine.api.status import PodStatus

MANIFESTS: Final = "manifests"
MANIFEST_URL: Final = "manifest-url"
API: Final = "api"
LEAST_GRACE_SECONDS: Final = 1
"""The minimum grace period of a deleted pod, in seconds."""


class PodSink(Protocol):
    """Receive pods from a source; `engine.node.pods.PodManager` implements it."""

    def set_desired(self, pods: Sequence[Pod], source: str) -> None:
        """Set the complete list of pods that a source wants on this node."""

    def update_pod(self, pod: Pod, source: str) -> None:
        """Add or update one pod of a source."""

    def remove_pod(self, uid: str, source: str, grace: int | None) -> None:
        """Remove a pod that its source no longer has; `grace` in seconds, None for the pod's own period."""

    def update_conditions(self, uid: str, status: PodStatus) -> None:
        """Take over the conditions that other clients wrote to the pod's status in the API."""

    def get(self, uid: str) -> Pod | None:
        """Return the pod as the node has it."""

    def may_run(self, uid: str) -> bool:
        """Tell whether something of the pod runs or will run; true while that is unknown."""
