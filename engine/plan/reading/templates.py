"""Pod templates: stores the parts that pods of one workload share only once.

A cluster has many pods and few distinct sets of containers and amounts. Each distinct set becomes a template
with its sums, which `engine.tables` computes from a Pod object as in the agent; a pod row holds the
template's number.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.struct import decode_hook
from engine.plan.reading.documents import ContainerSpec, PodSpecFields
from engine.tables import CPU_LIMITED, MEMORY_LIMITED, PodEntry, ResourceNames, pod_entry

MAX_AMOUNT = 2**51
"""The largest accepted request: the sums of thousands of such pods still fit in 64 bits."""
MAX_RESOURCES = 64
MAX_KNOWN = 200_000
TEMPLATE_FLAGS = CPU_LIMITED | MEMORY_LIMITED
LIMITS = ("cpu", "memory", "ephemeral-storage")
FRACTIONS = ("memory", "ephemeral-storage")
_FLUSH = 16_384

_decoder = msgspec.json.Decoder(Pod, dec_hook=decode_hook)

Key = tuple[object, ...]


class Unusable(InvalidInput):
    """Raised for a pod whose amounts cannot be used; the subject is the field's path."""


class Templates:
    """Intern templates and build their table, in bounded chunks."""

    def __init__(self, resources: ResourceNames) -> None:
        self.resources = resources
        self._known: dict[Key, int | Unusable] = {}
        self._count = 0
        self._pending: list[tuple[str, PodEntry]] = []
        self._chunks: list[pa.Table] = []

    def number(self, spec: PodSpecFields) -> int:
        """Return the number of a pod's template. Raises `Unusable` with the faulty field as subject."""
        key: Key = (
            tuple(
                [
                    (c.name, c.image, bytes(c.resources), bytes(c.ports)) for c in spec.containers or ()
                ]
            ),
            tuple(
                [
                    (c.name, c.image, c.restart_policy, bytes(c.resources), bytes(c.ports))
                    for c in spec.init_containers
                ]
            )
            if spec.init_containers
            else None,
            bytes(spec.overhead),
            bytes(spec.resources),
            bytes(spec.node_selector),
            bytes(spec.affinity),
            bytes(spec.tolerations),
            bytes(spec.topology_spread_constraints),
        )  # fmt: skip
        found = self._known.get(key)
        if found is None:
            try:
                found = self._add(spec)
            except Unusable as fault:
                found = fault
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = found
        if isinstance(found, Unusable):
            raise Unusable(found.message, subject=found.subject)
        return found

    def _add(self, spec: PodSpecFields) -> int:
        plain: dict[str, Any] = {"containers": [_container(c) for c in spec.containers or ()]}
        if spec.init_containers:
            plain["initContainers"] = [_container(c) for c in spec.init_containers]
        plain |= {
            name: value
            for name, value in (
                ("overhead", spec.overhead),
                ("resources", spec.resources),
                ("nodeSelector", spec.node_selector),
                ("affinity", spec.affinity),
                ("tolerations", spec.tolerations),
                ("topologySpreadConstraints", spec.topology_spread_constraints),
            )
            if bytes(value)
        }
        try:
            text = msgspec.json.format(encode_json(plain), indent=-1)
            pod = _decoder.decode(b'{"spec":' + text + b"}")
        except msgspec.ValidationError as error:
            raise _located(msgspec.json.decode(text), str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unusable(str(error), subject="spec") from None
        return self.add_pod(pod, text.decode())

    def add_pod(self, pod: Pod, text: str) -> int:
        """Append the template of a typed pod; `text` is its spec as JSON. Raises `Unusable`."""
        pod.metadata.uid = pod.metadata.uid or "template"
        _check(pod)
        try:
            entry = pod_entry(pod)
        except InvalidInput as error:
            raise Unusable(error.message, subject="spec") from None
        self._intern(entry)
        self._pending.append((text, entry))
        self._count += 1
        if len(self._pending) >= _FLUSH:
            self._flush()
        return self._count - 1

    def _intern(self, entry: PodEntry) -> None:
        for name, amount in (*entry.requests.items(), *entry.ranking.items()):
            if amount > MAX_AMOUNT:
                raise Unusable(f"{amount} of {name} in all is more than a node has", subject="spec")
            intern(self.resources, name)

    def _flush(self) -> None:
        entries = [entry for _, entry in self._pending]
        columns: dict[str, Any] = {
            "spec": pa.array([text for text, _ in self._pending], pa.large_string()),
            "qos": np.array([entry.qos for entry in entries], np.uint8),
            "flags": np.array([entry.flags & TEMPLATE_FLAGS for entry in entries], np.uint8),
        }
        for name in self.resources.names:
            columns[f"request/{name}"] = np.array([e.requests.get(name, 0) for e in entries], np.int64)
            columns[f"ranking/{name}"] = np.array([e.ranking.get(name, 0) for e in entries], np.int64)
        for index, name in enumerate(LIMITS):
            columns[f"limit/{name}"] = np.array([e.limits[index] for e in entries], np.int64)
        for index, name in enumerate(FRACTIONS):
            columns[f"fraction/{name}"] = np.array([e.fraction[index] for e in entries], np.int64)
        self._chunks.append(pa.table(columns))
        self._pending.clear()

    def table(self) -> pa.Table:
        """Return the columns that `docs/snapshot-format.md` lists; amounts in milli-CPU and base units."""
        self._flush()
        table = pa.concat_tables(self._chunks, promote_options="default")
        for prefix in ("request", "ranking"):
            for name in self.resources.names:
                at = table.schema.get_field_index(f"{prefix}/{name}")
                if table.column(at).null_count:
                    table = table.set_column(at, f"{prefix}/{name}", table.column(at).fill_null(0))
        return table


def intern(resources: ResourceNames, name: str) -> int:
    """Return the id of a resource. Raises `Unusable` beyond `MAX_RESOURCES` names."""
    if name not in resources.ids and len(resources) >= MAX_RESOURCES:
        raise Unusable(f"{name[:80]!r} exceeds the {MAX_RESOURCES} resources that a snapshot can hold")
    try:
        return resources.intern(name)
    except InvalidInput as error:
        raise Unusable(f"{error.subject!r} is {error.message}") from None


def _container(container: ContainerSpec) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": container.name, "image": container.image}
    if container.restart_policy:
        plain["restartPolicy"] = container.restart_policy
    for name, value in (("resources", container.resources), ("ports", container.ports)):
        if bytes(value):
            plain[name] = value if isinstance(value, Raw) else Raw(value)
    return plain


def _amount_lists(pod: Pod) -> list[tuple[str, dict[str, Quantity]]]:
    lists: list[tuple[str, dict[str, Quantity]]] = []
    for group, containers in (("containers", pod.spec.containers), ("initContainers", pod.init_containers)):
        for index, container in enumerate(containers):
            where = f"spec.{group}[{index}].resources"
            lists += [(f"{where}.requests", container.requests), (f"{where}.limits", container.limits)]
    if pod.spec.resources is not None:
        lists += [
            ("spec.resources.requests", pod.spec.resources.requests or {}),
            ("spec.resources.limits", pod.spec.resources.limits or {}),
        ]
    return [*lists, ("spec.overhead", pod.spec.overhead or {})]


def _check(pod: Pod) -> None:
    for where, amounts in _amount_lists(pod):
        for name, quantity in amounts.items():
            if quantity.nano < 0:
                raise Unusable(f"{quantity} is negative", subject=f"{where}.{name}")
            if quantity.value > (MAX_AMOUNT if where.endswith("requests") else 2**63 - 1):
                raise Unusable(f"{str(quantity)[:64]} is more than a node has", subject=f"{where}.{name}")


def _located(spec: Any, message: str) -> Unusable:
    """Return the decoder's message with the name of the resource, which it omits for a value of a mapping."""
    text, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    if not path.endswith("[...]"):
        return Unusable(text, subject=path or "spec")
    try:
        amounts = _walk({"spec": spec}, path.removesuffix("[...]"))
        for name, value in amounts.items():
            try:
                decode_hook(Quantity, value)
            except (ValueError, TypeError):
                return Unusable(text, subject=f"{path.removesuffix('[...]')}.{name}")
    except (KeyError, IndexError, AttributeError, TypeError):
        pass
    return Unusable(text, subject=path)


def _walk(value: Any, path: str) -> Any:
    for part in path.split("."):
        name, _, index = part.partition("[")
        value = value[name]
        if index:
            value = value[int(index.rstrip("]"))]
    return value
