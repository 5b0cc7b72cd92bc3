"""Resolves the configuration's cgroup settings once."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping

import msgspec

from engine.api import cpu_set
from engine.api.amounts.eviction_amounts import OFF, hard_statements
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import ResourceList
from engine.api.quantity import BINARY_SI, ZERO, Quantity
from engine.api.resources import CPU, MEMORY
from engine.cgroups.formulas.allocatable import (
    HardThreshold,
    NodeAllocatable,
    parse_resources,
    reserved_values,
)
from engine.cgroups.formulas.best_effort_limit import BestEffortLimitRules
from engine.cgroups.formulas.containers import ContainerRules
from engine.cgroups.formulas.conversion import DEFAULT_PERIOD_US, milli_cpu_to_quota
from engine.cgroups.formulas.file_names import MEMORY_MIN
from engine.cgroups.formulas.levels import LevelRules
from engine.cgroups.formulas.names import CgroupName, Driver, node_allocatable_root, parse_path
from engine.cgroups.formulas.pod_annotations import DeviceNumber, as_written, check_allowed
from engine.cgroups.formulas.values import GroupValues, PodRules

PODS = "pods"
TIERED_RESERVATION = "TieredReservation"
RESERVED_KINDS = ("system-reserved", "kube-reserved")
COMPRESSIBLE = "-compressible"
_ENFORCEABLE = {"none", PODS, *RESERVED_KINDS, *(kind + COMPRESSIBLE for kind in RESERVED_KINDS)}
_PERCENT = re.compile(r"([0-9]{1,3})%")


class ReservedGroup(msgspec.Struct, frozen=True):
    """Name a cgroup of system or Kubernetes daemons whose reservation is enforced."""

    kind: str
    name: CgroupName
    resources: Mapping[str, Quantity]
    compressible_only: bool
    memory_qos: bool = False

    def values(self) -> GroupValues:
        """Return only the values that the reservation names; everything else stays as it is."""
        only = self.compressible_only
        values = reserved_values(self.resources, compressible_only=only) or GroupValues()
        if self.memory_qos and values.memory is not None:
            values = msgspec.structs.replace(values, unified={MEMORY_MIN: str(values.memory)})
        return values


class CgroupSettings(msgspec.Struct, frozen=True):
    """Hold everything that pure modules need of configuration and node."""

    root: CgroupName
    driver: Driver
    node: NodeAllocatable
    enforce_pods: bool
    reserved_groups: tuple[ReservedGroup, ...]
    pods: PodRules
    containers: ContainerRules
    levels: LevelRules
    cpu_ceiling: bool = False
    best_effort_limit: BestEffortLimitRules | None = None

    def root_values(self) -> GroupValues:
        """Return the values of the root of all pods; with `cpu_ceiling` also a CPU quota at allocatable."""
        values = self.node.kubepods_values(enforced=self.enforce_pods)
        if not self.cpu_ceiling:
            return values
        quota = milli_cpu_to_quota(self.node.absolute().get(CPU, ZERO).milli)
        return msgspec.structs.replace(values, cpu_quota=quota, cpu_period=DEFAULT_PERIOD_US)

    @classmethod
    def resolve(
        cls,
        config: KubeletConfiguration,
        capacity: Mapping[str, Quantity | int],
        *,
        cgroup_v2: bool,
        section: CgroupsSection | None = None,
        swap_controller: bool = False,
        swap_capacity: int = 0,
        huge_page_sizes: tuple[int, ...] = (),
        device_number: DeviceNumber = as_written,
    ) -> CgroupSettings:
        """Resolve the settings. Raises `InvalidInput` naming the field.

        `capacity` holds quantities, or integers in milli-CPU for cpu and base units for the rest.
        """
        if config.cgroup_driver not in ("cgroupfs", "systemd"):
            raise InvalidInput(
                f"expected cgroupfs or systemd, got {config.cgroup_driver!r}", subject="cgroupDriver"
            )
        node = NodeAllocatable(
            {name: _quantity(name, amount) for name, amount in capacity.items()},
            *_reservations(config),
            hard_thresholds(config),
        )
        memory_qos = config.gate("MemoryQoS", False) and cgroup_v2
        section = section or CgroupsSection()
        if section.cpu_ceiling and not cgroup_v2:
            raise InvalidInput(
                "needs cgroup v2: under v1 no pod could have a higher limit than the ceiling",
                subject="cgroups.cpuCeiling",
            )
        check_allowed(section.pod_annotations, cgroup_v2=cgroup_v2)
        annotations = frozenset(section.pod_annotations)
        custom_period = config.gate("CustomCPUCFSQuotaPeriod", True)
        period = round(float(config.cpu_cfs_quota_period) * 1e6)
        if not 1000 <= period <= 1_000_000:
            raise InvalidInput("expected between 1ms and 1s", subject="cpuCFSQuotaPeriod")
        # On cgroup v2 a kubelet lets the kernel kill the whole container (memory.oom.group) since v1.28; v1
        # cannot.
        oom_kill = config.single_process_oom_kill
        memory = node.capacity.get(MEMORY)
        allocatable_memory = node.allocatable().get(MEMORY)
        reserves = memory_qos and (
            section.tiered_memory_protection or config.memory_reservation_policy == TIERED_RESERVATION
        )
        return cls(
            root=node_allocatable_root(config.cgroup_root, config.cgroups_per_qos),
            driver=config.cgroup_driver,  # type: ignore[arg-type]
            node=node,
            enforce_pods=PODS in config.enforce_node_allocatable,
            reserved_groups=_reserved_groups(config, node, memory_qos=memory_qos),
            pods=PodRules(
                enforce_cpu_limits=config.cpu_cfs_quota,
                cpu_period_us=period,
                custom_cpu_period=custom_period,
                memory_qos=reserves,
                tiered_memory=reserves,
                pids_limit=config.pod_pids_limit,
                annotations=annotations,
                device_number=device_number,
            ),
            containers=ContainerRules(
                memory_capacity=memory.value if memory else 0,
                allocatable_memory=allocatable_memory.value if allocatable_memory else 0,
                enforce_cpu_limits=config.cpu_cfs_quota,
                cpu_period_us=period,
                custom_cpu_period=custom_period,
                memory_qos=memory_qos,
                memory_reserved=reserves,
                tiered_memory=reserves,
                throttling_factor=config.memory_throttling_factor,
                page_size=mmap.PAGESIZE,
                cgroup_v2=cgroup_v2,
                swap_controller=swap_controller,
                swap_capacity=swap_capacity,
                swap_behavior=config.memory_swap.swap_behavior if config.memory_swap else "",
                single_process_oom_kill=(not cgroup_v2) if oom_kill is None else oom_kill,
                huge_page_sizes=huge_page_sizes,
                annotations=annotations,
            ),
            levels=LevelRules(
                allocatable_memory=allocatable_memory.value if allocatable_memory else None,
                reserved_percent=_reserved_percent(config),
                memory_qos=reserves,
                tiered_memory=reserves,
                best_effort_idle=section.best_effort_idle,
            ),
            cpu_ceiling=section.cpu_ceiling,
            best_effort_limit=_best_effort_limit(section, node),
        )


def hard_thresholds(config: KubeletConfiguration) -> tuple[HardThreshold, ...]:
    """Return the enabled hard eviction thresholds. Raises `InvalidInput` naming the signal."""
    return tuple(
        HardThreshold.parse(signal, text)
        for signal, text in hard_statements(config).items()
        if text not in OFF
    )


def _best_effort_limit(section: CgroupsSection, node: NodeAllocatable) -> BestEffortLimitRules | None:
    """Return the limit of BestEffort pods, or None without one."""
    if section.best_effort_ceiling == 0:
        return None
    if not 1 <= section.best_effort_ceiling <= 100:
        raise InvalidInput(
            f"expected 1 to 100, or 0 for off; got {section.best_effort_ceiling}",
            subject="cgroups.bestEffortCeiling",
        )
    if not 1 <= section.best_effort_floor <= section.best_effort_ceiling:
        raise InvalidInput(
            f"expected 1 to cgroups.bestEffortCeiling, got {section.best_effort_floor}",
            subject="cgroups.bestEffortFloor",
        )
    capacity = node.capacity.get(CPU, ZERO).milli
    reserved = capacity - node.absolute().get(CPU, ZERO).milli
    return BestEffortLimitRules(capacity, reserved, section.best_effort_ceiling, section.best_effort_floor)


def _quantity(name: str, amount: Quantity | int) -> Quantity:
    if isinstance(amount, Quantity):
        return amount
    return Quantity.from_milli(amount) if name == CPU else Quantity.from_value(amount, BINARY_SI)


def _reserved_percent(config: KubeletConfiguration) -> int | None:
    """Return `qosReserved.memory`. The kubelet requires the gate QOSReserved; here the field is enough."""
    reserved = config.qos_reserved or {}
    unknown = sorted(reserved.keys() - {MEMORY})
    if unknown:
        raise InvalidInput("only memory can be reserved", subject=f"qosReserved.{unknown[0]}")
    if MEMORY not in reserved:
        return None
    match = _PERCENT.fullmatch(reserved[MEMORY])
    if match is None or int(match[1]) > 100:
        raise InvalidInput(f"expected 0% to 100%, got {reserved[MEMORY]!r}", subject=f"qosReserved.{MEMORY}")
    return int(match[1])


def _reserved_groups(
    config: KubeletConfiguration, node: NodeAllocatable, *, memory_qos: bool
) -> tuple[ReservedGroup, ...]:
    keys = config.enforce_node_allocatable
    unknown = sorted(set(keys) - _ENFORCEABLE)
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is unknown", subject="enforceNodeAllocatable")
    if "none" in keys and len(keys) > 1:
        raise InvalidInput("'none' excludes the others", subject="enforceNodeAllocatable")
    if PODS in keys and not config.cgroups_per_qos:
        raise InvalidInput("'pods' needs cgroupsPerQOS", subject="enforceNodeAllocatable")
    settings = {
        "system-reserved": ("systemReserved", config.system_reserved_cgroup, node.system_reserved),
        "kube-reserved": ("kubeReserved", config.kube_reserved_cgroup, node.kube_reserved),
    }
    groups: list[ReservedGroup] = []
    for kind, (field, path, resources) in settings.items():
        whole, compressible = kind in keys, kind + COMPRESSIBLE in keys
        if whole and compressible:
            raise InvalidInput(f"{kind} is named in both forms", subject="enforceNodeAllocatable")
        if not whole and not compressible:
            continue
        if not path:
            raise InvalidInput(f"expected a cgroup, since {kind} is enforced", subject=f"{field}Cgroup")
        name = parse_path(path, config.cgroup_driver)  # type: ignore[arg-type]
        groups.append(ReservedGroup(kind, name, resources or {}, compressible, memory_qos))
    return tuple(groups)


def _reservations(config: KubeletConfiguration) -> tuple[ResourceList | None, ResourceList | None]:
    """Return kubeReserved and systemReserved; reservedSystemCPUs replaces the CPU of both."""
    kube = parse_resources(config.kube_reserved, "kubeReserved")
    system = parse_resources(config.system_reserved, "systemReserved")
    if not config.reserved_system_cpus:
        return kube, system
    count = cpu_set.parse(config.reserved_system_cpus, "reservedSystemCPUs").bit_count()
    without = {name: amount for name, amount in (system or {}).items() if name != CPU}
    return {**(kube or {}), CPU: Quantity.from_value(count)}, without
