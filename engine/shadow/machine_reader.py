"""Read the machine of a kubelet: cgroup files, the kubelet's state files, and the hardware. It only reads.

A state file that is damaged or half written is reported as a fault, and its last valid content is used.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from engine.api import cpu_set
from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import CgroupsSection
from engine.api.resources import CPU
from engine.cgroups.formulas.runtime_formula import choose_formula
from engine.cgroups.interface_files import FileRules, kernel_form
from engine.cgroups.manager import huge_page_sizes, swap_capacity, swap_controller
from engine.cpumanager import checkpoint as cpu_checkpoint
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.machine import read_topology
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.static_policy import reserved_cpus
from engine.devices import checkpoint as device_checkpoint
from engine.devices.checkpoint import Checkpoint
from engine.dra import checkpoint as claim_checkpoint
from engine.dra.table import ClaimState
from engine.host.cgroupfs.mounts import Mounts, find_mounts
from engine.host.checksummed_file import read_again
from engine.memorymanager import checkpoint as memory_checkpoint
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.node.nodeinfo import machine
from engine.shadow.kinds.cgroups import ExpectedGroup, GroupReading
from engine.shadow.kinds.cpus import CpuRules
from engine.shadow.machine_facts import MachineFacts
from engine.topologymanager.policy import Numa, TopologyPolicy

CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
CLAIM_STATE: Final = "dra_manager_state"
STATIC: Final = "static"
DEVICE_STATE: Final = Path("device-plugins", "kubelet_internal_checkpoint")

T = TypeVar("T")


class ManagerStates(NamedTuple):
    """Hold the state files of the CPU, memory, device and DRA managers."""

    cpus: CpuCheckpoint
    memory: MemoryCheckpoint
    devices: Checkpoint
    claims: Sequence[ClaimState]


class MachineReader:
    """Read the machine of a kubelet with this root directory. `fault(source, text)` is called for a file that
    cannot be read.
    """

    def __init__(
        self, root: Path, fault: Callable[[str, str], None], *, mounts: Mounts | None = None
    ) -> None:
        self.root = root
        self._fault = fault
        self._mounts = mounts or find_mounts()
        self._formula, _ = choose_formula(self._mounts.version, CgroupsSection())
        self._cpus = CpuCheckpoint()
        self._memory = MemoryCheckpoint()
        self._devices = Checkpoint()
        self._claims: list[ClaimState] = []

    def states(self) -> ManagerStates:
        """Return the state files of the managers."""
        return ManagerStates(self.cpus(), self.memory(), self.devices(), self.claims())

    def facts(self, runtime: str = "", runtime_socket: Path | None = None) -> MachineFacts:
        """Return the facts of the machine. `runtime` is the name of its runtime, which listens at the
        socket.
        """
        memory, version, sizes = self._mounts.holding("memory"), self._mounts.version, huge_page_sizes()
        registered = self.devices().registered_devices or {}
        return MachineFacts(
            hardware=machine.hardware(self.root),
            max_pids=machine.max_pids(),
            files=FileRules.on(self._mounts, self._formula, sizes),
            swap_controller=memory is not None and swap_controller(memory, version),
            swap_capacity=swap_capacity(),
            huge_page_sizes=sizes,
            devices={resource: len(devices or ()) for resource, devices in registered.items()},
            runtime=runtime,
            oom_floor=_oom_score(str(peer_of(runtime_socket))) if runtime_socket is not None else None,
        )

    def cpus(self) -> CpuCheckpoint:
        """Return the checkpoint of the CPU manager; an empty one without a file."""
        self._cpus = self._state(self.root / CPU_STATE, cpu_checkpoint.decode, self._cpus, CpuCheckpoint())
        return self._cpus

    def cpu_rules(self, config: KubeletConfiguration) -> CpuRules | None:
        """Return the rules of the static CPU policy; None under another policy. Raise `InvalidInput`."""
        if config.cpu_manager_policy != STATIC:
            return None
        topology, options = read_topology(), StaticOptions.from_config(config)
        options.check(topology, config.topology_manager_policy)
        named = cpu_set.parse(config.reserved_system_cpus, "reservedSystemCPUs")
        amount = self.facts().settings(config).node.reservation().get(CPU)
        reserved = reserved_cpus(topology, options, amount, named)
        return CpuRules(topology, reserved, options, Numa.of_machine())

    def topology(self, config: KubeletConfiguration) -> TopologyPolicy:
        """Return the topology manager's policy on this machine. Raise `InvalidInput`."""
        return TopologyPolicy.from_config(
            config.topology_manager_policy,
            config.topology_manager_scope,
            config.topology_manager_policy_options,
            Numa.of_machine(),
        )

    def memory(self) -> MemoryCheckpoint:
        """Return the checkpoint of the memory manager; an empty one without a file."""
        path = self.root / MEMORY_STATE
        self._memory = self._state(path, memory_checkpoint.decode, self._memory, MemoryCheckpoint())
        return self._memory

    def claims(self) -> list[ClaimState]:
        """Return the prepared claims; an empty list without a file."""
        self._claims = self._state(self.root / CLAIM_STATE, claim_checkpoint.decode, self._claims, [])
        return self._claims

    def devices(self) -> Checkpoint:
        """Return the checkpoint of the device manager; an empty one without a file."""
        path = self.root / DEVICE_STATE
        self._devices = self._state(path, device_checkpoint.decode, self._devices, Checkpoint())
        return self._devices

    def group(self, expected: ExpectedGroup) -> GroupReading | None:
        """Return the files of a cgroup as the kernel shows them; None if the cgroup does not exist."""
        files: dict[str, str | None] = {}
        for file in expected.files:
            text = _read(self._mounts.directory(file.partition(".")[0], expected.path) / file)
            files[file] = kernel_form(file, text) if text is not None else None
        if all(text is None for text in files.values()):
            return None
        score = self._oom_score(expected.path) if expected.oom_score_adj is not None else None
        return GroupReading(files, score)

    def _oom_score(self, path: str) -> int | None:
        """Return `oom_score_adj` of the first process of a cgroup, which its other processes inherit; None
        without a process.
        """
        procs = _read(self._mounts.directory("memory", path) / "cgroup.procs")
        if not procs:
            return None
        return _oom_score(procs.split()[0])

    def _state(self, path: Path, decode: Callable[[bytes], T], before: T, empty: T) -> T:
        """Return the content of a state file, `empty` without a file, or `before` if it cannot be read."""
        try:
            return decode(read_again(path))
        except FileNotFoundError:
            return empty
        except (OSError, ValueError) as error:
            self._fault(str(path), str(error))
            return before


def peer_of(path: Path) -> int:
    """Return the process id of the listener of a unix socket, 0 if there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return 0
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


def _oom_score(pid: str) -> int | None:
    text = _read(Path("/proc", pid, "oom_score_adj"))
    return int(text) if text is not None else None


def _read(path: Path) -> str | None:
    """Return the text of a small kernel file; None if it does not exist or its cgroup is removed
    meanwhile.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 4096).decode().strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
