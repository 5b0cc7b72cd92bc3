"""The host ids that an administrator gave the user `kubelet`, for pods with user namespaces of their own.

Asked once, when a node starts, by the machine's own `getsubids`, as they may stand in a directory service as
well as in `/etc/subuid`. Source: kubelet v1.36 `getKubeletMappings`.
"""

from __future__ import annotations

import pwd
import re
import shutil
from typing import Final

from engine.api.errors import InvalidInput, Unavailable
from engine.host.child import run_child

USER: Final = "kubelet"
PROGRAM: Final = "getsubids"
_SECONDS: Final = 60.0
_MOST_PRINTED: Final = 1 << 16
_ID_BITS: Final = 32
_LINE = re.compile(r"\S+\s+\S+\s+([0-9]{1,10})\s+([0-9]{1,10})\s*")


async def subordinate_ids() -> range | None:
    """None where the machine has no such user, or nothing that knows of subordinate ids.

    Raises `Unavailable` where the program fails, and `InvalidInput` where it tells of anything but one range,
    the same for users and groups: the node does not start, as nobody can tell which ids are other people's.
    """
    program = shutil.which(PROGRAM)
    if program is None or not _is_user(USER):
        return None
    users, groups = await _printed(program, USER), await _printed(program, "-g", USER)
    if users != groups:
        raise InvalidInput(f"mismatched subuids and subgids for user {USER!r}", subject=PROGRAM)
    return _one_range(users)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


async def _printed(*command: str) -> str:
    subject = " ".join((PROGRAM, *command[1:]))
    printed = await run_child(command, seconds=_SECONDS, most=_MOST_PRINTED, subject=subject)
    if printed.code:
        raise Unavailable(printed.said or f"it ended with {printed.code}", subject=subject)
    return printed.out.decode(errors="replace")


def _one_range(text: str) -> range:
    found = _LINE.fullmatch(text.strip("\n"))
    first, count = map(int, found.groups()) if found else (0, 0)
    if not found or first + count > 1 << _ID_BITS:
        raise InvalidInput(f"expected one line with one range of ids, got {text!r}", subject=PROGRAM)
    return range(first, first + count)
