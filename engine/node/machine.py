"""What this machine has: capacity, addresses and the facts of `nodeInfo`."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.quantity import BINARY_SI, Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from engine.api.version import engine_version

PIDS = "pid"
KUBELET = "v1.36.2"
"""The kubelet whose behaviour this is: control planes compare versions, and leave out what follows a plus."""


def capacity(root: Path, config: KubeletConfiguration) -> dict[str, Quantity]:
    """cpu, memory, ephemeral-storage (of the file system that holds `root`), hugepages and pods.

    A node that does not isolate local storage has none to request.
    """
    amounts = {
        CPU: Quantity.from_value(os.cpu_count() or 1),
        MEMORY: Quantity.from_value(memory_total(), BINARY_SI),
        PODS: Quantity.from_value(config.max_pods),
    }
    if config.local_storage_capacity_isolation:
        disk = os.statvfs(existing_parent(root))
        amounts[EPHEMERAL_STORAGE] = Quantity.from_value(disk.f_blocks * disk.f_frsize, BINARY_SI)
    pools = Path("/sys/kernel/mm/hugepages")
    for pool in sorted(pools.glob("hugepages-*kB")) if pools.is_dir() else ():
        size = int(pool.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        pages = int((pool / "nr_hugepages").read_text())
        name = f"hugepages-{Quantity.from_value(size, BINARY_SI)}"
        amounts[name] = Quantity.from_value(pages * size, BINARY_SI)
    return amounts


def existing_parent(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_total() -> int:
    """Bytes of memory."""
    return _meminfo("MemTotal:")


def memory_available() -> int:
    """Bytes that the kernel thinks can be had without swapping."""
    return _meminfo("MemAvailable:")


def _meminfo(field: str) -> int:
    """Bytes of one field of /proc/meminfo, 0 where the kernel has not got it."""
    with Path("/proc/meminfo").open() as lines:
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def max_pids() -> int:
    """How many processes the kernel allows: the smaller of pid_max and threads-max."""
    files = (Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/kernel/threads-max"))
    return min(int(file.read_text()) for file in files)


def host_ip() -> str:
    """The address that the default route would send from; loopback without one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def node_labels(name: str) -> dict[str, str]:
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": arch,
    }


def node_info(runtime: str) -> dict[str, str]:
    machine_id = Path("/etc/machine-id")
    return {
        "kubeletVersion": f"{KUBELET}+kubengine-{engine_version()}",
        "systemUUID": _system_uuid(),
        "machineID": machine_id.read_text().strip() if machine_id.exists() else "",
        "bootID": boot_id(),
        "kernelVersion": platform.release(),
        "osImage": _os_name(),
        "containerRuntimeVersion": runtime,
        "operatingSystem": "linux",
        "architecture": node_labels("")["kubernetes.io/arch"],
    }


def _system_uuid() -> str:
    """The firmware's, else the machine id in its place (cadvisor, which the kubelet asks)."""
    for file in ("/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            return Path(file).read_text().strip("\0\n ")
    return ""


def boot_id() -> str:
    """Another one after each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
