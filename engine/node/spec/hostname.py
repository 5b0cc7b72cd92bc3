"""What a pod calls itself: its host name and domain, and what the kernel of its sandbox is given. Pure.

Source: kubelet v1.36 (GeneratePodHostNameAndDomain, GetNodenameForKernel).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import InvalidInput
from engine.api.pod import Pod

MAX_HOSTNAME = 63
MAX_NODENAME = 64


@dataclass(frozen=True, slots=True)
class PodHostname:
    """`domain` is empty for a pod without a subdomain."""

    name: str
    domain: str = ""

    @property
    def fqdn(self) -> str:
        return f"{self.name}.{self.domain}" if self.domain else self.name


def pod_hostname(pod: Pod, cluster_domain: str) -> PodHostname:
    """`hostnameOverride` whole and without a domain, else `hostname` or the pod's name, cut to 63 bytes,
    with the subdomain's place in the cluster."""
    spec = pod.spec
    if spec.hostname_override is not None:
        return PodHostname(_cut(spec.hostname_override))
    name = _cut(spec.hostname or pod.metadata.name)
    if not spec.subdomain:
        return PodHostname(name)
    return PodHostname(name, f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}")


def sandbox_hostname(pod: Pod, cluster_domain: str) -> str:
    """Empty in the host's network, where the node's own name shows; with `setHostnameAsFQDN` the whole name.

    Raises `InvalidInput` for one that is too long for the kernel.
    """
    if pod.spec.host_network:
        return ""
    known = pod_hostname(pod, cluster_domain)
    if not (pod.spec.set_hostname_as_fqdn and known.domain):
        return known.name
    if len(known.fqdn) > MAX_NODENAME:
        text = (
            "failed to construct FQDN from pod hostname and cluster domain, "
            f"FQDN {known.fqdn} is too long ({MAX_NODENAME} characters is the max, "
            f"{len(known.fqdn)} characters requested)"
        )
        raise InvalidInput(text)
    return known.fqdn


def _cut(name: str) -> str:
    return name if len(name) <= MAX_HOSTNAME else name[:MAX_HOSTNAME].rstrip("-.")
