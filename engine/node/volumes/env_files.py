"""Reads environment files (`fileKeyRef`) that containers wrote to the pod's volumes. A file is read once, is
bounded in size, and must be inside its volume.
"""

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
"""The size limit in bytes, which is more than the environment of a container can hold."""


log = logging.getLogger("kubengine.volumes")


def env_files(container: Container, volumes: Mapping[str, Path]) -> dict[tuple[str, str], EnvFile]:
    """Return the files that a container's variables refer to, by volume name and path; `volumes` maps the
    names of the pod's volumes to host paths.

    The reason why a file cannot be read is only logged, because it could reveal facts about the host.
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
                log.error("environment file %s cannot be read: %s", path, error)
            files[wanted.volume_name, wanted.path] = EnvFile(path, text)
    return files


def _read(volume: Path, path: str) -> bytes:
    """Read a file, following links only inside the volume. Raises `Refused` or `OSError` naming the path."""
    with opened(volume) as root:
        handle = open_in_root(root, path, HANDLE)
        try:
            # One byte more tells a file that is too large from one that just fits.
            data = read_handle(handle, path, LARGEST + 1)
        finally:
            os.close(handle)
    if len(data) > LARGEST:
        raise Refused(f"larger than {LARGEST} bytes", subject=path)
    return data
