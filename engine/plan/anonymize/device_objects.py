"""Replace the names in slices, claims, classes and taint rules of dynamic resources.

A selector is an expression that may name anything. Its outcome for each device of the snapshot becomes an
attribute of the device, which the new expression reads: it selects the same devices, and fails for the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.struct import decode_hook
from engine.plan.anonymize.pseudonyms import WELL_KNOWN, Pseudonyms, replaced_taint, selecting
from engine.plan.claims.objects import KINDS, OfferedDevice
from engine.plan.claims.selectors import SelectorError, Selectors
from engine.plan.snapshot.columns import TEMPLATE_CLAIM

Document = dict[str, Any]
OUTCOMES: Final = "selected"
"""The domain of the attributes that hold the outcomes of selectors."""
_OBJECT_NAMES: Final = {
    "ResourceSlice": "slice",
    "ResourceClaim": "resourceclaim",
    "ResourceClaimTemplate": "claimtemplate",
    "DeviceClass": "deviceclass",
    "DeviceTaintRule": "taintrule",
}

_device = msgspec.json.Decoder(OfferedDevice, dec_hook=decode_hook)


def device_objects(names: Pseudonyms, table: pa.Table) -> pa.Table:
    """Return the table of dynamic resources with other names.

    Raise `InvalidInput` for an unknown kind, and `Unavailable` if selectors cannot be evaluated.
    """
    rows = table.to_pylist()
    for number, row in enumerate(rows):
        if row["kind"] not in KINDS:
            raise InvalidInput(f"unknown kind {row['kind']!r}", subject=f"dynamic_resources.kind[{number}]")
    documents = [msgspec.json.decode(row["document"]) for row in rows]
    # The allocator goes through pools and their slices in the order of their names.
    slices = [one for row, one in zip(rows, documents, strict=True) if row["kind"] == "ResourceSlice"]
    names.in_order("slice", (one["metadata"]["name"] for one in slices))
    names.in_order("driver", (one["spec"]["driver"] for one in slices))
    names.in_order("pool", (one["spec"]["pool"]["name"] for one in slices))
    replaced = _Replacement(names, documents)
    fresh = [
        {
            "kind": row["kind"],
            "namespace": names.namespace(row["namespace"]),
            "name": names.of(_OBJECT_NAMES[row["kind"]], row["name"]),
            "document": encode_json(replaced.document(row["kind"], document)).decode(),
        }
        for row, document in zip(rows, documents, strict=True)
    ]
    return pa.Table.from_pylist(fresh, schema=table.schema)


def device_claims(names: Pseudonyms, text: str) -> str:
    """Return the names of a pod's ResourceClaims, separated by spaces."""
    return " ".join(
        TEMPLATE_CLAIM + names.of("claimtemplate", one.removeprefix(TEMPLATE_CLAIM))
        if one.startswith(TEMPLATE_CLAIM)
        else names.of("resourceclaim", one)
        for one in text.split()
    )


class _Replacement:
    """Replace names in documents of v1; `documents` are all of a snapshot."""

    def __init__(self, names: Pseudonyms, documents: list[Document]) -> None:
        self._names = names
        self._expressions = {text: number for number, text in enumerate(sorted(_expressions(documents)), 1)}
        self._selectors = Selectors()

    def document(self, kind: str, document: Document) -> Document:
        names = self._names
        meta = document.get("metadata") or {}
        kept = {"name": names.of(_OBJECT_NAMES[kind], meta.get("name", ""))}
        if meta.get("namespace"):
            kept["namespace"] = names.namespace(meta["namespace"])
        if meta.get("uid"):
            kept["uid"] = names.of("uid", meta["uid"])
        spec = document.get("spec") or {}
        if kind == "ResourceSlice":
            return {"metadata": kept, "spec": self._slice(spec)}
        if kind == "DeviceClass":
            return {"metadata": kept, "spec": self._demand(spec)}
        if kind == "DeviceTaintRule":
            chosen = {name: names.of(name, one) for name, one in (spec.get("deviceSelector") or {}).items()}
            return {
                "metadata": kept,
                "spec": {"taint": replaced_taint(names, spec["taint"])}
                | ({"deviceSelector": chosen} if "deviceSelector" in spec else {}),
            }
        if kind == "ResourceClaimTemplate":
            return {"metadata": kept, "spec": {"spec": self._claim(spec.get("spec") or {})}}
        return {"metadata": kept, "spec": self._claim(spec), "status": self._status(document.get("status"))}

    def _slice(self, spec: Document) -> Document:
        names = self._names
        fresh = spec | {"driver": names.of("driver", spec["driver"]), **self._place(spec)}
        fresh["pool"] = spec["pool"] | {"name": names.of("pool", spec["pool"]["name"])}
        if spec.get("sharedCounters"):
            fresh["sharedCounters"] = [
                {"name": names.of("counterset", one["name"]), **self._counters(one)}
                for one in spec["sharedCounters"]
            ]
        if spec.get("devices"):
            fresh["devices"] = [self._device(spec["driver"], one) for one in spec["devices"]]
        return fresh

    def _device(self, driver: str, device: Document) -> Document:
        names = self._names
        fresh = device | {"name": names.of("device", device["name"]), **self._place(device)}
        attributes = {
            self._qualified(name): self._attribute(value)
            for name, value in (device.get("attributes") or {}).items()
        }
        attributes |= self._outcomes(driver, device)
        if attributes:
            fresh["attributes"] = attributes
        if device.get("capacity"):
            fresh["capacity"] = {self._qualified(name): one for name, one in device["capacity"].items()}
        if device.get("consumesCounters"):
            fresh["consumesCounters"] = [
                {"counterSet": names.of("counterset", one["counterSet"]), **self._counters(one)}
                for one in device["consumesCounters"]
            ]
        if device.get("taints"):
            fresh["taints"] = [replaced_taint(names, one) for one in device["taints"]]
        return fresh

    def _place(self, place: Document) -> Document:
        """Return which nodes reach a slice or a device."""
        fresh: Document = {}
        if place.get("nodeName"):
            fresh["nodeName"] = self._names.of("node", place["nodeName"])
        if place.get("nodeSelector"):
            fresh["nodeSelector"] = selecting(self._names, place["nodeSelector"])
        return fresh

    def _counters(self, holder: Document) -> Document:
        counters = holder.get("counters")
        if not counters:
            return {}
        return {"counters": {self._names.of("counter", name): one for name, one in counters.items()}}

    def _qualified(self, name: str) -> str:
        """Return the name of an attribute or a capacity; its domain is a driver, or none."""
        if WELL_KNOWN.search(name):
            return name
        domain, _, identifier = name.rpartition("/")
        # An identifier of CEL has no hyphens.
        fresh = self._names.of("attribute", identifier).replace("-", "_")
        return f"{self._names.of('driver', domain)}/{fresh}" if domain else fresh

    def _attribute(self, value: Document) -> Document:
        if "string" in value:
            return {"string": self._names.of("value", value["string"])}
        if "version" in value:
            number = self._names.of("version", value["version"]).rpartition("-")[2]
            return {"version": f"0.0.{number}"}
        return value

    def _outcomes(self, driver: str, device: Document) -> Document:
        """Return the attributes that say which selectors take a device; none for one that fails."""
        read = _device.decode(encode_json(device))
        found = {}
        for expression, number in self._expressions.items():
            try:
                taken = self._selectors.matches(expression, driver, read)
            except SelectorError:
                continue
            found[f"{OUTCOMES}/s{number}"] = {"bool": taken}
        return found

    def _claim(self, spec: Document) -> Document:
        devices = spec.get("devices") or {}
        fresh: Document = {}
        if devices.get("requests"):
            fresh["requests"] = [self._request(one) for one in devices["requests"]]
        if devices.get("constraints"):
            fresh["constraints"] = [self._constraint(one) for one in devices["constraints"]]
        return {"devices": fresh}

    def _request(self, request: Document) -> Document:
        fresh: Document = {"name": self._names.of("request", request["name"])}
        if "exactly" in request:
            fresh["exactly"] = self._demand(request["exactly"])
        if "firstAvailable" in request:
            fresh["firstAvailable"] = [self._demand(one) for one in request["firstAvailable"]]
        return fresh

    def _demand(self, demand: Document) -> Document:
        names, fresh = self._names, dict(demand)
        if demand.get("name"):
            fresh["name"] = names.of("request", demand["name"])
        if demand.get("deviceClassName"):
            fresh["deviceClassName"] = names.of("deviceclass", demand["deviceClassName"])
        if demand.get("selectors"):
            fresh["selectors"] = [self._selector(one) for one in demand["selectors"]]
        if demand.get("tolerations"):
            fresh["tolerations"] = [replaced_taint(names, one) for one in demand["tolerations"]]
        capacity = demand.get("capacity") or {}
        if capacity.get("requests"):
            fresh["capacity"] = {
                "requests": {self._qualified(name): one for name, one in capacity["requests"].items()}
            }
        return fresh

    def _selector(self, selector: Document) -> Document:
        if not selector.get("cel"):
            return {}
        number = self._expressions[selector["cel"]["expression"]]
        return {"cel": {"expression": f'device.attributes["{OUTCOMES}"].s{number}'}}

    def _constraint(self, constraint: Document) -> Document:
        fresh: Document = {}
        if constraint.get("requests"):
            fresh["requests"] = [self._requested(one) for one in constraint["requests"]]
        for name in ("matchAttribute", "distinctAttribute"):
            if constraint.get(name):
                fresh[name] = self._qualified(constraint[name])
        return fresh

    def _requested(self, name: str) -> str:
        """Return the name of a request, or of one and its alternative, separated by a slash."""
        return "/".join(self._names.of("request", part) for part in name.split("/"))

    def _status(self, status: Mapping[str, Any] | None) -> Document:
        names, fresh = self._names, dict[str, Any]()
        allocation = (status or {}).get("allocation")
        if allocation is not None:
            devices = allocation.get("devices") or {}
            results = [self._result(one) for one in devices.get("results") or ()]
            fresh["allocation"] = {"devices": {"results": results}}
            if allocation.get("nodeSelector"):
                fresh["allocation"]["nodeSelector"] = selecting(names, allocation["nodeSelector"])
        consumers = (status or {}).get("reservedFor")
        if consumers:
            fresh["reservedFor"] = [
                one
                | {"name": names.of("pod", one.get("name", "")), "uid": names.of("uid", one.get("uid", ""))}
                for one in consumers
            ]
        return fresh

    def _result(self, result: Document) -> Document:
        names, fresh = self._names, dict(result)
        for name in ("driver", "pool", "device"):
            fresh[name] = names.of(name, result.get(name, ""))
        fresh["request"] = self._requested(result.get("request", ""))
        if result.get("shareID"):
            fresh["shareID"] = names.of("share", result["shareID"])
        if result.get("tolerations"):
            fresh["tolerations"] = [replaced_taint(names, one) for one in result["tolerations"]]
        if result.get("consumedCapacity"):
            fresh["consumedCapacity"] = {
                self._qualified(name): one for name, one in result["consumedCapacity"].items()
            }
        return fresh


def _expressions(value: Any) -> set[str]:
    """Return the expressions of all selectors within a document."""
    if isinstance(value, list):
        return set().union(*map(_expressions, value))
    if not isinstance(value, dict):
        return set()
    own = {value["cel"]["expression"]} if isinstance(value.get("cel"), dict) else set()
    return own.union(*map(_expressions, value.values()))
