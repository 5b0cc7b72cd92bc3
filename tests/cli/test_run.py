"""`kubengine run` as a process: start, status, signals, restarts and bad input."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.cli.agent.client import AgentClient
from tests.groups import groups_with
from tests.guarded_host import COMMAND
from tests.ports import free_port
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - {name: c, image: host, imagePullPolicy: IfNotPresent, command: [/bin/sleep, infinity]}
"""


class Place:
    """Hold the directory of an agent, with a path short enough for unix sockets, and run commands with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root, self.manifests = path / "root", path / "manifests"
        self.manifests.mkdir()
        self.processes: list[subprocess.Popen[str]] = []
        ports = free_port(), free_port()
        self.port = ports[0]
        self.config = path / "config.yaml"
        self.config.write_text(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
            f"readOnlyPort: {ports[0]}\nhealthzPort: {ports[1]}\npodLogsDir: {path}/logs\nresolvConf: ''\n"
            "cgroupsPerQOS: false\nenforceNodeAllocatable: []\n"
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env={**os.environ, "KUBENGINE_AGENT": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str, runtime: str = "hollow") -> subprocess.Popen[str]:
        return self.start(
            "run", "--config", str(self.config), "--manifests", str(self.manifests),
            "--root-dir", str(self.root), "--runtime", runtime, *arguments,
        )  # fmt: skip

    def pod(self, name: str) -> None:
        partial = self.path / "partial"
        partial.write_text(POD.replace("NAME", name))
        partial.rename(self.manifests / f"{name}.yaml")

    def phases(self) -> dict[str, str]:
        items = AgentClient(str(self.root)).get_json("/pods")["items"]
        return {item["metadata"]["name"].split("-")[0]: item["status"].get("phase", "") for item in items}

    def status(self) -> list[dict[str, Any]]:
        process = self.start("status", "--json")
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        rows: list[dict[str, Any]] = json.loads(output)
        return rows


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        made = Place(Path(name))
        yield made
        for process in made.processes:
            process.kill()
            process.communicate()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds. It may raise, for example while the agent does not answer yet."""

    def held() -> bool:
        with contextlib.suppress(Exception):
            return condition()
        return False

    wait_until(held)


def test_status_shows_what_run_runs_and_an_interrupt_removes_it(place: Place) -> None:
    place.pod("a")
    run = place.run("--clean-up")
    eventually(lambda: place.phases() == {"a": "Running"})
    (row,) = place.status()
    assert row["name"].startswith("a-")
    assert (row["qosClass"], row["phase"], row["restarts"]) == ("BestEffort", "Running", 0)
    place.pod("b")
    eventually(lambda: len(place.phases()) == 2)
    table = place.start("status")
    output, _ = table.communicate(timeout=PATIENCE)
    assert "default/b-" in output
    assert "RESTARTS" in output
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert list(place.root.glob("*.sock")) == []
    assert list((place.root / "pods").iterdir()) == []


SCRAPES = {
    "/metrics": "kubelet_running_pods 1",
    "/metrics/cadvisor": 'container_cpu_usage_seconds_total{cpu="total"',
    "/metrics/probes": "",
    "/metrics/resource": "pod_cpu_usage_seconds_total{",
    "/stats/summary": '"usageCoreNanoSeconds"',
    "/stats/summary?only_cpu_and_memory=true": '"usageCoreNanoSeconds"',
    "/pods": '"Running"',
}


def test_an_agent_with_a_pod_that_is_scraped_has_loaded_neither_numpy_nor_grpc(place: Place) -> None:
    endpoint = place.path / "runtime.sock"
    place.start("runtime", "--hollow", "--socket", str(endpoint))
    place.pod("a")
    run = place.run(runtime=f"unix://{endpoint}")
    eventually(lambda: place.phases() == {"a": "Running"})
    for page, words in SCRAPES.items():
        with urllib.request.urlopen(f"http://127.0.0.1:{place.port}{page}", timeout=PATIENCE) as answer:
            assert words in answer.read().decode(), page
    mapped = Path(f"/proc/{run.pid}/maps").read_text()
    assert "/engine/_fast/" in mapped
    assert [line for line in mapped.splitlines() if "/numpy" in line or "/grpc/" in line] == []


MORE_THAN_HALF = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: kube-system}
spec:
  priority: PRIORITY
  containers:
    - {name: c, image: host, imagePullPolicy: IfNotPresent, resources: {requests: {cpu: CPU, memory: 1Mi}}}
"""


@pytest.mark.parametrize(
    ("threshold", "priorities", "log"),
    [
        ("0%", (0, 2_000_001_000), "Preempting kube-system/pod0-"),
        ("99%", (0,), "is critical and is not evicted"),
    ],
    ids=["preemption", "eviction"],
)
def test_an_agent_that_chooses_pods_to_end_has_not_loaded_numpy(
    place: Place, threshold: str, priorities: tuple[int, ...], log: str
) -> None:
    """Above all where memory is short."""
    with place.config.open("a") as config:
        config.write(f"evictionHard: {{memory.available: '{threshold}'}}\n")
    run = place.run()
    for number, priority in enumerate(priorities):
        text = MORE_THAN_HALF.replace("NAME", f"pod{number}").replace("PRIORITY", str(priority))
        partial = place.path / "partial"
        partial.write_text(text.replace("CPU", f"{(os.cpu_count() or 1) * 600}m"))
        partial.rename(place.manifests / f"pod{number}.yaml")
        eventually(lambda last=f"pod{number}": place.phases()[last] == "Running")  # type: ignore[misc]
    assert run.stderr is not None
    for line in run.stderr:
        if log in line:
            break
    assert "/numpy" not in Path(f"/proc/{run.pid}/maps").read_text()


def test_an_agent_that_collects_images_has_not_loaded_numpy(place: Place) -> None:
    with place.config.open("a") as config:
        config.write("imageMinimumGCAge: 1ms\n")
    run = place.run()
    place.pod("a")
    eventually(lambda: place.phases() == {"a": "Running"})
    agent = AgentClient(str(place.root))
    assert agent.describe("images")["images"][0]["inUseBy"]
    (place.manifests / "a.yaml").unlink()
    eventually(lambda: agent.act("images", "delete-unused")["images"][0]["verdict"] == "removed")
    assert "/numpy" not in Path(f"/proc/{run.pid}/maps").read_text()


def test_pods_outlive_a_terminated_and_a_killed_agent(place: Place) -> None:
    endpoint = place.path / "runtime.sock"
    place.start("runtime", "--hollow", "--socket", str(endpoint))
    place.pod("a")
    started: list[str] = []
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        run = place.run(runtime=f"unix://{endpoint}")
        eventually(lambda: place.phases() == {"a": "Running"})
        started.append(place.status()[0]["startTime"])
        (container,) = AgentClient(str(place.root)).get_json("/pods")["items"][0]["status"][
            "containerStatuses"
        ]
        started[-1] = container["containerID"]
        assert container["restartCount"] == 0
        run.send_signal(number)
        run.communicate(timeout=PATIENCE)
    assert len(set(started)) == 1


def test_a_second_agent_on_the_same_root_is_refused(place: Place) -> None:
    place.pod("a")
    place.run()
    eventually(lambda: place.phases() == {"a": "Running"})
    second = place.run()
    _, errors = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1
    assert "Traceback" not in errors
    assert place.phases() == {"a": "Running"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("kind: KubeletConfiguration\nmaxPods: many\n", "maxPods: Expected `int`, got `str`"),
        ("kind: KubengineConfiguration\nprobez: {}\n", "unknown field `probez`"),
        ("kind: [\n", "not valid YAML"),
        ("kind: Pod\n", "expected KubeletConfiguration or KubengineConfiguration"),
    ],
    ids=["type", "unknown", "yaml", "kind"],
)
def test_a_bad_configuration_is_named(place: Place, config: str, words: str) -> None:
    place.config.write_text(config)
    run = place.run()
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert words in errors
    assert str(place.config) in errors
    assert "Traceback" not in errors


def test_a_bad_manifest_is_reported_and_the_others_run(place: Place) -> None:
    place.pod("good")
    (place.manifests / "bad.yaml").write_text(POD.replace("containers:", "containers: 7 #"))
    run = place.run()
    eventually(lambda: place.phases() == {"good": "Running"})
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=PATIENCE)
    assert "bad.yaml" in errors
    assert "Traceback" not in errors


@pytest.mark.root
def test_real_containers_run_in_cgroups_and_nothing_stays(place: Place) -> None:
    place.config.write_text(
        place.config.read_text().replace("cgroupsPerQOS: false\nenforceNodeAllocatable: []\n", "")
    )
    group = f"/{place.path.name}"
    before = leavings()
    run = place.start(
        "run", "--config", str(place.config), "--manifests", str(ROOT / "examples/manifests"), "--root-dir",
        str(place.root), "--runtime", "embedded", "--cgroup-root", group, "--clean-up",
    )  # fmt: skip
    eventually(lambda: set(place.phases().values()) == {"Running"} and len(place.phases()) == 3)
    eventually(lambda: all(row["ready"] == row["containers"] for row in place.status()))
    rows = {row["qosClass"]: row for row in place.status()}
    assert rows["Guaranteed"]["cpuQuota"] == 0.2
    assert rows["Guaranteed"]["memoryLimit"] == 64 << 20
    assert rows["BestEffort"]["cpuShares"] in (1, 2)
    assert rows["BestEffort"]["memoryLimit"] is None
    assert groups_with(f"{place.path.name}/kubepods/burstable/pod")
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert list(Path("/sys/fs/cgroup").glob(f"*/{place.path.name}")) == []
    assert list(place.root.rglob("*.sock")) == []
    assert str(place.path) not in Path("/proc/self/mountinfo").read_text()
    assert [command for command in leavings() - before if str(place.path) in command] == []


def leavings() -> set[str]:
    """Command lines of this machine's processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
