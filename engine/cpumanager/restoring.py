"""Decides which CPU assignments of an earlier agent are still valid. Pure.

A kubelet stops if the policy, the reservation or the online CPUs differ from the file. This module keeps the
assignments that are still possible and lists the others with the reason: their containers get other CPUs
when their pod is known, or join the shared pool.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api import cpu_set as cpu_sets
from engine.api.errors import InvalidInput
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.state import CpuState


class LostCpus(msgspec.Struct, frozen=True):
    """Hold an assignment that is no longer valid, and the reason."""

    pod_uid: str
    container: str
    cpus: str
    reason: str


class RestoredCpus(msgspec.Struct):
    """Hold the initial state, the lost assignments, and other changes since the file was written."""

    state: CpuState
    lost: list[LostCpus] = msgspec.field(default_factory=list)
    changes: list[str] = msgspec.field(default_factory=list)


def restore(
    checkpoint: CpuCheckpoint, *, online: int, reserved: int, pool: int, pod_level: bool = False
) -> RestoredCpus:
    """Restore a checkpoint. `reserved` CPUs are never exclusive; `pool` is the set of CPUs that
    can be shared.

    Entries of version 1, which are by container id, are restored as a pod of this uid with one container
    without a name. `pod_level` tells whether pods may have CPUs as a whole.
    """
    restored = RestoredCpus(CpuState(pool))
    known = _parsed(checkpoint.default_cpu_set) or 0
    owner: dict[int, str] = {}
    entries = {**checkpoint.entries, **{id: {"": cpus} for id, cpus in checkpoint.entries_by_id.items()}}
    for uid, text in (checkpoint.pod_entries or {}).items():
        containers = entries.pop(uid, {})
        cpus = _parsed(text)
        known |= cpus or 0
        reason = _fault(cpus, uid, owner, online, reserved) or _pod_fault(cpus, containers)
        if not pod_level:
            reason = "the feature gate PodLevelResourceManagers is off"
        if reason:
            restored.lost += [LostCpus(uid, name, of, reason) for name, of in containers.items()]
            continue
        assert cpus is not None
        restored.state.pods[uid] = cpus
        owner.update(dict.fromkeys(cpu_sets.numbers(cpus), uid))
        for name, of in containers.items():
            restored.state.assign(uid, name, cpu_sets.parse(of))
    for uid, containers in entries.items():
        for name, text in containers.items():
            cpus = _parsed(text)
            known |= cpus or 0
            reason = _fault(cpus, uid, owner, online, reserved)
            if reason:
                restored.lost.append(LostCpus(uid, name, text, reason))
                continue
            assert cpus is not None
            restored.state.assign(uid, name, cpus)
            owner.update(dict.fromkeys(cpu_sets.numbers(cpus), uid))
    expected = known | (reserved if not reserved & pool else 0)
    if checkpoint.default_cpu_set and expected != online:
        restored.changes.append(
            f"the online CPUs are {cpu_sets.text(online)}, and were {cpu_sets.text(expected)}"
        )
    return restored


def _fault(cpus: int | None, uid: str, owner: dict[int, str], online: int, reserved: int) -> str:
    """Return why an assignment is invalid; empty if it is valid."""
    if not cpus:
        return "it is not a list of CPUs"
    if cpus & ~online:
        return f"CPUs {cpu_sets.text(cpus & ~online)} are offline"
    if cpus & reserved:
        return f"CPUs {cpu_sets.text(cpus & reserved)} are reserved"
    others = {owner[cpu] for cpu in cpu_sets.numbers(cpus) if cpu in owner} - {uid}
    if others:
        return f"some of its CPUs belong to pod {min(others)}"
    return ""


def _pod_fault(cpus: int | None, containers: Mapping[str, str]) -> str:
    """Return why the CPUs of a pod's containers are not a part of the pod's; empty if they are."""
    for name, text in containers.items():
        of = _parsed(text)
        if not of or of & ~(cpus or 0):
            return f"CPUs {text} of its container {name} are not among its own"
    return "" if containers else "none of its containers has any"


def _parsed(text: str) -> int | None:
    try:
        return cpu_sets.parse(text)
    except InvalidInput:
        return None
