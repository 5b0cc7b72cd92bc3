"""Decides whether a node expands a volume now, from its claim and the volume's size. Pure.

Source: kubelet v1.36 (`NodeExpander`, `checkForRecoveryFromExpansion`). Amounts are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.api.objects.storage import READ_WRITE_MANY, PersistentVolumeClaim
from engine.api.quantity import ZERO, Quantity
from engine.api.timestamps import rfc3339

_STORAGE: Final = "storage"
_PENDING, _IN_PROGRESS, _INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
_NOT_REQUIRED: Final = "volume.kubernetes.io/node-expansion-not-required"
_ERROR: Final = "NodeResizeError"
_OF_RESIZES: Final = frozenset(("FileSystemResizePending", "Resizing", "ControllerResizeError", _ERROR))


class Growth(msgspec.Struct, frozen=True):
    """Hold the size to request from the driver.

    `recorded`: the claim's capacity has this size already, because another node expanded the volume first.
    `tracked`: the claim records each step of its resize, which older controllers do not do.
    """

    size: Quantity
    recorded: bool
    tracked: bool


def size_of(amounts: Mapping[str, Quantity] | None) -> Quantity:
    return (amounts or {}).get(_STORAGE, ZERO)


def growth(claim: PersistentVolumeClaim, volume_size: Quantity) -> Growth | None:
    """Return the expansion that a volume needs on this node; None if it needs none, or must wait for the
    controller.
    """
    status = claim.status
    step = _step(claim)
    if not step and status.allocated_resources is None:
        return Growth(volume_size, recorded=size_of(status.capacity) >= volume_size, tracked=False)
    size = size_of(status.allocated_resources) or volume_size
    if not step and size_of(status.capacity) >= size:
        shared = READ_WRITE_MANY in (claim.spec.access_modes or ())
        wanted = shared and _NOT_REQUIRED not in (claim.metadata.annotations or {})
        return Growth(size, recorded=True, tracked=True) if wanted else None
    return Growth(size, recorded=False, tracked=True) if step in (_PENDING, _IN_PROGRESS) else None


def is_recorded(claim: PersistentVolumeClaim, volume_size: Quantity) -> bool:
    """Tell whether the claim's capacity has the volume's size, and no resize step is pending."""
    return not _step(claim) and size_of(claim.status.capacity) >= volume_size


def is_other_than_wanted(claim: PersistentVolumeClaim, size: Quantity) -> bool:
    """Tell whether the claim requests another size than `size` by now."""
    return size_of(claim.spec.resources.requests) != size


def begun(claim: PersistentVolumeClaim) -> dict[str, Any] | None:
    """Return the patch that marks the claim's expansion as in progress; None if it is marked already."""
    if _step(claim) == _IN_PROGRESS:
        return None
    return _at_its_version(claim, {"allocatedResourceStatuses": {_STORAGE: _IN_PROGRESS}})


def grown(claim: PersistentVolumeClaim, size: Quantity) -> dict[str, Any]:
    """Return the patch of a claim whose volume was expanded to `size`."""
    gone = [
        {"$patch": "delete", "type": condition["type"]}
        for condition in claim.status.conditions or ()
        if condition.get("type") in _OF_RESIZES
    ]
    status: dict[str, Any] = {"capacity": {_STORAGE: str(size)}, "conditions": gone}
    if claim.status.allocated_resource_statuses:
        status["allocatedResourceStatuses"] = {_STORAGE: None}
    return _at_its_version(claim, status)


def failed(claim: PersistentVolumeClaim, why: str, now: float, *, infeasible: bool) -> dict[str, Any] | None:
    """Return the patch of a claim whose expansion failed for good; None if the claim says so already."""
    status: dict[str, Any] = {}
    if infeasible:
        status["allocatedResourceStatuses"] = {_STORAGE: _INFEASIBLE}
    known = [c for c in claim.status.conditions or () if c.get("type") == _ERROR]
    if not any(condition.get("status") == "True" for condition in known):
        condition = {"type": _ERROR, "status": "True", "lastTransitionTime": rfc3339(now)}
        status["conditions"] = [{**condition, "message": f"failed to expand pvc with {why}"}]
    return {"status": status} if status else None


def _step(claim: PersistentVolumeClaim) -> str:
    return (claim.status.allocated_resource_statuses or {}).get(_STORAGE, "")


def _at_its_version(claim: PersistentVolumeClaim, status: dict[str, Any]) -> dict[str, Any]:
    """Make a patch conditional on the version of the claim that was read."""
    return {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
