"""Names processor architectures as Go does: images, labels of nodes and build metrics use these names."""

from __future__ import annotations

from typing import Final

_NAMES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv6l": "arm",
    "armv7l": "arm",
    "armv8l": "arm",
    "i386": "386",
    "i686": "386",
    "loongarch64": "loong64",
}


def go_architecture(machine: str) -> str:
    """Return Go's name for a machine that `uname` names; most have the same."""
    return _NAMES.get(machine, machine)
