"""Kernel tunables that a kubelet sets, or only checks with `protectKernelDefaults`.

Source: kubelet v1.36 (`setupKernelTunables`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import Refused

TUNABLES: Final[Mapping[str, int]] = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Paths below /proc/sys and their values: memory may be overcommitted; out of memory, the OOM killer acts
instead of a panic; a panic reboots after 10 s; an oops causes a panic; root may have keys for a million
containers.
"""

log = logging.getLogger("kubengine.hostsetup")


class Differing(msgspec.Struct, frozen=True):
    """Hold a tunable with a wrong value; `actual` is None if it cannot be read."""

    name: str
    wanted: int
    actual: int | None

    def __str__(self) -> str:
        actual = "unreadable" if self.actual is None else self.actual
        return f"invalid kernel flag: {self.name}, expected value: {self.wanted}, actual value: {actual}"


def differing(directory: Path) -> list[Differing]:
    """Return the tunables below `directory` (/proc/sys) that differ from the kubelet's values."""
    found = ((name, wanted, _read(directory / name)) for name, wanted in TUNABLES.items())
    return [Differing(name, wanted, actual) for name, wanted, actual in found if actual != wanted]


def check_tunables(directory: Path) -> None:
    """Raise `Refused` naming every tunable that differs (`protectKernelDefaults: true`)."""
    wrong = differing(directory)
    if wrong:
        text = "; ".join(map(str, wrong))
        raise Refused(f"protectKernelDefaults: {text}", subject=str(directory))


def set_tunables(directory: Path) -> None:
    """Write the kubelet's values. One warning names those that could not be written."""
    failed = []
    for each in differing(directory):
        try:
            _write(directory / each.name, each.wanted)
        except OSError as error:
            failed.append(f"{each.name}={each.wanted} ({error.strerror})")
        else:
            log.info("%s is now %s; it was %s", directory / each.name, each.wanted, each.actual)
    if failed:
        log.warning("kernel tunables could not be set below %s: %s", directory, ", ".join(failed))


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, value: int) -> None:
    """Write a tunable; never create a missing file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
