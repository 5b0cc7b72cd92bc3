"""Files of variables in a pod's volumes, which containers wrote: read once, bounded, beneath the volume."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.api.errors import Refused
from engine.api.pod import Container
from engine.host.safe_open import HANDLE, open_in_root, opened, read_handle
from engine.node.spec.env_file import EnvFile

LARGEST: Final = 1024 * 1024
"""Bytes of one file: more than a container may have of variables."""


log = logging.getLogger("kubengine.volumes")


def env_files(container: Container, volumes: Mapping[str, Path]) -> dict[tuple[str, str], EnvFile]:
    """Those that a container's variables name, by volume and path; `volumes`, by name, are the pod's.

    Why one could not be read is for the log: it would tell the pod's author about the host.
    """
    files = {}
    for variable in container.env or []:
        wanted = variable.value_from.file_key_ref if variable.value_from is not None else None
        if wanted is not None and wanted.volume_name in volumes:
            volume = volumes[wanted.volume_name]
            path = str(volume / wanted.path.lstrip("/"))
            text = None
            try:
                text = _read(volume, wanted.path)
            except (Refused, OSError) as error:
                log.error("%s: %s", path, error)
            files[wanted.volume_name, wanted.path] = EnvFile(path, text)
    return files


def _read(volume: Path, path: str) -> bytes:
    """Links lead about inside the volume only. Raises `Refused` or `OSError` naming the path."""
    with opened(volume) as root:
        handle = open_in_root(root, path, HANDLE)
        try:
            data = read_handle(handle, path, LARGEST + 1)
        finally:
            os.close(handle)
    if len(data) > LARGEST:
        raise Refused(f"larger than {LARGEST} bytes", subject=path)
    return data
