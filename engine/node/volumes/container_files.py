"""Creates the files of every container besides its volumes: /etc/hosts and the termination message file."""

from __future__ import annotations

import os
from pathlib import Path

from engine.api.pod import Container, Pod
from engine.cri.paths import hosts_path, last_words_path
from engine.host.files import replace_file
from engine.node.spec.hostname import PodHostname
from engine.node.spec.hosts import hosts_text


def termination_message_file(pod_directory: Path, container: Container, attempt: int) -> Path:
    """Create an empty, world-writable termination message file."""
    path = last_words_path(pod_directory, container.name, attempt)
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o666)
    finally:
        os.close(file)
    return path


def hosts_file(pod_directory: Path, pod: Pod, ips: tuple[str, ...], hostname: PodHostname) -> Path:
    """Write /etc/hosts of a pod, again for each of its containers."""
    node_hosts = Path("/etc/hosts").read_text() if pod.spec.host_network else ""
    path = hosts_path(pod_directory)
    replace_file(path, hosts_text(pod, ips, hostname, node_hosts), mode=0o644, durable=False)
    return path
