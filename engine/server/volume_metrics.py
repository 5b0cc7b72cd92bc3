"""Serves `kubelet_volume_stats_*`: the usage of claims, for alerts about full volumes (kubelet v1.36)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.server.metrics_text import family

_LABELS: Final = ("namespace", "persistentvolumeclaim")
_AMOUNTS: Final = (
    ("capacity_bytes", "Bytes that the volume has.", "capacityBytes"),
    ("available_bytes", "Bytes of the volume that are free.", "availableBytes"),
    ("used_bytes", "Bytes of the volume that are used.", "usedBytes"),
    ("inodes", "Inodes that the volume has at most.", "inodes"),
    ("inodes_free", "Inodes of the volume that are free.", "inodesFree"),
    ("inodes_used", "Inodes of the volume that are used.", "inodesUsed"),
)


def volume_metrics(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write the metrics of the kubelet's `VolumeStats`, one per claim."""
    named = [((claim["pvcRef"]["namespace"], claim["pvcRef"]["name"]), claim) for claim in claims]
    for name, help, amount in _AMOUNTS:
        if named:
            samples = [(labels, float(claim[amount])) for labels, claim in named]
            yield family(f"kubelet_volume_stats_{name}", help, "gauge", _LABELS, samples)
    told = [
        (labels, float(claim["volumeHealthStats"]["abnormal"]))
        for labels, claim in named
        if "volumeHealthStats" in claim
    ]
    if told:
        help = "1 where the volume's driver says that it is not well, else 0."
        yield family("kubelet_volume_stats_health_status_abnormal", help, "gauge", _LABELS, told)
