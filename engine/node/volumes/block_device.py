"""Passes persistent volumes in block mode to containers as devices, without mounting them.

As in the kubelet, `<pod>/volumeDevices/<plugin>/<volume>` is a link to the device.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from engine.api.errors import InvalidInput, Refused
from engine.api.objects.storage import LocalVolume
from engine.api.pod import Container, Pod
from engine.cri.paths import LOCAL_VOLUME
from engine.host.disks.loop_devices import detach_loop_devices
from engine.host.mounts import clear_mount
from engine.host.safe_open import opened_parent
from engine.node.volumes.claims import claim_name, is_read_only
from engine.node.volumes.local import check_path
from engine.wire import cri_v1_pb2 as cri

DIRECTORY = "volumeDevices"


def set_up(pod_directory: Path, name: str, volume: LocalVolume) -> Path:
    """Return the device. The volume's path belongs to the owner of the host and is trusted.

    Raises `InvalidInput`, `Refused` or `OSError`.
    """
    check_path(volume)
    # Names in /dev/disk are links, which udev may replace at any time: the container gets the device itself.
    device = Path(os.path.realpath(volume.path, strict=True))
    if not stat.S_ISBLK(device.stat().st_mode):
        raise Refused("not a block device", subject=str(device))
    link = pod_directory / DIRECTORY / LOCAL_VOLUME / name
    link.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(device)
    return device


def users(pods: Path, name: str) -> set[str]:
    """Return the uids of the pods below `pods` that have a link to the device."""
    return {link.parents[2].name for link in pods.glob(f"*/{DIRECTORY}/{LOCAL_VOLUME}/{name}")}


def remove_kubelet_mounts(pods: Path, uid: str) -> None:
    """Remove what a kubelet created for the pod's devices besides the links: a second mount of each device,
    and a loop device that keeps it open. Raises `OSError`.
    """
    links = pods / uid / DIRECTORY / LOCAL_VOLUME
    for name in os.listdir(links) if links.exists() else ():  # noqa: PTH208
        mount = pods.parent / "plugins" / LOCAL_VOLUME / DIRECTORY / name / uid
        detach_loop_devices(mount)
        with suppress(FileNotFoundError), opened_parent(mount, pods.parent) as (parent, entry):
            clear_mount(parent, entry)


def block_devices(pod: Pod, container: Container, volumes: Mapping[str, Path]) -> Iterator[cri.Device]:
    """Yield the devices of a container; `volumes` maps the names of its pod's volumes to paths.

    Raises `InvalidInput` for a device without a volume, or with a relative path.
    """
    specs = {volume.name: volume for volume in pod.spec.volumes or []}
    for device in container.volume_devices or []:
        if not device.device_path.startswith("/"):
            raise InvalidInput(f"error DevicePath `{device.device_path}` must be an absolute path")
        volume = specs.get(device.name)
        if volume is None or claim_name(pod, volume) is None or device.name not in volumes:
            text = f'cannot find volume "{device.name}" to pass into container "{container.name}"'
            raise InvalidInput(text)
        yield cri.Device(
            container_path=device.device_path,
            host_path=str(volumes[device.name]),
            permissions="r" if is_read_only(volume) else "mrw",
        )
