"""Shows this process under another name, as tools that look for a kubelet expect it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc/self")
_ARG_START, _ARG_END = 45, 46
"""Positions of arg_start and arg_end behind the command in /proc/PID/stat (proc(5))."""


def name_process(name: str, arguments: Sequence[str]) -> None:
    """Make `pgrep`, `pidof` and `ps` show this process as `name` with `arguments`.

    Overwrites the memory that /proc/PID/cmdline shows, whose size stays as it is: longer text is cut off.
    Leaves the process as it is where the kernel forbids this.
    """
    with suppress(OSError, ValueError, IndexError):
        (PROC / "comm").write_text(name)
        fields = (PROC / "stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        size = end - start
        shown = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in (name, *arguments))
        with (PROC / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown[: size - 1].ljust(size, b"\0"))
