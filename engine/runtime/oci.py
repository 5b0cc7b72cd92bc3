"""Describe a container in the format of the OCI runtime specification (config.md, config-linux.md).

Only for display: tools such as `crictl inspect` expect this format in a container's verbose status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.wire import cri_v1_pb2 as cri

VERSION = "1.0.2"
PROPAGATION = {cri.PROPAGATION_PRIVATE: "rprivate", cri.PROPAGATION_HOST_TO_CONTAINER: "rslave",
               cri.PROPAGATION_BIDIRECTIONAL: "rshared"}  # fmt: skip


def runtime_spec(
    request: Mapping[str, Any],
    cgroup: str,
    resources: cri.LinuxContainerResources,
    user: cri.ContainerUser | None,
) -> dict[str, Any]:
    """Return the specification of a container from its shim's `request` (its `container_request`).

    `user` is the identity that it runs as, None before its first start.
    """
    held = sorted(f"CAP_{name}" for name in request["capabilities"])
    ambient = sorted(f"CAP_{name}" for name in request["ambient"])
    process: dict[str, Any] = {
        "terminal": request["tty"],
        "user": _user(user),
        "args": request["args"],
        "env": [f"{key}={value}" for key, value in request["env"].items()],
        "cwd": request["cwd"],
        "capabilities": {
            "bounding": held, "effective": held, "permitted": held,
            "inheritable": ambient, "ambient": ambient,
        },
        "noNewPrivileges": request["no_new_privs"],
        "oomScoreAdj": request["oom_score_adj"],
    }  # fmt: skip
    return {
        "ociVersion": VERSION,
        "process": process,
        "root": {"path": request["rootfs"]["path"], "readonly": request["readonly_rootfs"]},
        "hostname": request["env"].get("HOSTNAME", ""),
        "mounts": [_mount(mount) for mount in request["mounts"]],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": _namespaces(request),
            "resources": _resources(resources),
            "devices": [{"path": device["container"]} for device in request["devices"]],
            "maskedPaths": request["masked_paths"],
            "readonlyPaths": request["readonly_paths"],
        },
    }


def _user(user: cri.ContainerUser | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {
        "uid": user.linux.uid, "gid": user.linux.gid, "additionalGids": list(user.linux.supplemental_groups),
    }  # fmt: skip


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    access = ("rro" if mount["recursive_readonly"] else "ro") if mount["readonly"] else "rw"
    return {
        "destination": mount["target"], "type": "bind", "source": mount["source"],
        "options": ["rbind", PROPAGATION[mount["propagation"]], access],
    }  # fmt: skip


def _namespaces(request: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the namespaces: the container's own have no path, the pod's have the path of its holder's."""
    pause = request["pause"]
    found = [{"type": "mount"}]
    found += [{"type": kind, "path": f"/proc/{pause}/ns/{file}"}
              for kind, file in (("network", "net"), ("ipc", "ipc"), ("uts", "uts"))]  # fmt: skip
    pid = {
        "new": {},
        "pod": {"path": f"/proc/{pause}/ns/pid"},
        "target": {"path": f"/proc/{request['target']}/ns/pid"},
    }
    if request["pid_namespace"] in pid:
        found.append({"type": "pid", **pid[request["pid_namespace"]]})
    return found


def _resources(wanted: cri.LinuxContainerResources) -> dict[str, Any]:
    """Return the resources; zero means not set, as in the CRI."""
    cpu = {
        "shares": wanted.cpu_shares, "quota": wanted.cpu_quota, "period": wanted.cpu_period,
        "cpus": wanted.cpuset_cpus, "mems": wanted.cpuset_mems,
    }  # fmt: skip
    memory = {"limit": wanted.memory_limit_in_bytes, "swap": wanted.memory_swap_limit_in_bytes}
    found: dict[str, Any] = {
        "cpu": {name: value for name, value in cpu.items() if value},
        "memory": {name: value for name, value in memory.items() if value},
    }
    if wanted.hugepage_limits:
        found["hugepageLimits"] = [
            {"pageSize": huge.page_size, "limit": huge.limit} for huge in wanted.hugepage_limits
        ]
    if wanted.unified:
        found["unified"] = dict(wanted.unified)
    return found
