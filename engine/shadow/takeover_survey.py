"""Read a node once and predict a takeover. It changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.api.config import POD_LEVEL_MANAGERS_GATE, KubeletConfiguration
from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput, KubengineError
from engine.api.quantity import Quantity
from engine.cpumanager import checkpoint as cpu_checkpoint
from engine.cpumanager import restoring as cpu_restoring
from engine.devices import checkpoint as device_checkpoint
from engine.devices.checkpoint import Checkpoint
from engine.dra import checkpoint as claim_checkpoint
from engine.host.checksummed_file import read_again
from engine.memorymanager import checkpoint as memory_checkpoint
from engine.memorymanager import restoring as memory_restoring
from engine.memorymanager.machine import read_nodes
from engine.memorymanager.reservation import reserved_memory
from engine.memorymanager.state import unused
from engine.node.sources.static_pods import static_pod
from engine.shadow.kinds.cpus import CpuRules
from engine.shadow.kinds.memory import STATIC as MEMORY_STATIC
from engine.shadow.machine_reader import (
    CLAIM_STATE,
    CPU_STATE,
    DEVICE_STATE,
    MEMORY_STATE,
    MachineReader,
)
from engine.shadow.takeover import Holdings, NodeFinding, PodFate, driver_findings, pod_fates, summary
from engine.shadow.takeover_drivers import CSI, DRA, csi_volumes, registered_drivers
from engine.shadow.watch import Shadow
from engine.topologymanager.policy import Numa

_STATES: Final[dict[str, Callable[[bytes], Any]]] = {
    CPU_STATE: cpu_checkpoint.decode,
    MEMORY_STATE: memory_checkpoint.decode,
    str(DEVICE_STATE): device_checkpoint.decode,
    CLAIM_STATE: claim_checkpoint.decode,
}


@dataclass(frozen=True, slots=True)
class TakeoverSurvey:
    """Hold the fates of the pods of a node in a takeover, and the findings about the node."""

    node: str
    fates: list[PodFate]
    findings: list[NodeFinding]

    @property
    def changes(self) -> bool:
        """Return whether some pod is not kept as it is, or a finding has to be resolved before the
        takeover.
        """
        counts = summary(self.fates)
        changed = any(counts[fate] for fate in ("restarts", "moves", "refused"))
        return changed or any(finding.stops for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "counts": dict(summary(self.fates)),
            "pods": [fate.as_dict() for fate in self.fates],
            "findings": [finding._asdict() for finding in self.findings],
        }


async def survey(shadow: Shadow) -> TakeoverSurvey:
    """Read the node once, and predict. Raise `Unavailable` if the kubelet or the runtime does not answer."""
    seen = await shadow.observe()
    machine = MachineReader(shadow.options.root, shadow.fault)
    name = seen.node.metadata.name
    answering = await registered_drivers(machine.root)
    holdings, findings = await asyncio.to_thread(_read, machine, seen.config, name, answering)
    return TakeoverSurvey(name, pod_fates(seen, holdings), findings)


def _read(
    machine: MachineReader, config: KubeletConfiguration, node: str, answering: Collection[tuple[str, str]]
) -> tuple[Holdings, list[NodeFinding]]:
    """Return the assignments of pods and the findings about the node; `answering` are types and names of
    plugins.
    """
    findings, states = _states(machine.root)
    holdings = Holdings()
    try:
        rules = machine.cpu_rules(config)
        if rules is not None:
            holdings.add_cpus(_cpus(rules, config, states.get(CPU_STATE)))
        if config.memory_manager_policy == MEMORY_STATIC:
            holdings.add_memory(_memory(machine, config, states.get(MEMORY_STATE)))
    except KubengineError as error:
        # This agent would refuse to start with the configuration, for the same reason.
        findings.append(NodeFinding(error.subject or "configuration", error.message, stops=True))
    devices = states.get(str(DEVICE_STATE)) or Checkpoint()
    holdings.add_devices(devices)
    volumes, unusable = csi_volumes(machine.root)
    claims = states.get(CLAIM_STATE) or []
    holdings.add_volumes(volumes)
    holdings.add_claims(claims)
    for plugin, kind, held in (
        (CSI, "volumes", Counter(volume.driver for volume in volumes)),
        (DRA, "claims", Counter(driver for claim in claims for driver in claim.drivers)),
    ):
        findings += driver_findings(kind, held, {name for type, name in answering if type == plugin})
    findings += [*unusable, *rejected_manifests(config.static_pod_path, node)]
    return holdings, [*findings, *_plugins(devices)]


def _cpus(
    rules: CpuRules, config: KubeletConfiguration, state: cpu_checkpoint.CpuCheckpoint | None
) -> cpu_restoring.RestoredCpus:
    """Return the CPU assignments that stay valid."""
    online = rules.topology.cpus
    return cpu_restoring.restore(
        state or cpu_checkpoint.CpuCheckpoint(),
        online=online,
        reserved=rules.reserved,
        pool=rules.pool,
        pod_level=config.gate(POD_LEVEL_MANAGERS_GATE, False),
    )


def _memory(
    machine: MachineReader, config: KubeletConfiguration, state: memory_checkpoint.MemoryCheckpoint | None
) -> memory_restoring.RestoredMemory:
    """Return the memory reservations that stay valid. Raise `InvalidInput`."""
    kept = reserved_memory(
        Numa.of_machine().nodes, _reservation(machine, config), config.reserved_memory or ()
    )
    return memory_restoring.restore(
        state or memory_checkpoint.MemoryCheckpoint(),
        unused(read_nodes(), kept),
        pod_level=config.gate(POD_LEVEL_MANAGERS_GATE, False),
    )


def _reservation(machine: MachineReader, config: KubeletConfiguration) -> dict[str, Quantity]:
    return machine.facts().settings(config).node.reservation()


def _states(root: Path) -> tuple[list[NodeFinding], dict[str, Any]]:
    """Return a finding for each state file that cannot be used, and the content of the others by name."""
    findings, states = [], {}
    for name, decode in _STATES.items():
        try:
            states[name] = decode(read_again(root / name))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            text = f"cannot be used ({error}): it is set aside, and its assignments are chosen again"
            findings.append(NodeFinding(str(root / name), text, stops=True))
    return findings, states


def rejected_manifests(path: str, node: str) -> Iterator[NodeFinding]:
    """Yield a finding for each manifest in a directory or file that the agent rejects: it ends their pods."""
    place = Path(path)
    if not path or not place.exists():
        return
    for file in sorted(place.iterdir()) if place.is_dir() else [place]:
        if file.name.startswith(".") or not file.is_file():
            continue
        try:
            manifests, _ = parse_pods(file.read_bytes(), str(file))
            for manifest in manifests:
                static_pod(manifest, node_name=node, origin=str(file), seen_at=0.0)
        except InvalidInput as error:
            text = f"is rejected, and what runs of it is ended: {error.message}"
            yield NodeFinding(str(file), text, stops=True)
        except OSError as error:
            yield NodeFinding(str(file), f"cannot be read: {error.strerror}", stops=True)


def _plugins(devices: Checkpoint) -> list[NodeFinding]:
    """Return a finding for each device plugin that has to register with the new agent."""
    held = {entry.resource_name for entry in devices.pod_device_entries or ()}
    text = "its device plugin registers again with the new agent; running pods keep their devices meanwhile"
    return [NodeFinding(resource, text) for resource in sorted(held)]
