"""What pods are given when they are admitted again after a reboot is on disk before they start."""

from __future__ import annotations

from pathlib import Path

from engine.cpumanager.topology import Processor
from engine.memorymanager.manager import FILE_NAME
from engine.memorymanager.state import NodeMemory
from engine.topologymanager.alignment_metrics import AlignmentTally
from tests.topologymanager.machine_rig import MIB, World, pod_of
from tests.topologymanager.test_nothing_is_given_twice import configuration


async def test_what_a_pod_lacks_is_on_disk_before_it_starts(tmp_path: Path) -> None:
    memory = [NodeMemory(0, 1024 * MIB)]
    processors = [Processor(cpu, cpu, 0, 0, 0) for cpu in range(4)]
    world = World(tmp_path, configuration(memory, {}, "best-effort", "container"), processors, memory)
    await world.start()
    pod = pod_of("p", [("init", 1, 200), ("main", 1, 100)])
    await world.admit(pod)
    assert b'"c0":[{"numaAffinity":[0],"type":"memory"' not in (tmp_path / FILE_NAME).read_bytes()
    await world.restart()
    await world._allocator.pod(pod, AlignmentTally())
    assert b'"c0":[{"numaAffinity":[0],"type":"memory"' in (tmp_path / FILE_NAME).read_bytes()
    await world.end()
