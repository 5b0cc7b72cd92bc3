"""Where an agent is found when nothing else is said."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_DIR = Path("/var/lib/kubelet")
SOCKET_NAME = "kubengine.sock"
READ_ONLY_URL = "http://127.0.0.1:10255"


def default_socket(root_dir: str | os.PathLike[str] = ROOT_DIR) -> Path:
    """Where the agent of a root directory listens."""
    return Path(root_dir) / SOCKET_NAME
