"""Builds the environment variables of services, in the two forms that clients read. Pure.

Source: kubelet v1.36 (`pkg/kubelet/envvars`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from engine.api.objects.cluster_objects import Service

_NO_ADDRESS: Final = ("", "None")
_API_SERVER: Final = ("default", "kubernetes")


def service_variables(services: Iterable[Service], namespace: str, links: bool) -> dict[str, str]:
    """Return the variables of the API server for every pod, and with `links` those of the
    namespace's services.
    """
    chosen: dict[str, Service] = {}
    for service in services:
        meta = service.metadata
        if service.spec.cluster_ip in _NO_ADDRESS or not service.spec.ports:
            continue
        if (meta.namespace, meta.name) == _API_SERVER:
            chosen.setdefault(meta.name, service)
        elif links and meta.namespace == namespace:
            chosen[meta.name] = service
    return {name: value for key in sorted(chosen) for name, value in _variables(chosen[key])}


def _variables(service: Service) -> Iterator[tuple[str, str]]:
    address, ports = service.spec.cluster_ip, service.spec.ports or []
    prefix = _variable_name(service.metadata.name)
    yield f"{prefix}_SERVICE_HOST", address
    yield f"{prefix}_SERVICE_PORT", str(ports[0].port)
    for port in ports:
        if port.name:
            yield f"{prefix}_SERVICE_PORT_{_variable_name(port.name)}", str(port.port)
    host = f"[{address}]" if ":" in address else address
    for index, port in enumerate(ports):
        protocol = (port.protocol or "TCP").lower()
        url = f"{protocol}://{host}:{port.port}"
        if index == 0:
            yield f"{prefix}_PORT", url
        of_port = f"{prefix}_PORT_{port.port}_{protocol.upper()}"
        yield of_port, url
        yield f"{of_port}_PROTO", protocol
        yield f"{of_port}_PORT", str(port.port)
        yield f"{of_port}_ADDR", address


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()
