"""Names and name resolution: host name, DNS policy and configuration, host aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.pod import Pod
from engine.api.validation.names import dns_label, is_address, is_subdomain, one_of

_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None", "")
_SEARCH = re.compile(r"[a-z0-9_](?:[-a-z0-9_]*[a-z0-9_])?(?:\.[a-z0-9_](?:[-a-z0-9_]*[a-z0-9_])?)*")
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 32, 2048


def network_problems(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    for name, text in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if text:
            yield from dns_label(text, f"spec.{name}")
    for index, alias in enumerate(spec.host_aliases or []):
        where = f"spec.hostAliases[{index}]"
        if not is_address(alias.ip):
            yield f"{where}.ip: expected an IP address, got {alias.ip[:64]!r}"
        for number, hostname in enumerate(alias.hostnames or []):
            if not is_subdomain(hostname):
                yield f"{where}.hostnames[{number}]: expected a DNS subdomain, got {hostname[:64]!r}"
    yield from one_of(spec.dns_policy, _POLICIES, "spec.dnsPolicy")
    yield from _dns_config(pod)


def _dns_config(pod: Pod) -> Iterator[str]:
    config, where = pod.spec.dns_config, "spec.dnsConfig"
    servers = (config and config.nameservers) or []
    if pod.spec.dns_policy == "None" and not servers:
        yield f"{where}.nameservers: expected at least one with dnsPolicy None"
    if config is None:
        return
    if len(servers) > _MOST_NAMESERVERS:
        yield f"{where}.nameservers: expected at most {_MOST_NAMESERVERS}, got {len(servers)}"
    for index, server in enumerate(servers):
        if not is_address(server):
            yield f"{where}.nameservers[{index}]: expected an IP address, got {server[:64]!r}"
    searches = config.searches or []
    if len(searches) > _MOST_SEARCHES or len(" ".join(searches)) > _LONGEST_SEARCHES:
        yield f"{where}.searches: at most {_MOST_SEARCHES} of together {_LONGEST_SEARCHES} characters"
    for index, search in enumerate(searches):
        name = search.removesuffix(".")
        if search != "." and (len(name) > 253 or _SEARCH.fullmatch(name) is None):
            yield f"{where}.searches[{index}]: expected a domain, got {search[:64]!r}"
    for index, option in enumerate(config.options or []):
        if not option.name:
            yield f"{where}.options[{index}]: expected a name"
