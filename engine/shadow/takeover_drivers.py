"""Find the CSI and DRA drivers of a node, and the volumes that they have published for its pods.

The only call is the one by which a starting kubelet gets the name of a plugin.
"""

from __future__ import annotations

import asyncio
import stat
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from engine.api.errors import KubengineError, Refused
from engine.csi import paths, volume_data
from engine.csi.volume_data import VolumeData
from engine.plugins.channel import PluginChannel
from engine.plugins.watcher import MAX_DEPTH, MAX_ENTRIES, RegistrationDeadlines, plugin_info
from engine.shadow.takeover import NodeFinding, PublishedVolume

REGISTRY: Final = "plugins_registry"
CSI, DRA = "CSIPlugin", "DRAPlugin"
MAX_SOCKETS: Final = 256
_DEADLINES: Final = RegistrationDeadlines(dial=2.0, get_info=2.0)


async def registered_drivers(root: Path) -> set[tuple[str, str]]:
    """Return the type and the name of each plugin that answers at its socket below `plugins_registry`."""
    sockets = await asyncio.to_thread(_sockets, root / REGISTRY)
    names = await asyncio.gather(*map(_name, sockets))
    return {name for name in names if name is not None}


async def _name(socket: Path) -> tuple[str, str] | None:
    with suppress(KubengineError), closing(PluginChannel(socket)) as channel:
        info = await plugin_info(channel, socket, _DEADLINES)
        return info.type, info.name
    return None


def _sockets(directory: Path) -> list[Path]:
    """Return the sockets in a directory and its subdirectories, within the bounds of the agent's plugin
    watcher, because other processes may write any number of files there.
    """
    found: list[Path] = []
    waiting, left = [directory], MAX_ENTRIES
    while waiting and len(found) < MAX_SOCKETS:
        now = waiting.pop()
        entries = _entries(now, left)
        left -= len(entries)
        for entry in entries:
            mode = _mode(entry)
            if stat.S_ISSOCK(mode):
                found.append(entry)
            elif stat.S_ISDIR(mode) and len(entry.relative_to(directory).parts) <= MAX_DEPTH:
                waiting.append(entry)
    return found[:MAX_SOCKETS]


def _mode(path: Path) -> int:
    """Return the mode of a file without following links, 0 if it is gone."""
    with suppress(OSError):
        return path.lstat().st_mode
    return 0


def csi_volumes(root: Path) -> tuple[list[PublishedVolume], list[NodeFinding]]:
    """Return the published volumes of all pods, and a finding for each whose `vol_data.json` cannot be
    used.
    """
    volumes: list[PublishedVolume] = []
    findings: list[NodeFinding] = []
    for pod in _entries(root / "pods"):
        for volume in _entries(paths.pods_volumes(root, pod.name)):
            _add(pod.name, volume.name, volume, volumes, findings)
        for device in _entries(paths.pods_devices(root, pod.name)):
            with suppress(KubengineError):
                _add(pod.name, device.name, paths.device_data(root, device.name), volumes, findings)
    return volumes, findings


def _add(
    uid: str, name: str, directory: Path, volumes: list[PublishedVolume], findings: list[NodeFinding]
) -> None:
    data: VolumeData | None = None
    with suppress(Refused):
        data = volume_data.read(directory)
    if data is not None:
        volumes.append(PublishedVolume(uid, name, data.driver, data.handle))
        return
    text = "cannot be used: no agent knows which driver unmounts the volume when the pod ends"
    findings.append(NodeFinding(str(directory / paths.DATA), text, stops=True))


def _entries(directory: Path, most: int = MAX_ENTRIES) -> list[Path]:
    """Return at most `most` entries of a directory, sorted; an empty list if it cannot be read."""
    with suppress(OSError):
        return sorted(islice(directory.iterdir(), most))
    return []
