"""Reads the host ids that an administrator assigned to the user `kubelet`, for pods with user namespaces.

The agent asks the machine's `getsubids` once at start, because the ids may come from a directory service as
well as from `/etc/subuid`. Source: kubelet v1.36 `getKubeletMappings`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, Unavailable
from engine.host.child import run_child, which

USER: Final = "kubelet"
PASSWD: Final = Path("/etc/passwd")
PROGRAM: Final = "getsubids"
_SECONDS: Final = 60.0
_MOST_PRINTED: Final = 1 << 16
_ID_BITS: Final = 32
_LINE = re.compile(r"\S+\s+\S+\s+([0-9]{1,10})\s+([0-9]{1,10})\s*")


async def subordinate_ids() -> range | None:
    """Return the ids, or None if the machine has no such user or no `getsubids`.

    Raises `Unavailable` if the program fails, and `InvalidInput` if it returns anything but one range that
    is equal for users and groups. The node does not start then, because the remaining ids may belong to
    others.
    """
    program = which(PROGRAM)
    if program is None or not _is_user(USER):
        return None
    users, groups = await _printed(program, USER), await _printed(program, "-g", USER)
    # A pod has one range, which is written for users and for groups.
    if users != groups:
        raise InvalidInput(f"mismatched subuids and subgids for user {USER!r}", subject=PROGRAM)
    return _one_range(users)


def _is_user(name: str) -> bool:
    """Tell whether a user is in passwd(5). The kubelet, which is linked statically, reads no more than that.

    The C library would load a plugin of each directory service into the agent.
    """
    entries = PASSWD.read_bytes().splitlines() if PASSWD.exists() else []
    return any(entry.startswith(name.encode() + b":") for entry in entries)


async def _printed(*command: str) -> str:
    subject = " ".join((PROGRAM, *command[1:]))
    printed = await run_child(command, seconds=_SECONDS, most=_MOST_PRINTED, subject=subject)
    if printed.code:
        raise Unavailable(printed.errors or f"it exited with {printed.code}", subject=subject)
    return printed.out.decode(errors="replace")


def _one_range(text: str) -> range:
    found = _LINE.fullmatch(text.strip("\n"))
    first, count = map(int, found.groups()) if found else (0, 0)
    if not found or first + count > 1 << _ID_BITS:
        raise InvalidInput(f"expected one line with one range of ids, got {text!r}", subject=PROGRAM)
    return range(first, first + count)
