"""What makes a volume goes by the kubelet's name of it."""

from __future__ import annotations

import pytest

from engine.api.meta import ObjectMeta
from engine.api.objects.storage import BLOCK, CSIPersistentVolume, LocalVolume, PersistentVolumeSpec
from engine.api.pod import CSIVolume, DownwardAPIVolume, HostPathVolume, Volume
from engine.api.references import PersistentVolumeClaimVolume
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.volume_counts import MAP, MOUNT, mounting, plugin_name

CLAIM = Volume("v", persistent_volume_claim=PersistentVolumeClaimVolume("c"))


def bound(source: HostPathVolume | LocalVolume | CSIPersistentVolume, mode: str = "") -> BoundVolume:
    return BoundVolume(ObjectMeta(name="pv"), source, PersistentVolumeSpec(volume_mode=mode))


@pytest.mark.parametrize(
    ("volume", "to", "name"),
    [
        (Volume("v", downward_api=DownwardAPIVolume()), None, "kubernetes.io/downward-api"),
        (Volume("v", csi=CSIVolume("driver.example")), None, "kubernetes.io/csi:driver.example"),
        (CLAIM, bound(CSIPersistentVolume("driver.example", "h")), "kubernetes.io/csi:driver.example"),
        (CLAIM, bound(LocalVolume("/mnt")), "kubernetes.io/local-volume"),
        (CLAIM, bound(HostPathVolume("/mnt")), "kubernetes.io/host-path"),
        (CLAIM, None, "N/A"),
    ],
)
def test_a_plugin_has_the_kubelets_name(volume: Volume, to: BoundVolume | None, name: str) -> None:
    assert plugin_name(volume, to) == name


def test_a_device_is_mapped_and_all_else_mounted() -> None:
    assert mounting(bound(LocalVolume("/dev/x"), BLOCK)) == MAP
    assert mounting(bound(LocalVolume("/mnt"))) == mounting(None) == MOUNT
