"""Creates the files that every container has besides its volumes: /etc/hosts and the termination message."""

from __future__ import annotations

import os
from pathlib import Path

from engine.api.pod import Container, Pod
from engine.cri.paths import hosts_path, termination_message_path
from engine.host.files import replace_file
from engine.node.spec.dns import PodHostname

NODE_HOSTS = Path("/etc/hosts")
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_LOOPBACK = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def hosts_text(pod: Pod, ips: tuple[str, ...], hostname: PodHostname, node_hosts: str) -> str:
    """Build the text; `node_hosts` is the node's own file, which pods in the host's network see."""
    if pod.spec.host_network:
        text = "# Kubernetes-managed hosts file (host network).\n" + node_hosts
    else:
        names = f"{hostname.fqdn}\t{hostname.name}" if hostname.domain else hostname.name
        text = "# Kubernetes-managed hosts file.\n" + _LOOPBACK
        text += "".join(f"{ip}\t{names}\n" for ip in ips)
    if pod.spec.host_aliases:
        text += "\n# Entries added by HostAliases.\n"
        for alias in pod.spec.host_aliases:
            text += "\t".join([alias.ip, "\t".join(alias.hostnames or [])]) + "\n"
    return text


def termination_message_file(pod_directory: Path, container: Container, attempt: int) -> Path:
    """Create an empty, world-writable termination message file."""
    path = termination_message_path(pod_directory, container.name, attempt)
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    try:
        file = os.open(path, _NEW_FILE, 0o600)
    except FileExistsError:
        # Never reuse an existing file: a container of the pod may have replaced it by a link to a host
        # file.
        path.unlink()
        file = os.open(path, _NEW_FILE, 0o600)
    try:
        # open() applies the umask, fchmod() does not: the container may run as any user.
        os.fchmod(file, 0o666)
    finally:
        os.close(file)
    return path


def hosts_file(pod_directory: Path, pod: Pod, ips: tuple[str, ...], hostname: PodHostname) -> Path:
    """Write the pod's /etc/hosts and return its path. It is written again for each container."""
    # The node's file may contain any bytes, which the pod's file repeats unchanged.
    node_hosts = os.fsdecode(NODE_HOSTS.read_bytes()) if pod.spec.host_network else ""
    path = hosts_path(pod_directory)
    text = os.fsencode(hosts_text(pod, ips, hostname, node_hosts))
    # Not synced to disk, because it is written again before each container starts.
    replace_file(path, text, mode=0o644, durable=False)
    return path
