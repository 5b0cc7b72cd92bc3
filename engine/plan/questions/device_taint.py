"""Find the pods that a device taint evicts, and those that tolerate it.

Source: the device taint eviction controller of Kubernetes v1.36 (KEP-5055). A pod is evicted for a taint with
the effect NoExecute on a device of one of its claims, unless the allocation of the claim has a toleration.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.admission.selectors import tolerates
from engine.api.errors import InvalidInput
from engine.api.node import Taint
from engine.plan.answers.answer import Answer, Rows
from engine.plan.claims.known import DynamicResources, dynamic_resources, rules_of_file
from engine.plan.claims.objects import (
    DeviceTaint,
    DeviceTaintRule,
    PlannedClaim,
    TaintRuleSpec,
    TaintSelector,
)
from engine.plan.claims.pools import DeviceKey, is_selected
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import node_object

NEVER = 2**63
"""Seconds until the eviction of a pod that is not evicted."""
_Eviction = tuple[int, str]
"""Seconds until the eviction, and the reason."""


class DeviceTaintParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of device-taint: a manifest, or a taint and the devices that get it."""

    file: Annotated[str, Meta(description="manifest with DeviceTaintRules")] = ""
    driver: Annotated[str, Meta(description="instead of a file: taint devices of this driver")] = ""
    pool: Annotated[str, Meta(description="only devices of this pool")] = ""
    device: Annotated[str, Meta(description="only the device of this name")] = ""
    key: Annotated[str, Meta(description="the taint's key")] = "example.com/maintenance"
    value: Annotated[str, Meta(description="the taint's value")] = ""
    effect: Annotated[Literal["NoExecute", "NoSchedule"], Meta(description="the taint's effect")] = (
        "NoExecute"
    )


def device_taint(snapshot: Snapshot, parameters: DeviceTaintParameters) -> Answer:
    """Return per node `tainted` (amount: how many of its devices). For each pod with such a device return
    `taint-evicts`, or `stays` with the reason: it tolerates the taint, or the effect spares running pods.

    Raise `InvalidInput` if no device is selected.
    """
    rules = _rules(parameters)
    known = dynamic_resources(snapshot)
    inventory = known.inventory()
    tainted = {key for key in inventory.keys if any(is_selected(rule, key) for rule in rules)}
    if not tainted:
        raise InvalidInput(
            f"selects none of {len(inventory.keys):,} devices ({_drivers_text(known)})",
            subject=parameters.file or "driver",
        )
    rows = Rows(snapshot.node_names)
    for node, name in enumerate(snapshot.node_names):
        devices = inventory.of_node(name, node_object(snapshot, node).labels).devices
        count = sum(1 for each in devices if each.key in tainted)
        if count:
            rows.add(node, "tainted", "", f"of {len(devices)} devices", count, "devices")
    pods = _pod_rows(snapshot)
    evictions: dict[int, _Eviction] = {}
    unplaced = 0
    for claim in known.claims:
        eviction = _eviction(claim, rules)
        if eviction is None:
            continue
        for consumer in claim.status.reserved_for or ():
            row = pods.get(consumer.uid) if consumer.resource == "pods" else None
            if row is None:
                unplaced += 1
                continue
            # A pod with several tainted claims is evicted when the first toleration ends.
            evictions[row] = min(evictions.get(row, eviction), eviction)
    for row, (seconds, reason) in sorted(evictions.items()):
        decision = "stays" if seconds == NEVER else "taint-evicts"
        rows.add(int(snapshot.column("node")[row]), decision, snapshot.pod_label(row), reason, 1, "pods")
    if unplaced:
        rows.note("consumers of tainted devices that are no pods of the snapshot's nodes", unplaced)
    return rows.answer(sort=True)


def _rules(parameters: DeviceTaintParameters) -> list[DeviceTaintRule]:
    """Return the rules of the manifest, or one of the parameters. Raise `InvalidInput`."""
    selected = any((parameters.driver, parameters.pool, parameters.device))
    if parameters.file and selected:
        raise InvalidInput("give a manifest or the devices, not both", subject="file")
    if parameters.file:
        return rules_of_file(parameters.file)
    if not selected:
        raise InvalidInput("name a manifest, or the devices by driver, pool or device", subject="driver")
    selector = TaintSelector(
        driver=parameters.driver or None, pool=parameters.pool or None, device=parameters.device or None
    )
    taint = DeviceTaint(key=parameters.key, value=parameters.value, effect=parameters.effect)
    return [DeviceTaintRule(spec=TaintRuleSpec(taint=taint, device_selector=selector))]


def _drivers_text(known: DynamicResources) -> str:
    drivers = Counter(each.spec.driver for each in known.slices)
    return "drivers: " + ", ".join(sorted(drivers)[:5])


def _pod_rows(snapshot: Snapshot) -> dict[str, int]:
    """Map the uid of each placed pod to its row."""
    uids = snapshot.pods["uid"].slice(0, snapshot.placed).to_pylist()
    return {uid: row for row, uid in enumerate(uids)}


def _eviction(claim: PlannedClaim, rules: list[DeviceTaintRule]) -> _Eviction | None:
    """Return when the pods of a claim are evicted: by the taint that is tolerated for the shortest time.

    Return None if no rule selects a device of the claim. A toleration counts only if it names the effect
    NoExecute; one without seconds tolerates the taint forever.
    """
    found: list[_Eviction] = []
    for result in claim.allocated:
        key: DeviceKey = (result.driver, result.pool, result.device)
        device = f"{result.device} of {result.driver} through claim {claim.metadata.name}"
        for rule in rules:
            if not is_selected(rule, key):
                continue
            taint = rule.spec.taint
            if taint.effect != "NoExecute":
                found.append((NEVER, f"has {device}; {taint.effect} spares running pods"))
                continue
            plain = Taint(key=taint.key, value=taint.value, effect=taint.effect)
            limits = [
                each.toleration_seconds
                for each in result.tolerations or ()
                if each.effect == taint.effect and tolerates([each], plain)
            ]
            if None in limits:
                found.append((NEVER, f"has {device}, and tolerates the taint"))
            elif limits:
                seconds = max(min(each for each in limits if each is not None), 0)
                found.append((seconds, f"has {device}, and tolerates the taint for {seconds} s"))
            else:
                found.append((0, f"has {device}"))
    return min(found, default=None)
