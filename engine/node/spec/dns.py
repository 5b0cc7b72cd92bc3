"""Computes a pod's resolver settings, its host name and domain, and the name that its sandbox's kernel gets.

Source: kubelet v1.36 (`network/dns`, GeneratePodHostNameAndDomain, GetNodenameForKernel).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Pod, PodDNSConfig
from engine.wire import cri_v1_pb2 as cri

MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_LINE = 2048
MAX_SEARCH_PATH = 253
MAX_HOSTNAME = 63
MAX_NODENAME = 64
_CLUSTER_OPTIONS = ("ndots:5",)


def pod_dns(pod: Pod, config: KubeletConfiguration, host_ip: str = "") -> cri.DNSConfig:
    """Compute the settings; entries beyond a resolver's limits are dropped.

    Raises `Refused` if the node's resolv.conf is needed and cannot be read.
    """
    policy = pod.spec.dns_policy
    if policy == "None":
        answer = cri.DNSConfig()
    elif _wants_cluster_dns(pod) and config.cluster_dns:
        answer = _cluster_dns(pod.metadata.namespace, config)
    elif config.resolv_conf:
        answer = _read(config.resolv_conf)
    else:
        answer = _no_lookups(host_ip)
    if pod.spec.dns_config is not None:
        answer = _with_pods_own(answer, pod.spec.dns_config)
    return cri.DNSConfig(
        servers=answer.servers[:MAX_NAMESERVERS],
        searches=_fitting(answer.searches),
        options=answer.options,
    )


def _wants_cluster_dns(pod: Pod) -> bool:
    policy = pod.spec.dns_policy
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod.spec.host_network)


def _cluster_dns(namespace: str, config: KubeletConfiguration) -> cri.DNSConfig:
    """Combine the cluster's settings with the node's search paths, which come last; the node's options do not
    count.
    """
    host = _read(config.resolv_conf) if config.resolv_conf else cri.DNSConfig()
    domain = config.cluster_domain
    own = [f"{namespace}.svc.{domain}", f"svc.{domain}", domain] if domain else []
    searches = _once([*own, *host.searches]) if own else host.searches
    return cri.DNSConfig(servers=config.cluster_dns or [], searches=searches, options=_CLUSTER_OPTIONS)


def _no_lookups(host_ip: str) -> cri.DNSConfig:
    """Return settings for a node without resolv.conf; with empty ones the runtime would use the machine's."""
    server = "::1" if host_ip and ip_address(host_ip).version == 6 else "127.0.0.1"
    return cri.DNSConfig(servers=[server], searches=["."])


def _with_pods_own(answer: cri.DNSConfig, own: PodDNSConfig) -> cri.DNSConfig:
    options = dict(_split(option) for option in answer.options)
    options |= {option.name: option.value or "" for option in own.options or []}
    return cri.DNSConfig(
        servers=_once([*answer.servers, *(own.nameservers or [])]),
        searches=_once([*answer.searches, *(own.searches or [])]),
        options=[f"{name}:{value}" if value else name for name, value in options.items()],
    )


def _fitting(searches: Sequence[str]) -> list[str]:
    """Limit the search paths: some resolvers abort on a longer path, and a longer line is cut at its end."""
    kept = [path for path in searches[:MAX_SEARCHES] if len(path) <= MAX_SEARCH_PATH]
    while len(" ".join(kept)) > MAX_SEARCH_LINE:
        kept.pop()
    return kept


def _read(resolv_conf: str) -> cri.DNSConfig:
    """Parse resolv.conf; the last search line counts, and the last of each option."""
    try:
        text = Path(resolv_conf).read_text()
    except FileNotFoundError:
        return cri.DNSConfig()
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=resolv_conf, errno=error.errno) from error
    servers, searches, options = [], [], dict[str, str]()
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "nameserver" and rest:
            servers.append(rest[0])
        elif word == "search":
            # A domain with and without its final dot is one, and counts once against the limits.
            searches = [path.removesuffix(".") for path in rest if path != "."]
        elif word == "options":
            options |= {_split(option)[0]: option for option in rest}
    return cri.DNSConfig(servers=servers, searches=searches, options=options.values())


def _split(option: str) -> tuple[str, str]:
    name, _, value = option.partition(":")
    return name, value


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


class PodHostname(msgspec.Struct, frozen=True):
    """Hold the host name of a pod; `domain` is empty without a subdomain."""

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
