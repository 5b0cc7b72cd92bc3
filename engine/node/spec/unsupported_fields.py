"""Finds fields of a pod that this node does not support; pods of an API server with one are rejected.

Manifests with such fields are refused when they are read. docs/pod-fields.md describes every field. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.api.pod import Pod

POD_LEVEL_CLAIMS: Final = "claims are supported for containers, not for the pod as a whole"


def unsupported_fields(pod: Pod) -> Iterator[str]:
    """Return each unsupported field as `field: reason`."""
    resources = pod.spec.resources
    if resources is not None and resources.claims:
        yield f"spec.resources.claims: {POD_LEVEL_CLAIMS}"
