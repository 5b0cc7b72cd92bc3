"""Convert a caller's pods and nodes: dicts as `kubectl get -o json` prints them, or typed objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias, TypeVar

from engine.api.config import KubeletConfiguration
from engine.api.defaults import apply_defaults
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.api.resources import scaled
from engine.api.struct import to_builtins

Document: TypeAlias = Mapping[str, Any]
PodLike: TypeAlias = Pod | Document
NodeLike: TypeAlias = Node | Document
ConfigLike: TypeAlias = KubeletConfiguration | Document
Amount: TypeAlias = int | str | Quantity

T = TypeVar("T")


def pod_of(pod: PodLike) -> Pod:
    """Return a pod with an API server's defaults; a typed pod that lacks some is copied.

    Raise `InvalidInput` with the pod's name and the field.
    """
    if not isinstance(pod, Pod):
        return convert(pod, Pod, f"pod {_name(pod)}")
    # A typed pod usually comes from an API server; a copy of each of thousands would cost more than the
    # answer.
    if not _lacks_requests(pod):
        return pod
    pod = deepcopy(pod)
    apply_defaults(pod)
    return pod


def pods_of(pods: Iterable[PodLike]) -> list[Pod]:
    """Return several pods; one without a uid gets `namespace/name` as its uid."""
    found = []
    for one in pods:
        pod = pod_of(one)
        if not pod.metadata.uid:
            pod = deepcopy(pod)
            pod.metadata.uid = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
        found.append(pod)
    return found


def node_of(node: NodeLike) -> Node:
    """Return a typed Node. Raise `InvalidInput` with the node's name and the field."""
    return node if isinstance(node, Node) else convert(node, Node, f"node {_name(node)}")


def config_of(config: ConfigLike | None) -> KubeletConfiguration:
    """Return a typed KubeletConfiguration; the defaults for None. Raise `InvalidInput` with the field."""
    if config is None:
        return KubeletConfiguration()
    if isinstance(config, KubeletConfiguration):
        return config
    return convert(config, KubeletConfiguration, "KubeletConfiguration")


def base_units(resource: str, amount: Amount, subject: str = "") -> int:
    """Return an amount of a resource as an integer: milli-CPU for cpu, bytes or a count otherwise.

    An integer is in these units already. Raise `InvalidInput` with `subject`, by default the resource, for a
    text that is not a quantity.
    """
    if isinstance(amount, int):
        return amount
    if isinstance(amount, str):
        try:
            amount = Quantity.parse(amount)
        except InvalidInput as error:
            raise InvalidInput(error.message, subject=subject or f"amount of {resource}") from None
    return scaled(resource, amount)


def to_document(value: Pod | Node | KubeletConfiguration) -> dict[str, Any]:
    """Return a typed object as the plain document that `kubectl get -o json` shows; undoes `convert`."""
    document: dict[str, Any] = to_builtins(value)
    return document


def container_of(pod: Pod, name: str) -> Container | None:
    """Return the container with that name."""
    return next((container for container in pod.all_containers if container.name == name), None)


def _name(document: Document) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _lacks_requests(pod: Pod) -> bool:
    """Tell whether a container has a limit without the matching request, which no API server returns."""
    whole = pod.spec.resources
    if whole is not None and (whole.limits or {}).keys() - (whole.requests or {}).keys():
        return True
    return any(container.limits.keys() - container.requests.keys() for container in pod.all_containers)
