"""Define the agent's default paths and addresses."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_DIR = Path("/var/lib/kubelet")
SOCKET_NAME = "kubengine.sock"
READ_ONLY_URL = "http://127.0.0.1:10255"


def default_socket(root_dir: str | os.PathLike[str] = ROOT_DIR) -> Path:
    """Return the path of the socket of an agent with this root directory."""
    return Path(root_dir) / SOCKET_NAME
