"""Serves `kubelet_volume_stats_*`: the usage of claims, for alerts about full volumes (kubelet v1.36)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.server.metrics_text import family

_LABELS: Final = ("namespace", "persistentvolumeclaim")
_AMOUNTS: Final = (
    ("capacity_bytes", "Capacity of the volume in bytes.", "capacityBytes"),
    ("available_bytes", "Free bytes of the volume.", "availableBytes"),
    ("used_bytes", "Used bytes of the volume.", "usedBytes"),
    ("inodes", "Number of inodes of the volume.", "inodes"),
    ("inodes_free", "Free inodes of the volume.", "inodesFree"),
    ("inodes_used", "Used inodes of the volume.", "inodesUsed"),
)


def volume_metrics(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write the metrics of the kubelet's `VolumeStats`, one per claim."""
    named = [((claim["pvcRef"]["namespace"], claim["pvcRef"]["name"]), claim) for claim in claims]
    for name, help, amount in _AMOUNTS:
        if named:
            samples = [(labels, float(claim[amount])) for labels, claim in named]
            yield family(f"kubelet_volume_stats_{name}", help, "gauge", _LABELS, samples)
    samples = [
        (labels, float(claim["volumeHealthStats"]["abnormal"]))
        for labels, claim in named
        if "volumeHealthStats" in claim
    ]
    if samples:
        help = "1 if the volume's driver reports it as abnormal, else 0."
        yield family("kubelet_volume_stats_health_status_abnormal", help, "gauge", _LABELS, samples)
