"""Volumes that are images: the part of one that a container mounts, and runtimes too old for them."""

from __future__ import annotations

import re
from typing import Final

from engine.api.errors import Refused

MOUNTS: Final = "image volumes"
SUB_PATHS: Final = "a subPath in an image volume"
_SINCE: Final = {MOUNTS: (2, 1), SUB_PATHS: (2, 2)}
"""The first versions of containerd that support it; CRI does not report whether a runtime does."""


def check_sub_path(sub_path: str, runtime: str, version: str) -> None:
    """Raise `Refused` for a runtime that would ignore the subPath and mount the whole image."""
    if sub_path and (why := too_old(SUB_PATHS, runtime, version)):
        raise Refused(f"{why}, which would mount the whole image")


def too_old(what: str, runtime: str, version: str) -> str:
    """Return why a runtime does not support it, '' if it does or if that is unknown. `version` is the
    runtime's own.
    """
    numbers = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    least = _SINCE[what]
    if runtime != "containerd" or numbers is None or (int(numbers[1]), int(numbers[2])) >= least:
        return ""
    return f"containerd {least[0]}.{least[1]} or later is needed for {what}, and this is {version}"
