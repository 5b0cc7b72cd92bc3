"""Names and name resolution: host name, DNS policy and configuration, host aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.pod import Pod
from engine.api.validation.names import address, dns_label, dns_subdomain, one_of

_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None", "")
_SEARCH_LABEL = r"_?[a-z0-9](?:[-a-z0-9_]*[a-z0-9])?"
_SEARCH = re.compile(rf"{_SEARCH_LABEL}(?:\.{_SEARCH_LABEL})*")
_LONGEST_HOSTNAME = 64
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 32, 2048


def network_problems(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    for name, text in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if text:
            yield from dns_label(text, f"spec.{name}")
    yield from _hostname_override(pod)
    for index, alias in enumerate(spec.host_aliases or []):
        where = f"spec.hostAliases[{index}]"
        yield from address(alias.ip, f"{where}.ip")
        for number, hostname in enumerate(alias.hostnames or []):
            yield from dns_subdomain(hostname, f"{where}.hostnames[{number}]")
    yield from one_of(spec.dns_policy, _POLICIES, "spec.dnsPolicy")
    yield from _dns_config(pod)


def _hostname_override(pod: Pod) -> Iterator[str]:
    spec, field = pod.spec, "spec.hostnameOverride"
    name = spec.hostname_override
    if name is None:
        return
    if spec.set_hostname_as_fqdn:
        yield f"{field}: must not be set with setHostnameAsFQDN"
    if spec.host_network:
        yield f"{field}: must not be set with hostNetwork"
    if len(name) > _LONGEST_HOSTNAME:
        yield f"{field}: expected at most {_LONGEST_HOSTNAME} characters, got {len(name)}"
    yield from dns_subdomain(name, field)


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
        yield from address(server, f"{where}.nameservers[{index}]")
    searches = config.searches or []
    if len(searches) > _MOST_SEARCHES or len(" ".join(searches)) > _LONGEST_SEARCHES:
        yield f"{where}.searches: at most {_MOST_SEARCHES} with {_LONGEST_SEARCHES} characters in total"
    for index, search in enumerate(searches):
        name = search.removesuffix(".")
        if search != "." and (len(name) > 253 or _SEARCH.fullmatch(name) is None):
            yield f"{where}.searches[{index}]: expected a domain, got {search[:64]!r}"
    for index, option in enumerate(config.options or []):
        if not option.name:
            yield f"{where}.options[{index}]: expected a name"
