"""Which pods should be on the node, as told by each of its sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from engine.api.pod import Pod
from engine.api.status import PodCondition

MANIFESTS: Final = "manifests"
MANIFEST_URL: Final = "manifest-url"
API: Final = "api"
LEAST_GRACE_SECONDS: Final = 1
"""A pod that is deleted has this long at least."""


class PodSink(Protocol):
    """What a source tells; `engine.node.pods.PodManager` hears it."""

    def set_desired(self, pods: Sequence[Pod], source: str) -> None:
        """The whole list of pods that a source wants here."""

    def put(self, pod: Pod, source: str) -> None:
        """One pod of a source that is new or has changed."""

    def remove_pod(self, uid: str, source: str, grace: int | None) -> None:
        """A source has a pod no more; `grace` in seconds, the pod's own if None."""

    def hear(self, uid: str, conditions: Sequence[PodCondition]) -> None:
        """The conditions that the API has of a pod."""

    def get(self, uid: str) -> Pod | None:
        """The pod as the node has it."""

    def may_run(self, uid: str) -> bool:
        """Whether something of the pod runs or will; true as long as it is not known."""
