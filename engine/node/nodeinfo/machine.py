"""Reads the capacity of the machine and the facts of `nodeInfo`."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.encoding.go_architecture import go_architecture
from engine.api.errors import Refused
from engine.api.quantity import BINARY_SI, Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from engine.api.version import engine_version
from engine.host.cgroupfs.mounts import Mounts
from engine.host.cgroupfs.usage import CgroupUsage, HeldFile, machine_memory

PIDS = "pid"
MEMINFO = Path("/proc/meminfo")
_SEMANTIC = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_NUMBERS = re.compile(r"\d+(\.\d+)+")
KUBELET = "v1.36.2"
"""The version of the kubelet that the agent behaves like; control planes compare versions and ignore what
follows a plus.
"""


def capacity(root: Path, config: KubeletConfiguration) -> dict[str, Quantity]:
    """Return the capacity: cpu, memory, ephemeral-storage (of the file system of `root`), hugepages and pods.

    Without local storage isolation there is no ephemeral-storage to request.
    """
    return as_configured(hardware(root), config)


def hardware(root: Path) -> dict[str, Quantity]:
    """Return what the machine has, whatever the configuration says."""
    disk = os.statvfs(existing_parent(root))
    amounts = {
        # All CPUs that are online, as cAdvisor counts them, also those that the agent itself may not use.
        CPU: Quantity.from_value(os.cpu_count() or 1),
        MEMORY: Quantity.from_value(memory_total(), BINARY_SI),
        EPHEMERAL_STORAGE: Quantity.from_value(disk.f_blocks * disk.f_frsize, BINARY_SI),
    }
    pools = Path("/sys/kernel/mm/hugepages")
    for pool in sorted(pools.glob("hugepages-*kB")) if pools.is_dir() else ():
        size = int(pool.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        pages = int((pool / "nr_hugepages").read_text())
        name = f"hugepages-{Quantity.from_value(size, BINARY_SI)}"
        amounts[name] = Quantity.from_value(pages * size, BINARY_SI)
    return amounts


def as_configured(amounts: Mapping[str, Quantity], config: KubeletConfiguration) -> dict[str, Quantity]:
    """Return the capacity of a machine that has these amounts."""
    cores = amounts[CPU].value
    most, per_core = config.max_pods, config.pods_per_core
    pods = Quantity.from_value(min(most, cores * per_core) if per_core else most)
    found = {CPU: amounts[CPU], MEMORY: amounts[MEMORY], PODS: pods, **amounts}
    if not config.local_storage_capacity_isolation:
        found.pop(EPHEMERAL_STORAGE)
    return found


def existing_parent(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_total() -> int:
    """Return the memory in bytes."""
    return _meminfo("MemTotal:")


def memory_in_use(mounts: Mounts) -> tuple[int, int]:
    """Return the memory in use and the working set, in bytes.

    The working set is what the eviction signal `memory.available` subtracts. Without a cgroup, everything
    counts that is not available without swapping.
    """
    root, meminfo = CgroupUsage("/", mounts), HeldFile(MEMINFO)
    try:
        return machine_memory(root, meminfo)
    except (OSError, Refused):
        # A machine without a memory controller still has pressure to report.
        used = memory_total() - _meminfo("MemAvailable:")
        return used, used
    finally:
        root.close()
        meminfo.close()


def swap() -> tuple[int, int]:
    """Return the swap space and the free swap space, in bytes."""
    return _meminfo("SwapTotal:"), _meminfo("SwapFree:")


def _meminfo(field: str) -> int:
    """Return one field of /proc/meminfo in bytes, or 0 if the kernel does not have it."""
    with MEMINFO.open() as lines:
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def max_pids() -> int:
    """Return how many processes the kernel allows: the smaller of pid_max and threads-max."""
    files = (Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/kernel/threads-max"))
    return min(int(file.read_text()) for file in files)


def architecture() -> str:
    """Return the processor architecture by Go's name, as images, labels and metrics have it."""
    return go_architecture(platform.machine())


def node_labels(name: str) -> dict[str, str]:
    arch = architecture()
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": arch,
    }


def kubelet_version() -> str:
    return f"{KUBELET}+kubengine-{engine_version()}"


def node_info(runtime: str) -> dict[str, Any]:
    """Return the node's info; `runtime` is the name and version of the runtime: `containerd://1.6.20`."""
    machine_id = Path("/etc/machine-id")
    swap_total, _ = swap()
    return {
        "kubeletVersion": kubelet_version(),
        "systemUUID": _system_uuid(),
        "machineID": machine_id.read_text().strip() if machine_id.exists() else "",
        "bootID": boot_id(),
        "kernelVersion": platform.release(),
        "osImage": _os_name(),
        "containerRuntimeVersion": runtime,
        "operatingSystem": "linux",
        "architecture": architecture(),
        **({"swap": {"capacity": swap_total}} if swap_total else {}),
    }


def runtime_of(name: str, version: str) -> str:
    """Return `containerd://1.6.20`: a semantic version as it is, the leading numbers of any other
    (`1.6.20~ds1`).
    """
    # Distributions put their own suffix behind the version, which the kubelet's parser refuses.
    bare = version.removeprefix("v")
    if _SEMANTIC.fullmatch(bare):
        return f"{name}://{bare}"
    numbers = _NUMBERS.match(bare)
    return f"{name}://{numbers[0] if numbers else 'Unknown'}"


def _system_uuid() -> str:
    """Return the UUID from the firmware, or else the machine id, as cadvisor does for the kubelet."""
    # The first two are readable by root only, and missing in containers and on some boards.
    for file in ("/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            return Path(file).read_text().strip("\0\n ")
    return ""


def boot_id() -> str:
    """Return the boot id, which changes with each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def device_name(major: int, minor: int) -> str:
    """Return the path of a block device, such as `/dev/sda`, or '' if the machine does not have it."""
    try:
        return f"/dev/{Path(f'/sys/dev/block/{major}:{minor}').readlink().name}"
    except OSError:
        return ""
