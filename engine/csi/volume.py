"""Describes one volume of a driver as a pod requests it, with the rules of the cluster's CSIDriver. Pure.

Source: kubelet v1.36 (`pkg/volume/csi`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from engine.api.errors import Refused
from engine.api.objects.storage import READ_WRITE_ONCE, READ_WRITE_ONCE_POD, CSIDriver, CSIDriverSpec
from engine.api.pod import Pod
from engine.api.struct import PartlyShown

PERSISTENT, EPHEMERAL = "Persistent", "Ephemeral"
GROUP_WITH_FILE_SYSTEM: Final = "ReadWriteOnceWithFSType"
GROUP_ALWAYS, GROUP_NEVER = "File", "None"
TOKENS: Final = "csi.storage.k8s.io/serviceAccount.tokens"
SAYS: Final = "kubernetes.io/csi: "
"""The prefix of a kubelet's own messages about these volumes."""


class CsiVolume(PartlyShown, frozen=True, kw_only=True):
    """Describe a volume. `name` is the persistent volume's name, or the name in the pod's spec for an
    ephemeral volume; `block` means a device instead of a file system.

    `label` is the SELinux label that the driver mounts it with, '' for none. Secrets and contexts are passed
    to the driver and never appear in messages.
    """

    HIDDEN = frozenset(("attributes", "attachment", "secrets"))
    driver: str
    handle: str
    name: str
    mode: str
    block: bool = False
    read_only: bool = False
    fs_type: str = ""
    access_modes: Sequence[str] = ()
    mount_options: Sequence[str] = ()
    label: str = ""
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    attachment: Mapping[str, str] = msgspec.field(default_factory=dict)
    secrets: Mapping[str, str] = msgspec.field(default_factory=dict)
    group: int | None = None
    group_policy: str = GROUP_WITH_FILE_SYSTEM
    group_change_policy: str | None = None

    @property
    def persistent(self) -> bool:
        return self.mode == PERSISTENT

    @property
    def access_mode(self) -> str:
        """Return the access mode that the driver receives."""
        return self.access_modes[0] if self.access_modes else READ_WRITE_ONCE

    @property
    def belongs_to_group(self) -> bool:
        """Return whether the group policy requires the fsGroup's ownership of the files."""
        if self.group is None or self.group_policy == GROUP_NEVER or self.read_only:
            return False
        if self.group_policy == GROUP_ALWAYS:
            return True
        writers = {READ_WRITE_ONCE, READ_WRITE_ONCE_POD}
        return bool(self.fs_type) and (not self.persistent or not writers.isdisjoint(self.access_modes))


def needs_attachment(driver: CSIDriver | None) -> bool:
    """Return whether a controller attaches a persistent volume of the driver to the node before its use."""
    return driver is None or driver.spec.attach_required is not False


def check_mode(name: str, driver: CSIDriver | None, mode: str) -> None:
    """Raise `Refused` unless the driver supports such volumes."""
    if driver is None:
        if mode == EPHEMERAL:
            raise Refused(
                _no_mode(f'volume mode "{mode}" not supported by driver {name} (no CSIDriver object)')
            )
        return
    modes = driver.spec.volume_lifecycle_modes or []
    if mode not in modes:
        known = " ".join(f'"{each}"' for each in modes)
        raise Refused(
            _no_mode(f'volume mode "{mode}" not supported by driver {name} (only supports [{known}])')
        )


def _no_mode(text: str) -> str:
    return f"{SAYS}mounter.SetupAt failed to check volume lifecycle mode: {text}"


def group_policy(driver: CSIDriver | None) -> str:
    """Return the group policy. Raises `Refused` if the object has none."""
    if driver is None:
        return GROUP_WITH_FILE_SYSTEM
    if not driver.spec.fs_group_policy:
        text = f"{SAYS}expected valid fsGroupPolicy, received nil value or empty string"
        raise Refused(f"{SAYS}mounter.SetupAt failed to check fsGroup policy: {text}")
    return driver.spec.fs_group_policy


def spec_of(driver: CSIDriver | None) -> CSIDriverSpec:
    """Return the CSIDriver's spec, or the defaults if the cluster has no such object."""
    return driver.spec if driver is not None else CSIDriverSpec()


def pod_info(pod: Pod, mode: str) -> dict[str, str]:
    """Return the volume context entries for a driver with `podInfoOnMount`."""
    meta, prefix = pod.metadata, "csi.storage.k8s.io/"
    return {
        f"{prefix}pod.name": meta.name,
        f"{prefix}pod.namespace": meta.namespace,
        f"{prefix}pod.uid": meta.uid,
        f"{prefix}serviceAccount.name": pod.spec.service_account_name,
        f"{prefix}ephemeral": "true" if mode == EPHEMERAL else "false",
    }
