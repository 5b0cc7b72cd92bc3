"""Reads the node's registry credentials from the configuration files of the `docker` command.

The files are searched in the node's root directory, the working directory, the home directory and `/`: first
`config.json` (below `.docker` in the last two), then `.dockercfg`. The first valid file is used. Source:
kubelet v1.36.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput
from engine.node.images.keyring import Credentials, docker_config

LIFETIME_SECONDS: Final = 300.0
_MOST_BYTES: Final = 1 << 20

log = logging.getLogger("kubengine.images")


class NodeCredentials:
    """Cache the credentials for five minutes; `clock` returns Unix seconds."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._clock = clock
        self._read_at = float("-inf")
        self._known: Credentials = {}

    def all(self) -> Credentials:
        now = self._clock()
        if not 0 <= now - self._read_at < LIFETIME_SECONDS:
            self._known = _first([*_json_files(self._root)], legacy=False)
            self._known = self._known or _first([*_legacy_files(self._root)], legacy=True)
            self._read_at = now
        return self._known


def _json_files(root: Path) -> Iterable[Path]:
    home = Path.home()
    for directory in (root, Path(), home / ".docker", Path("/.docker")):
        yield directory / "config.json"


def _legacy_files(root: Path) -> Iterable[Path]:
    for directory in (root, Path(), Path.home(), Path("/")):
        yield directory / ".dockercfg"


def _first(files: Iterable[Path], *, legacy: bool) -> Credentials:
    for file in files:
        try:
            with file.open("rb") as opened:
                return docker_config(opened.read(_MOST_BYTES), legacy=legacy)
        except FileNotFoundError:
            continue
        except (OSError, InvalidInput) as error:
            log.warning("%s: no registry credentials: %s", file, error)
    return {}
