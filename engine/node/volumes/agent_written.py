"""Volumes whose files the agent writes: downwardAPI, alone or projected. Containers get them read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.api.pod import DownwardAPIVolume, Pod, Volume
from engine.api.quantity import Quantity
from engine.api.struct import to_builtins
from engine.host.beneath import make_directories, opened
from engine.host.published import PublishedFile, publish, share_with_group
from engine.node.environment import field_value, resource_value

DEFAULT_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


def is_agent_written(volume: Volume) -> bool:
    return volume.downward_api is not None or volume.projected is not None


def volume_files(
    pod: Pod, volume: Volume, host_ip: str, allocatable: Mapping[str, Quantity]
) -> dict[str, PublishedFile]:
    """What the files of such a volume hold now. Raises `InvalidInput`."""
    if volume.downward_api is not None:
        return _downward(pod, volume.downward_api, host_ip, allocatable, None)
    files: dict[str, PublishedFile] = {}
    for source in (volume.projected and volume.projected.sources) or []:
        if source.downward_api is None:
            kinds = ", ".join(sorted(to_builtins(source)))
            raise InvalidInput(f"projected {kinds or 'source'}: not supported yet")
        assert volume.projected is not None
        files |= _downward(pod, source.downward_api, host_ip, allocatable, volume.projected.default_mode)
    return files


def write(
    path: Path, name: str, pod: Pod, files: Mapping[str, PublishedFile], group: int | None, now: float
) -> None:
    """Shows these files, and empty directories where containers mount other volumes inside this one."""
    path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    with opened(path) as directory:
        for nested in nested_mount_points(pod, name):
            os.close(make_directories(directory, nested, _DIRECTORY_MODE))
        publish(directory, files, group=group, now=now)
        if group is not None:
            share_with_group(directory, group)


def nested_mount_points(pod: Pod, name: str) -> Iterator[str]:
    """Where containers mount other volumes below a mount of this one, relative to it; the outermost only."""
    for container in pod.all_containers:
        paths = sorted(os.path.normpath(mount.mount_path) for mount in container.volume_mounts or [])
        own = [os.path.normpath(m.mount_path) for m in container.volume_mounts or [] if m.name == name]
        for top in own:
            outer: list[str] = []
            for path in paths:
                if path.startswith(f"{top}/") and not any(path.startswith(f"{o}/") for o in outer):
                    outer.append(path)
                    yield path.removeprefix(f"{top}/")


def _downward(
    pod: Pod,
    volume: DownwardAPIVolume,
    host_ip: str,
    allocatable: Mapping[str, Quantity],
    default_mode: int | None,
) -> dict[str, PublishedFile]:
    files = {}
    mode = volume.default_mode if volume.default_mode is not None else default_mode
    for item in volume.items or []:
        if item.field_ref is not None:
            text = field_value(pod, item.field_ref.field_path, host_ip=host_ip)
        elif item.resource_field_ref is not None:
            text = resource_value(pod, item.resource_field_ref, None, allocatable)
        else:
            raise InvalidInput(f"downwardAPI item {item.path}: expected fieldRef or resourceFieldRef")
        chosen = item.mode if item.mode is not None else mode
        files[item.path] = PublishedFile(text.encode(), chosen if chosen is not None else DEFAULT_FILE_MODE)
    return files
