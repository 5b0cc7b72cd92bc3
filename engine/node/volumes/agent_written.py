"""Writes configMap, secret, downwardAPI and projected volumes, which are read-only for containers.

All but ConfigMaps are stored in a tmpfs, as by a kubelet, so that no secret reaches a disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from engine.api.pod import Pod, Volume
from engine.cri.paths import CONFIG_MAP, DOWNWARD_API, PROJECTED, SECRETS
from engine.host.atomic_writer import PublishedFile, publish, share_with_group
from engine.host.safe_open import make_directories, opened

PLUGINS: Final = (CONFIG_MAP, SECRETS, DOWNWARD_API, PROJECTED)
_DIRECTORY_MODE: Final = 0o755


def plugin_of(volume: Volume) -> str | None:
    """Return the plugin name of the volume's directory, or None for a volume that the agent does
    not write.
    """
    sources = (volume.config_map, volume.secret, volume.downward_api, volume.projected)
    plugins = zip(PLUGINS, sources, strict=True)
    return next((plugin for plugin, source in plugins if source is not None), None)


def is_agent_written(volume: Volume) -> bool:
    return plugin_of(volume) is not None


def write(
    path: Path, name: str, pod: Pod, files: Mapping[str, PublishedFile], group: int | None, now: float
) -> None:
    """Write the files, and create empty directories where containers mount other volumes inside this one."""
    with opened(path) as directory:
        for nested in nested_mount_points(pod, name):
            os.close(make_directories(directory, nested, _DIRECTORY_MODE))
        publish(directory, files, group=group, now=now)
        if group is not None:
            share_with_group(directory, group)


def nested_mount_points(pod: Pod, name: str) -> Iterator[str]:
    """Yield the outermost mount points of other volumes below a mount of this volume, relative to it."""
    for container in pod.every_container:
        paths = sorted(os.path.normpath(mount.mount_path) for mount in container.volume_mounts or [])
        own = [os.path.normpath(m.mount_path) for m in container.volume_mounts or [] if m.name == name]
        for top in own:
            outer: list[str] = []
            for path in paths:
                if path.startswith(f"{top}/") and not any(path.startswith(f"{o}/") for o in outer):
                    outer.append(path)
                    yield path.removeprefix(f"{top}/")
