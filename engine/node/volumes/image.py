"""Checks whether the runtime supports image volumes, and subPaths in them."""

from __future__ import annotations

import re
from typing import Final

from engine.api.errors import Refused

MOUNTS: Final = "image volumes"
SUB_PATHS: Final = "a subPath in an image volume"
_SINCE: Final = {MOUNTS: (2, 1), SUB_PATHS: (2, 2)}
"""The first versions of containerd that support each feature, which CRI does not report."""


def check_sub_path(sub_path: str, runtime: str, version: str) -> None:
    """Raise `Refused` for a runtime that would ignore the subPath and mount the whole image."""
    if sub_path and (why := too_old(SUB_PATHS, runtime, version)):
        raise Refused(f"{why}, which would mount the whole image")


def too_old(feature: str, runtime: str, version: str) -> str:
    """Return why the runtime does not support `feature`; '' if it does, or if that is unknown. `version` is
    the runtime's.
    """
    numbers = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    least = _SINCE[feature]
    if runtime != "containerd" or numbers is None or (int(numbers[1]), int(numbers[2])) >= least:
        return ""
    return f"containerd {least[0]}.{least[1]} or later is needed for {feature}, and this is {version}"
