"""Start nodes as the documents do, in a private system, and run the documents' commands on them.

Read command lines from standard input, as JSON; write the outcome of each to the file that is the argument.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from engine.api.errors import KubengineError
from engine.cli.agent.client import AgentClient
from engine.cli.agent.paths import default_socket
from engine.testing.apiserver import ApiServer
from engine.testing.apiserver.paths import parse_path
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG, write_busybox
from tests.project.shown import KUBECTL, ROOT, blocks
from tests.waiting import PATIENCE, eventually

MEMBER = "kubengine kubelet --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml"
PLUGIN = "kubengine device-plugin --resource example.com/gpu --count 8 --numa 2"
BESIDE = "kubengine run --config beside.yaml --root-dir /var/lib/kubengine"
ALONE = (
    "kubengine run --config /var/lib/kubelet/config.yaml --manifests /etc/kubernetes/manifests "
    "--runtime unix:///run/containerd/containerd.sock"
)
RUNTIME = "kubengine runtime --socket /run/kubengine/runtime.sock --images-dir archives"
EXAMPLE = "make run"
STAY = (MEMBER, PLUGIN, BESIDE, ALONE, RUNTIME, EXAMPLE)
"""What goes on until it is told to end."""

INTERRUPTED = 130
HOLLOW = "kubengine runtime --hollow --socket /run/kubengine/containerd.sock"
CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": "/etc/kubernetes/manifests",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "cgroupfs",
    "readOnlyPort": 10255,
    "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100,
}
REPORT = (
    '<testsuites><testsuite name="E2eNode Suite"><testcase name="[It] a" status="passed"/>'
    "</testsuite></testsuites>"
)


@dataclass(frozen=True)
class Outcome:
    line: str
    status: int
    output: str
    errors: str


def pod(name: str, namespace: str = "default", limits: dict[str, str] | None = None) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": BUSYBOX_TAG,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {"memory": "64Mi", **(limits or {})}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [main]},
    }


@asynccontextmanager
async def started(line: str, desk: Path) -> AsyncIterator[Process]:
    """Start the command `line`, and interrupt it at the end as a terminal does; its output is in a log."""
    with (desk / "started.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            "sh", "-ec", f"exec {line}", cwd=desk, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE)


async def all_run(root: Path | str, pods: int, process: Process) -> None:
    agent = AgentClient(str(default_socket(root)))

    def ready() -> bool:
        if process.returncode is not None:
            raise RuntimeError(f"ended with {process.returncode}")
        try:
            found = agent.get_json("/pods")["items"]
        except KubengineError:
            return False
        states = [status["ready"] for each in found for status in each["status"].get("containerStatuses", [])]
        return len(found) == pods and len(states) >= pods and all(states)

    await eventually(ready, every=0.2)


async def outcome_of(line: str, desk: Path) -> Outcome:
    """Run `line`, and return its outcome; a command with `--follow` is interrupted after its first line."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-ec", f"exec {line}" if "--follow" in line else line,
        cwd=desk, stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    first = b""
    if "--follow" in line and process.stdout is not None:
        first = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        process.send_signal(signal.SIGINT)
    output, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    status = 0 if first and process.returncode == INTERRUPTED else process.returncode or 0
    return Outcome(line, status, (first + output).decode(), errors.decode())


def lay_out(desk: Path) -> None:
    """Write the files that the lines of the documents name."""
    (desk / "bin").mkdir(parents=True)
    (desk / "bin/kubectl").write_text(KUBECTL)
    (desk / "bin/kubectl").chmod(0o755)
    os.environ["PATH"] = f"{desk / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name in ("Makefile", "examples", "engine", "pyproject.toml", "requirements", "setup.py"):
        (desk / name).symlink_to(ROOT / name)
    (desk / ".venv").mkdir()
    (desk / ".venv/bin").symlink_to(Path(sys.executable).parent)
    for made in (".python", ".node", ".installed", ".kernels"):
        (desk / ".venv" / made).touch()
    (desk / "docs").mkdir()
    for page in ("compatibility.md", "conformance.md"):
        shutil.copy(ROOT / "docs" / page, desk / "docs")
    for name in ("kubelet.xml", "ours.xml"):
        (desk / name).write_text(REPORT)
    (beside,) = blocks(ROOT / "docs/how-to/beside-a-kubelet.md", "yaml")
    (desk / "beside.yaml").write_text(beside)
    (desk / "archives").mkdir()
    write_busybox(desk / "archives/busybox.tar")
    (desk / "pod.yaml").write_text(json.dumps(pod("another")))
    (desk / "kubelet.yaml").write_text(yaml.safe_dump(CONFIG))
    shutil.copy(desk / "kubelet.yaml", "/var/lib/kubelet/config.yaml")
    for directory in ("/etc/kubernetes/manifests", "/etc/kubengine/manifests", "/run/containerd"):
        Path(directory).mkdir(parents=True)


def save_views(desk: Path) -> None:
    """Save the pods and the node that the running agent shows as files."""
    for file, path in (("pods.json", "pods"), ("pods.yaml", "pods"), ("node.yaml", "kubengine/node")):
        with urlopen(f"http://127.0.0.1:10255/{path}", timeout=PATIENCE) as answer:
            (desk / file).write_bytes(answer.read())


async def in_a_cluster(desk: Path, lines: list[str]) -> list[Outcome]:
    """Run `lines` on a node of a cluster with a plugin's devices, next to another agent.

    Return the outcome of each line.
    """
    async with ApiServer(desk / "api") as server:
        shutil.copy(server.kubeconfig("system:node:node"), "/etc/kubernetes/kubelet.conf")
        trainer = pod("trainer", limits={"example.com/gpu": "2"})
        for each in (pod("web"), trainer, pod("web", "shop")):
            each["spec"]["nodeName"] = "node"
            namespace = each["metadata"]["namespace"]
            server.objects.create(parse_path(f"/api/v1/namespaces/{namespace}/pods"), each)
        async with started(MEMBER, desk) as agent, started(PLUGIN, desk):
            await all_run("/var/lib/kubelet", 3, agent)
            async with started(HOLLOW, desk), started(BESIDE, desk) as another:
                await all_run("/var/lib/kubengine", 0, another)
            save_views(desk)
            return [await outcome_of(line, desk) for line in lines]


async def alone(desk: Path) -> list[Outcome]:
    Path("/etc/kubernetes/manifests/pod.yaml").write_text(json.dumps(pod("from-a-file")))
    async with started(ALONE, desk) as agent:
        await all_run("/var/lib/kubelet", 1, agent)
        return [await outcome_of("kubengine status", desk)]


async def example(desk: Path, lines: list[str]) -> list[Outcome]:
    async with started(EXAMPLE, desk) as agent:
        await all_run(desk / ".run", 3, agent)
        answers = [await outcome_of(line, desk) for line in lines]
    left = [str(group) for group in Path("/sys/fs/cgroup").glob("**/kubengine-example")]
    return [*answers, Outcome(EXAMPLE, len(left), "ended", "\n".join(left))]


async def runtime(desk: Path, lines: list[str]) -> list[Outcome]:
    async with started(RUNTIME, desk):
        await eventually(Path("/run/kubengine/runtime.sock").exists)
    return [await outcome_of(line, desk) for line in lines]


async def walk(lines: list[str]) -> list[Outcome]:
    desk = Path.cwd() / "desk"
    lay_out(desk)
    await outcome_of("kubengine plan synth --nodes 5 -o cluster.kes", desk)
    of_runtime = [line for line in lines if line.startswith("kubengine runtime ")]
    of_example = [line for line in lines if ".run" in line or line.startswith("curl ")]
    others = [line for line in lines if line not in {*of_runtime, *of_example}]
    with Containerd(Path.cwd()) as containerd:
        containerd.import_image(desk / "archives/busybox.tar")
        Path("/run/containerd/containerd.sock").symlink_to(containerd.socket)
        outcomes = await in_a_cluster(desk, others)
        outcomes += await alone(desk)
    outcomes += await example(desk, of_example)
    return outcomes + await runtime(desk, of_runtime)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        json.dumps([asdict(each) for each in asyncio.run(walk(json.load(sys.stdin)))])
    )
