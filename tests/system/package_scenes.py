"""Install the Debian package where systemd is init, upgrade it under a pod, remove it, and purge it.

/usr, /etc and /var are the machine's own; an overlay holds every change to them.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from engine.cli.agent.client import AgentClient
from engine.cli.agent.paths import default_socket
from engine.testing.images import BUSYBOX_TAG
from tests.system.unit_scenes import (
    UNIT,
    UNITS,
    await_running,
    containers_after,
    put,
    shown,
    start_runtime,
    systemctl,
)

FINIT_MODULE = 313
OVERLAY = Path("/usr/lib/uml/modules", os.uname().release, "kernel/fs/overlayfs/overlay.ko")
TREES = ("usr", "etc", "var")
RUNTIME = Path("/run/containerd/containerd.sock")
MANIFESTS = Path("/etc/kubernetes/manifests")
STARTS_NOTHING = Path("/usr/sbin/policy-rc.d")
"""Machines that tests run on have it; a node has not."""
NAP = "86399"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pod"},
    "spec": {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": BUSYBOX_TAG,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sleep", NAP],
                "resources": {"limits": {"memory": "64Mi"}},
            }
        ],
    },
}


def from_install_to_purge(package: Path, scratch: Path) -> dict[str, Any]:
    """Return what systemd and dpkg report, and the state of the pod, after install, upgrade, removal and
    purge.

    The upgrade is to the same version: dpkg and the package's scripts treat it like any other.
    """
    cover_trees(scratch)
    STARTS_NOTHING.unlink(missing_ok=True)
    start_runtime(scratch, RUNTIME)
    place = "[Unit]\nDefaultDependencies=no\n[Service]\nTimeoutStartSec=infinity\n"
    put(UNITS / f"{UNIT}.d/place.conf", place)
    systemctl("daemon-reload")
    changed_before = changed(scratch)
    dpkg("--install", package)
    seen: dict[str, Any] = {"installed": state()}
    put(MANIFESTS / "pod.yaml", json.dumps(POD))
    agent = AgentClient(str(default_socket(Path("/var/lib/kubelet"))))
    containers = await_running(agent)
    put(Path("/etc/default/kubengine"), "KUBENGINE_OPTIONS=--log-level=debug\n")
    pid = int(shown("MainPID")["MainPID"])
    kubelet = subprocess.run(["/usr/bin/kubelet", "--version"], check=True, stdout=subprocess.PIPE, text=True)
    seen["kubelet"] = kubelet.stdout.strip()
    seen["command"] = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    dpkg("--install", package)
    same = containers_after(agent, pid) == containers
    pid = int(shown("MainPID")["MainPID"])
    seen["upgraded"] = state() | {
        "the pod goes on": same and pod_processes() == 1,
        "options": Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-2],
    }
    dpkg("--remove", "kubengine")
    seen["removed"] = {"agent": shown("ActiveState", "Result"), "pods": pod_processes()}
    dpkg("--purge", "kubengine")
    seen["left"] = sorted(changed(scratch) - changed_before)
    return seen


def cover_trees(scratch: Path) -> None:
    with OVERLAY.open("rb") as module:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syscall(FINIT_MODULE, module.fileno(), b"", 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(OVERLAY))
    for tree in TREES:
        layer = scratch / "layers" / tree
        for name in ("changed", "work"):
            (layer / name).mkdir(parents=True)
        options = f"lowerdir=/{tree},upperdir={layer}/changed,workdir={layer}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", f"/{tree}"], check=True)


def changed(scratch: Path) -> set[str]:
    """Return the files of the system that changed, except logs, dpkg's records and files of pods."""
    own = ("var/lib/dpkg/", "var/log/", "var/cache/", "var/lib/kubelet/", "etc/kubernetes/")
    found = {
        f"{tree}/{path.relative_to(top)}"
        for tree in TREES
        for top in [scratch / "layers" / tree / "changed"]
        for path in top.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }
    return {name for name in found if not name.startswith(own)}


def dpkg(*arguments: str | Path) -> None:
    """Run dpkg without a deadline and without triggers, which update indexes of other packages."""
    command = ["dpkg", "--force-depends", "--force-unsafe-io", "--no-triggers", *arguments]
    run = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.returncode == 0, run.stdout


def state() -> dict[str, str]:
    enabled = subprocess.run(
        ["systemctl", "is-enabled", UNIT], check=False, stdout=subprocess.PIPE, text=True
    )
    return shown("ActiveState", "SubState") | {"unit": enabled.stdout.strip()}


def pod_processes() -> int:
    """Return the number of the pod's processes."""
    wanted = f"/bin/sleep\0{NAP}\0"
    return sum(command == wanted for path in Path("/proc").glob("[0-9]*") for command in _commands(path))


def _commands(process: Path) -> list[str]:
    try:
        return [(process / "cmdline").read_text()]
    except OSError:  # it has ended
        return []
