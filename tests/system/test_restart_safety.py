"""Kill the agent three times while it makes fifty pods: all run, none twice, nothing is orphaned."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.api.errors import KubengineError
from engine.cli.agent.client import AgentClient
from engine.cri.client import RuntimeClient
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG
from engine.wire import cri_v1_pb2 as cri
from tests.guarded_host import COMMAND
from tests.waiting import wait_until

pytestmark = [pytest.mark.containerd, pytest.mark.root, pytest.mark.slow]

PODS = 50
NEVER_STARTED = "StartError"
"""What containerd says of a container whose start failed."""


class AgentUnderTest:
    """Run `kubengine run` as a process that can be killed."""

    def __init__(self, directory: Path, containerd: Containerd, cgroup_root: str) -> None:
        self.root = directory / "root"
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.log = directory / "agent.log"
        config = directory / "kubelet.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "kind": "KubeletConfiguration",
                    "readOnlyPort": 0,
                    "healthzPort": 0,
                    "podLogsDir": str(directory / "logs"),
                    "evictionHard": {"memory.available": "0%"},
                    "cgroupRoot": cgroup_root,
                    "resolvConf": "",
                }
            )
        )
        self._command = [*COMMAND, "run", "--config", str(config)]
        self._command += ["--manifests", str(self.manifests), "--runtime", f"unix://{containerd.socket}"]
        self._command += ["--root-dir", str(self.root), "--node-name", "n1"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def pods(self) -> list[dict[str, Any]]:
        try:
            return AgentClient(str(self.root / "kubengine.sock")).get_json("/pods")["items"]
        except KubengineError:
            return []

    def restarted_without_cause(self) -> Iterator[str]:
        """Yield each pod with a container that was restarted although it ran.

        A container that never started, because an agent died meanwhile, may have one restart.
        """
        log = self.log.read_text()
        for pod in self.pods():
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for status in pod["status"]["containerStatuses"]:
                ended = status.get("lastState", {}).get("terminated", {}).get("reason", NEVER_STARTED)
                started = log.count(f" Started {name}/")
                if status["restartCount"] and (ended != NEVER_STARTED or started > 1):
                    yield f"{name}: {status}"

    def running(self) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods())


@pytest.fixture
def agent(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> Iterator[AgentUnderTest]:
    agent = AgentUnderTest(tmp_path, containerd, private_cgroup_root)
    yield agent
    agent.end(signal.SIGKILL)
    containerd.remove_pods()


def write_pod(directory: Path, index: int) -> None:
    command = ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 1; done"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod{index}"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": "c", "image": BUSYBOX_TAG, "imagePullPolicy": "Never", "command": command}
            ],
        },
    }
    (directory / f"pod{index}.yaml").write_text(yaml.safe_dump(pod))


def wait_even_if_containerd_is_stuck(condition: Any, containerd: Containerd) -> None:
    """Wait until the condition holds, and restart containerd if that takes a minute.

    containerd 1.6 can lose hold of a container when its client dies during the start. It neither removes the
    container ("cannot delete running task") nor starts it before its own restart.
    """
    try:
        wait_until(condition, 60)
    except AssertionError:
        containerd.kill()
        containerd.start()
        wait_until(condition)


async def runtime_state(endpoint: Path) -> tuple[list[str], list[str], list[tuple[str, int]]]:
    """Return the pod uids of all sandboxes, those of running containers, and (uid, state) of other
    containers."""
    client = RuntimeClient(str(endpoint))
    try:
        sandboxes = [s.labels["io.kubernetes.pod.uid"] for s in await client.list_pod_sandboxes()]
        containers = [(c.labels["io.kubernetes.pod.uid"], c.state) for c in await client.list_containers()]
    finally:
        await client.close()
    return (
        sorted(sandboxes),
        sorted(uid for uid, state in containers if state == cri.CONTAINER_RUNNING),
        sorted((uid, state) for uid, state in containers if state != cri.CONTAINER_RUNNING),
    )


def test_kill_nine_three_times_under_fifty_pods(
    agent: AgentUnderTest, containerd: Containerd, private_cgroup_root: str
):
    for index in range(PODS):
        write_pod(agent.manifests, index)
    for wanted in (3, 15, 30):
        agent.start()
        wait_until(lambda wanted=wanted: agent.running() >= wanted)
        agent.end(signal.SIGKILL)
    agent.start()
    wait_even_if_containerd_is_stuck(lambda: agent.running() == PODS, containerd)
    assert list(agent.restarted_without_cause()) == []
    sandboxes, running, left = asyncio.run(runtime_state(containerd.socket))
    assert len(sandboxes) == len(set(sandboxes)) == PODS
    assert running == sandboxes
    # Of a start that was cut off, one container at most is a pod's last state.
    assert left == sorted({(uid, cri.CONTAINER_EXITED) for uid, _ in left})
    groups = list(
        Path("/sys/fs/cgroup/cpu", private_cgroup_root.lstrip("/")).glob("kubepods/besteffort/pod*")
    )
    assert sorted(group.name for group in groups) == sorted(f"pod{uid}" for uid in sandboxes)

    agent.end(signal.SIGTERM)
    assert asyncio.run(runtime_state(containerd.socket))[1] == running
    for index in range(PODS):
        (agent.manifests / f"pod{index}.yaml").unlink()
    agent.start()
    wait_even_if_containerd_is_stuck(
        lambda: asyncio.run(runtime_state(containerd.socket)) == ([], [], []), containerd
    )
    wait_until(lambda: not list((agent.root / "pods").iterdir()))
