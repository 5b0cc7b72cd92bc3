"""Decides which CPU assignments of an earlier agent are still valid. Pure.

A kubelet stops if the policy, the reservation or the online CPUs differ from the file. This module keeps the
assignments that are still possible and lists the others with the reason: their containers get other CPUs
when their pod is known, or join the shared pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import cpu_set as cpu_sets
from engine.api.errors import InvalidInput
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.state import CpuState


@dataclass(frozen=True, slots=True)
class Lost:
    """An assignment that is no longer valid, and the reason."""

    pod_uid: str
    container: str
    cpus: str
    reason: str


@dataclass(slots=True)
class Restored:
    """The initial state, the lost assignments, and other changes since the file was written."""

    state: CpuState
    lost: list[Lost] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def restore(checkpoint: CpuCheckpoint, *, online: int, reserved: int, pool: int) -> Restored:
    """Restore a checkpoint. `reserved` CPUs are never exclusive; `pool` is the set of CPUs that
    can be shared.
    """
    restored = Restored(CpuState(pool))
    known = _parsed(checkpoint.default_cpu_set) or 0
    owner: dict[int, str] = {}
    for uid, containers in checkpoint.entries.items():
        for name, text in containers.items():
            cpus = _parsed(text)
            known |= cpus or 0
            reason = _fault(cpus, uid, owner, online, reserved)
            if reason:
                restored.lost.append(Lost(uid, name, text, reason))
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


def _parsed(text: str) -> int | None:
    try:
        return cpu_sets.parse(text)
    except InvalidInput:
        return None
