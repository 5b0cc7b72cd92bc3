"""Computes a pod's host name and domain, and the name that the kernel of its sandbox gets. Pure.

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
    """The host name of a pod; `domain` is empty without a subdomain."""

    name: str
    domain: str = ""

    @property
    def fqdn(self) -> str:
        return f"{self.name}.{self.domain}" if self.domain else self.name


def pod_hostname(pod: Pod, cluster_domain: str) -> PodHostname:
    """Compute host name and domain.

    `hostnameOverride` is used as it is and has no domain; otherwise `hostname` or the pod's name is cut to
    63 bytes, and the subdomain gives the domain in the cluster.
    """
    spec = pod.spec
    if spec.hostname_override is not None:
        return PodHostname(_cut(spec.hostname_override))
    name = _cut(spec.hostname or pod.metadata.name)
    if not spec.subdomain:
        return PodHostname(name)
    return PodHostname(name, f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}")


def sandbox_hostname(pod: Pod, cluster_domain: str) -> str:
    """Return the host name of the sandbox: empty in the host's network; the whole name with
    `setHostnameAsFQDN`.

    Raises `InvalidInput` if the name is too long for the kernel.
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
