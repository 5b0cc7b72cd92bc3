"""Finds fields of a pod that this node does not support; pods of an API server with one are rejected.

Manifests with such fields are refused when they are read. docs/pod-fields.md describes every field. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.api.pod import Pod, ResourceRequirements

DEVICE_CLAIMS: Final = "dynamic resource allocation is not supported by this node"


def unsupported_fields(pod: Pod) -> Iterator[str]:
    """Return each unsupported field as `field: reason`."""
    spec = pod.spec
    if spec.resource_claims:
        yield f"spec.resourceClaims: {DEVICE_CLAIMS}"
    if _claims(spec.resources):
        yield f"spec.resources.claims: {DEVICE_CLAIMS}"
    for kind, containers in (("initContainers", pod.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            if _claims(container.resources):
                yield f"spec.{kind}[{index}].resources.claims: {DEVICE_CLAIMS}"


def _claims(resources: ResourceRequirements | None) -> bool:
    return resources is not None and bool(resources.claims)
