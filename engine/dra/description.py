"""Describes the prepared claims of the node as plain values, for `kubengine devices` and debugging. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine.dra.health import DeviceHealth
from engine.dra.numa_nodes import DeviceLocation
from engine.dra.table import ClaimState, PreparedDevice


def describe_claims(
    claims: Iterable[ClaimState],
    pod_names: Mapping[str, str],
    health: Callable[[str, PreparedDevice], DeviceHealth],
    locations: Callable[[str], Sequence[DeviceLocation]],
) -> list[dict[str, Any]]:
    """Return every claim in order of name, with its pods and the devices that drivers named.

    `pod_names` gives the names of pods by uid; `locations` the devices of a pod whose NUMA node is known.
    """
    return [
        {
            "claim": f"{claim.namespace}/{claim.name}",
            "uid": claim.uid,
            "pods": sorted(pod_names.get(uid, uid) for uid in claim.pods),
            "prepared": claim.is_prepared,
            "drivers": sorted(claim.drivers),
            "devices": [
                {
                    "driver": driver,
                    "pool": device.pool,
                    "device": device.device,
                    "share": device.share_id,
                    "requests": list(device.requests),
                    "cdi": list(device.cdi_ids),
                    "health": health(driver, device).health,
                    "message": health(driver, device).message,
                    "numa": _node(claim, (driver, device.pool, device.device), locations),
                }
                for driver, device in claim.devices()
            ],
        }
        for claim in sorted(claims, key=lambda claim: claim.key)
    ]


def _node(
    claim: ClaimState, device: tuple[str, str, str], locations: Callable[[str], Sequence[DeviceLocation]]
) -> int | None:
    found = (location.numa for pod in claim.pods for location in locations(pod) if location.device == device)
    return next(found, None)
