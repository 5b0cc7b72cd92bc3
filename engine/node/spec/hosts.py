"""Builds the text of a pod's /etc/hosts. Pure.

Source: kubelet v1.36 (managedHostsFileContent, nodeHostsFileContent).
"""

from __future__ import annotations

from engine.api.pod import Pod
from engine.node.spec.hostname import PodHostname

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
