"""Make what can be at a path where a file is expected."""

from __future__ import annotations

import os
from pathlib import Path

NO_FILES = ("directory", "full directory", "fifo", "dangling link", "link to itself")


def make_no_file(path: Path, kind: str) -> None:
    match kind:
        case "directory":
            path.mkdir()
        case "full directory":
            (path / "below").mkdir(parents=True)
        case "fifo":
            os.mkfifo(path)
        case "dangling link":
            path.symlink_to("nowhere")
        case "link to itself":
            path.symlink_to(path.name)
        case _:
            raise ValueError(kind)
