"""Run the node under its systemd unit, where systemd is init. The runtime is a service too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from engine.api.errors import KubengineError
from engine.cli.agent.client import AgentClient
from engine.cli.agent.paths import default_socket
from engine.testing.images import BUSYBOX_TAG, busybox_layer, write_image
from tests.waiting import PATIENCE

UNIT = "kubengine.service"
UNITS = Path("/run/systemd/system")
FILES = ("tmpfs", "owned", "downward")
SCRIPT = "trap 'exit 0' TERM; sleep infinity & wait"


def under_its_unit(unit: Path, scratch: Path) -> dict[str, Any]:
    """Return what a pod observes that needs the agent's privileges, and what systemd reports of the agent.

    Then the agent is killed, hangs, and is restarted; the pod's containers must stay.
    """
    manifests = scratch / "manifests"
    manifests.mkdir()
    agent = AgentClient(str(default_socket(scratch / "root")))
    start_runtime(scratch, scratch / "cri.sock")
    install(unit, scratch, manifests)
    systemctl("start", UNIT)
    seen: dict[str, Any] = {"active": shown("ActiveState", "SubState", "StatusText")}
    write(manifests)
    first = await_running(agent)
    seen["pod"] = agent.get_json("/pods")["items"][0]["metadata"]["name"]
    seen["files"] = {name: (scratch / "out" / name).read_text() for name in FILES}
    pid = int(shown("MainPID")["MainPID"])
    seen["process"] = process(pid)
    os.kill(pid, signal.SIGKILL)
    seen["after"] = {"killed": containers_after(agent, pid) == first}
    pid = int(shown("MainPID")["MainPID"])
    os.kill(pid, signal.SIGSTOP)
    seen["after"]["hung"] = containers_after(agent, pid) == first
    seen["result"] = shown("NRestarts")["NRestarts"]
    systemctl("restart", UNIT)
    seen["after"]["restarted"] = await_running(agent) == first
    (manifests / "pod.yaml").unlink()
    eventually(lambda: not agent.get_json("/pods")["items"])
    seen["mounts left"] = [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if "/root/pods" in line
    ]
    systemctl("stop", UNIT)
    seen["stopped"] = shown("ActiveState", "Result")
    return seen


def start_runtime(scratch: Path, socket: Path) -> None:
    write_image(
        scratch / "archives/busybox.tar",
        [BUSYBOX_TAG],
        layers=[busybox_layer(("sh", "cat", "sleep", "stat", "true"))],
    )
    put(
        UNITS / "runtime.service",
        "[Unit]\nDefaultDependencies=no\n[Service]\nKillMode=process\nDelegate=yes\n"
        + environment()
        + f"ExecStart={sys.executable} -m engine.cli runtime --socket {socket} "
        f"--root {scratch}/images --state {scratch}/state --images-dir {scratch}/archives\n",
    )
    systemctl("daemon-reload")
    systemctl("start", "runtime.service")
    eventually(socket.exists)


def install(unit: Path, scratch: Path, manifests: Path) -> None:
    """Install the unit unchanged, with a drop-in for paths and the deadline of a hung agent."""
    config = {
        "kind": "KubeletConfiguration",
        "staticPodPath": str(manifests),
        "podLogsDir": str(scratch / "logs"),
        "containerRuntimeEndpoint": f"unix://{scratch}/cri.sock",
        "resolvConf": "",
        "evictionHard": {"memory.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    }
    put(scratch / "config.yaml", yaml.safe_dump(config))
    put(UNITS / UNIT, unit.read_text())
    put(
        UNITS / f"{UNIT}.d/place.conf",
        "[Unit]\nDefaultDependencies=no\n[Service]\nRestartSec=100ms\nWatchdogSec=20s\nExecStart=\n"
        + environment()
        + f"ExecStart={sys.executable} -m engine.cli run --config {scratch}/config.yaml "
        f"--root-dir {scratch}/root\n",
    )
    systemctl("daemon-reload")


def environment() -> str:
    wanted = ("PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OPENBLAS_NUM_THREADS", "HOME", "TMPDIR")
    return "".join(f'Environment="{name}={os.environ[name]}"\n' for name in wanted if name in os.environ)


def write(manifests: Path) -> None:
    """Write a pod with a memory volume, a volume of another group, files of the downward API, and an exec
    probe."""
    out = manifests.parent / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    report = (
        "stat -f -c %T /tmpfs > /out/tmpfs; stat -c '%g %a' /group > /out/owned; "
        "cat /names/name > /out/downward; "
    )
    mounts = {"tmpfs": "/tmpfs", "group": "/group", "names": "/names", "out": "/out"}
    downward = [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
    spec = {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": 1000, "fsGroup": 3000},
        "containers": [
            {
                "name": "main",
                "image": BUSYBOX_TAG,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", report + SCRIPT],
                "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
                "readinessProbe": {"exec": {"command": ["/bin/true"]}, "periodSeconds": 1},
                "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
            }
        ],
        "volumes": [
            {"name": "tmpfs", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "group", "emptyDir": {}},
            {"name": "names", "downwardAPI": {"items": downward}},
            {"name": "out", "hostPath": {"path": str(out), "type": "Directory"}},
        ],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    put(manifests / ".new", json.dumps(pod))
    (manifests / ".new").rename(manifests / "pod.yaml")


def process(pid: int) -> dict[str, str]:
    """Return the agent's privileges in the kernel, and whether it shares the host's mount namespace."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "bounding": status["CapBnd"],
        "no new privileges": status["NoNewPrivs"],
        "seccomp": status["Seccomp"].strip(),
        "mounts are the host's": str(Path(f"/proc/{pid}/ns/mnt").samefile("/proc/1/ns/mnt")),
    }


def await_running(agent: AgentClient) -> list[tuple[str, int]]:
    """Wait until the pod is ready, and return (id, restart count) of its containers."""
    found: list[tuple[str, int]] = []

    def ready() -> bool:
        statuses = [
            status
            for pod in agent.get_json("/pods")["items"]
            for status in pod["status"].get("containerStatuses", [])
        ]
        found[:] = [(status["containerID"], status["restartCount"]) for status in statuses]
        return bool(statuses) and all(status["ready"] for status in statuses)

    eventually(ready)
    return found


def containers_after(agent: AgentClient, pid: int) -> list[tuple[str, int]]:
    """Wait until systemd has replaced the agent `pid`, and return the pod's containers."""
    eventually(
        lambda: (
            shown("MainPID")["MainPID"] not in ("0", str(pid))
            and shown("ActiveState")["ActiveState"] == "active"
        )
    )
    return await_running(agent)


def eventually(condition: Callable[[], bool]) -> None:
    error: Exception | None = None
    for _ in range(1200):
        try:
            if condition():
                return
        except (OSError, LookupError, ValueError, KubengineError) as caught:
            error = caught
        time.sleep(0.1)
    raise AssertionError(f"never: {error}\n{systemctl('status', '--no-pager', '--lines=40', UNIT)}")


def shown(*names: str) -> dict[str, str]:
    text = systemctl("show", UNIT, *(f"--property={name}" for name in names))
    return dict(line.split("=", 1) for line in text.splitlines())


def systemctl(*arguments: str) -> str:
    return subprocess.run(
        ["systemctl", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=arguments[0] != "status",
        timeout=PATIENCE,
    ).stdout


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
