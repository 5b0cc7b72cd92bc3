"""Names the eviction signals, the resources that they starve, and the node conditions that they raise."""

from __future__ import annotations

from typing import Final, NamedTuple

MEMORY_AVAILABLE: Final = "memory.available"
ALLOCATABLE_MEMORY_AVAILABLE: Final = "allocatableMemory.available"
NODEFS_AVAILABLE: Final = "nodefs.available"
NODEFS_INODES_FREE: Final = "nodefs.inodesFree"
IMAGEFS_AVAILABLE: Final = "imagefs.available"
IMAGEFS_INODES_FREE: Final = "imagefs.inodesFree"
CONTAINERFS_AVAILABLE: Final = "containerfs.available"
CONTAINERFS_INODES_FREE: Final = "containerfs.inodesFree"
PID_AVAILABLE: Final = "pid.available"
MEMORY_STALL: Final = "memory.stall"
"""A signal of our own: the share of time in which not all pods wait for memory."""

MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
INODES: Final = "inodes"
PIDS: Final = "pids"

MEMORY_PRESSURE: Final = "MemoryPressure"
DISK_PRESSURE: Final = "DiskPressure"
PID_PRESSURE: Final = "PIDPressure"

RESOURCE_OF: Final = {
    MEMORY_AVAILABLE: MEMORY,
    ALLOCATABLE_MEMORY_AVAILABLE: MEMORY,
    IMAGEFS_AVAILABLE: EPHEMERAL_STORAGE,
    IMAGEFS_INODES_FREE: INODES,
    CONTAINERFS_AVAILABLE: EPHEMERAL_STORAGE,
    CONTAINERFS_INODES_FREE: INODES,
    NODEFS_AVAILABLE: EPHEMERAL_STORAGE,
    NODEFS_INODES_FREE: INODES,
    PID_AVAILABLE: PIDS,
    MEMORY_STALL: MEMORY,
}
"""The resource that a signal reports as starved."""

CONDITION_OF: Final = {
    MEMORY_AVAILABLE: MEMORY_PRESSURE,
    ALLOCATABLE_MEMORY_AVAILABLE: MEMORY_PRESSURE,
    IMAGEFS_AVAILABLE: DISK_PRESSURE,
    IMAGEFS_INODES_FREE: DISK_PRESSURE,
    CONTAINERFS_AVAILABLE: DISK_PRESSURE,
    CONTAINERFS_INODES_FREE: DISK_PRESSURE,
    NODEFS_AVAILABLE: DISK_PRESSURE,
    NODEFS_INODES_FREE: DISK_PRESSURE,
    PID_AVAILABLE: PID_PRESSURE,
    MEMORY_STALL: MEMORY_PRESSURE,
}

MEMORY_SIGNALS: Final = (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY_AVAILABLE, MEMORY_STALL)


class SignalObservation(NamedTuple):
    """Hold one measured signal: bytes, inodes or process ids; `at` is its time in the manager's seconds."""

    available: int
    capacity: int
    at: float


Observations = dict[str, SignalObservation]
