"""The names of sysctls, and the namespace that each belongs to.

Source: kubelet v1.36 `component-helpers/node/util/sysctl`.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST_NAME: Final = 253

_NAME = re.compile(r"(?:[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?")
_IPC_NAMES: Final = frozenset(
    f"kernel.{name}"
    for name in (
        *("sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "shm"),
        *("msgmax", "msgmnb", "msgmni", "msg"),
    )
)


def is_sysctl_name(name: str) -> bool:
    """Return whether the text is a name, its parts separated by dots or slashes."""
    return len(name) <= LONGEST_NAME and _NAME.fullmatch(name) is not None


def dotted(name: str) -> str:
    """Return the name with dots between its parts: `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x`."""
    # As sysctl(8): the first separator says which of the two separates, and the other is part of a name.
    separator = re.search(r"[./]", name)
    if separator is None or separator[0] == ".":
        return name
    return name.translate(str.maketrans("./", "/."))


def namespace_of(name: str) -> str:
    """Return `IPC` or `Net`; an empty text if the sysctl has no namespace."""
    name = dotted(name)
    if name in _IPC_NAMES or name.startswith("fs.mqueue."):
        return "IPC"
    return "Net" if name.startswith("net.") else ""
