"""Converts cgroup names between a tuple of components and the spelling of each driver.

`("kubepods", "burstable", "pod<uid>")` is `/kubepods/burstable/pod<uid>` on cgroupfs and
`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice` for systemd, where `-` inside a
component becomes `_`. Source: kubelet v1.32 `cm` package; pinned by `tests/conformance`.
"""

from __future__ import annotations

from typing import Final, Literal

from engine.api.errors import InvalidInput
from engine.api.qos import BEST_EFFORT, BURSTABLE

CgroupName = tuple[str, ...]
Driver = Literal["cgroupfs", "systemd"]

KUBEPODS: Final = "kubepods"
POD_PREFIX: Final = "pod"
SLICE: Final = ".slice"
LEVEL_COMPONENTS: Final = {BURSTABLE: ("burstable",), BEST_EFFORT: ("besteffort",)}


def cgroup_name(*components: str) -> CgroupName:
    """Build a name from components. Raises `InvalidInput` for `_` or `/` inside one."""
    for component in components:
        if "/" in component or "_" in component:
            raise InvalidInput(f"cgroup name component {component!r} must not contain '/' or '_'")
    return components


def to_cgroupfs(name: CgroupName) -> str:
    return "/" + "/".join(name)


def to_systemd(name: CgroupName) -> str:
    """Return the path below the hierarchy's root with every slice level."""
    if name in ((), ("",)):
        return "/"
    units = [_unit(name[: depth + 1]) for depth in range(len(name))]
    return "/" + "/".join(units)


def _unit(name: CgroupName) -> str:
    if not all(name) or name[0].startswith("."):
        raise InvalidInput(f"no systemd slice can be named after {'/'.join(name)!r}")
    return "-".join(component.replace("-", "_") for component in name) + SLICE


def systemd_unit(name: CgroupName) -> tuple[str, str]:
    """Return the unit and its parent slice; the parent of a top-level slice is `-.slice`."""
    if name in ((), ("",)):
        return "", "-.slice"
    return _unit(name), _unit(name[:-1]) if len(name) > 1 else "-.slice"


def to_path(name: CgroupName, driver: Driver) -> str:
    return to_systemd(name) if driver == "systemd" else to_cgroupfs(name)


def parse_cgroupfs(path: str) -> CgroupName:
    stripped = path.removeprefix("/")
    return tuple(stripped.split("/")) if stripped else ()


def parse_systemd(path: str) -> CgroupName:
    """Parse a path; only the last element counts, because it contains all components."""
    last = path.rstrip("/").rpartition("/")[2] or ("/" if path else ".")
    return tuple(part.replace("_", "-") for part in last.removesuffix(SLICE).split("-"))


def parse_path(path: str, driver: Driver) -> CgroupName:
    return parse_systemd(path) if driver == "systemd" else parse_cgroupfs(path)


def node_allocatable_root(cgroup_root: str, cgroups_per_qos: bool) -> CgroupName:
    """Return the cgroup of all pods: `<cgroup root>/kubepods`."""
    root = parse_cgroupfs(cgroup_root)
    return (*root, KUBEPODS) if cgroups_per_qos else root


def level_name(root: CgroupName, qos_class: str) -> CgroupName:
    """Return the QoS level's cgroup; Guaranteed pods are directly below the root."""
    return (*root, *LEVEL_COMPONENTS.get(qos_class, ()))


def pod_name(root: CgroupName, qos_class: str, uid: str) -> CgroupName:
    return (*level_name(root, qos_class), POD_PREFIX + uid)


def pod_uid(root: CgroupName, path: str, driver: Driver) -> str | None:
    """Return the uid in a pod cgroup's path, or None for any other path.

    Only the depth and the prefix `pod` count, as in the kubelet: a uid that itself contains `pod` is not
    recognized.
    """
    name = parse_path(path, driver)
    if len(name) not in (len(root) + 1, len(root) + 2):
        return None
    before, prefix, uid = name[-1].partition(POD_PREFIX)
    if before or not prefix or POD_PREFIX in uid:
        return None
    return uid
