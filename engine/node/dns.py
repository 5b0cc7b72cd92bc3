"""A pod's resolver settings from its DNS policy and the node's resolv.conf."""

from __future__ import annotations

from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.wire import cri_v1_pb2 as cri

MAX_NAMESERVERS = 3


def pod_dns(pod: Pod, config: KubeletConfiguration) -> cri.DNSConfig:
    """Raises `Refused` when the node's resolv.conf is needed and cannot be read."""
    policy = pod.spec.dns_policy
    cluster = policy == "ClusterFirst" and not pod.spec.host_network
    cluster = (cluster or policy == "ClusterFirstWithHostNet") and bool(config.cluster_dns)
    answer = cri.DNSConfig()
    if policy != "None":
        answer = _host_dns(config.resolv_conf)
    if cluster:
        domain, namespace = config.cluster_domain, pod.metadata.namespace
        searches = [f"{namespace}.svc.{domain}", f"svc.{domain}", domain] if domain else []
        answer = cri.DNSConfig(
            servers=config.cluster_dns or [],
            searches=[*searches, *answer.searches],
            options=["ndots:5", *answer.options],
        )
    extra = pod.spec.dns_config
    if extra is not None:
        servers = dict.fromkeys([*answer.servers, *(extra.nameservers or [])])
        searches = list(dict.fromkeys([*answer.searches, *(extra.searches or [])]))
        options = [f"{o.name}:{o.value}" if o.value is not None else o.name for o in extra.options or []]
        kept = [
            o for o in answer.options if o.partition(":")[0] not in {n.partition(":")[0] for n in options}
        ]
        answer = cri.DNSConfig(servers=list(servers), searches=searches, options=[*kept, *options])
    del answer.servers[MAX_NAMESERVERS:]
    return answer


def _host_dns(resolv_conf: str) -> cri.DNSConfig:
    answer = cri.DNSConfig()
    if not resolv_conf:
        return answer
    try:
        text = Path(resolv_conf).read_text()
    except FileNotFoundError:
        return answer
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=resolv_conf, errno=error.errno) from error
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "nameserver" and rest:
            answer.servers.append(rest[0])
        elif word == "search":
            answer.searches[:] = rest
        elif word == "options":
            answer.options.extend(rest)
    return answer
