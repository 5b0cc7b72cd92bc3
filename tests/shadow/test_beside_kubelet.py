"""A shadow next to a real kubelet v1.36: it agrees, changes nothing, and names what differs."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.api.documents import load_config
from engine.host.cgroupfs.mounts import find_mounts
from engine.record.reader import Record
from engine.shadow.judge import REPEATABLE
from engine.shadow.kinds.cgroups import KEPT
from engine.shadow.replay import replay_shadow
from engine.testing.containerd import Containerd
from tests.ports import free_port
from tests.system.busybox import container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.containerd,
    pytest.mark.root,
    pytest.mark.slow,
    needs_kubelet,
]

SMALL = {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}}
PODS: dict[str, dict[str, Any]] = {
    "plain": {"containers": [container()]},
    "burstable": {"containers": [container(resources=SMALL)]},
    "guaranteed": {"containers": [container(resources={"limits": {"cpu": "20m", "memory": "16Mi"}})]},
    "failing": {"containers": [container("stays"), container("fails", "sleep 1; exit 3")]},
    "job": {"restartPolicy": "Never", "containers": [container(script="exit 0")]},
    "init": {
        "initContainers": [
            container("first", "exit 0"),
            container("side", restartPolicy="Always"),
        ],
        "containers": [container("main", readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 1})],
    },
    "too-large": {"containers": [container(resources={"requests": {"cpu": "1000"}})]},
}
EXPECTED = {name: {"job": "Succeeded", "too-large": "Failed"}.get(name, "Running") for name in PODS}
WRITES = re.compile(
    r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC"
    r"|^\d+ +(?:mkdir|rmdir|unlink|rename|link|symlink|chmod|chown|fchmod|fchown|truncate|ftruncate|mount"
    r"|setxattr|mknod|kill|ptrace|bind)\w*\("
)
OWN = re.compile(r'"/dev/(?:null|tty|pts/\d+)"|F_GETFL|kill\(\d+, 0\)')


@pytest.fixture
def running(kubelet: Kubelet, tmp_path: Path) -> Kubelet:
    kubelet.start()
    wait_until(lambda: kubelet.logged("Starting kubelet"))
    for name, spec in PODS.items():
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        (tmp_path / "manifests" / f"{name}.yaml").write_text(
            yaml.safe_dump({**document, "spec": {"terminationGracePeriodSeconds": 1, **spec}})
        )
    wait_until(lambda: kubelet.phases() == EXPECTED)
    return kubelet


def command(kubelet: Kubelet, tmp_path: Path, *options: str, name: str = "shadow") -> list[str]:
    return [
        sys.executable, "-m", "engine.cli", name, "--kubelet", kubelet.url, "--config",
        str(tmp_path / "kubelet.yaml"), "--root-dir", str(tmp_path / "root"), "--json", *options,
    ]  # fmt: skip


def traced(line: list[str], trace: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a command; return also its system calls that write or change something."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    done = subprocess.run(
        [strace, "-f", "-qq", "-o", str(trace), "-e", "trace=%file,%desc,%process,%network,kill", *line],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    calls = trace.read_text(errors="replace").splitlines()
    assert any("openat(" in call for call in calls)
    return done, [call for call in calls if WRITES.search(call) and not OWN.search(call)]


def test_it_agrees_with_the_kubelet_and_writes_nothing(running: Kubelet, tmp_path: Path) -> None:
    directory = tmp_path / "record"
    line = command(running, tmp_path, "--for", "40s", "--interval", "2s", "--record", str(directory))
    done, written = traced(line, tmp_path / "trace")
    report = json.loads(done.stdout)
    assert (done.returncode, report["differences"]) == (0, []), done.stderr
    assert not report["faults"]
    for kind in ("admission", "cgroups", "oom-score", "status", "restart", "probes", "pod-resources"):
        assert report["kinds"][kind]["agreed"], kind
    # One of the pods is refused; the job ended before the first observation.
    assert report["kinds"]["admission"]["agreed"] == len(PODS) - 1
    assert "state" in recorded(directory)
    assert [call for call in written if f'"{directory}' not in call] == []


def recorded(directory: Path) -> set[str]:
    """Return the names of the rows of a record that is being written."""
    found = any(directory.glob("*.krec"))
    return {row.name for row in Record(directory).rows()} if found else set()


def test_its_record_is_played_again(running: Kubelet, tmp_path: Path) -> None:
    document = yaml.safe_load((tmp_path / "kubelet.yaml").read_text())
    following, directory = tmp_path / "next.yaml", tmp_path / "record"
    following.write_text(yaml.safe_dump({**document, "podPidsLimit": 99, "maxPods": 3}))
    line = command(running, tmp_path, "--for", "45s", "--interval", "2s", "--with", str(following))
    with subprocess.Popen([*line, "--record", str(directory)], stdout=subprocess.PIPE) as shadow:
        assert shadow.stdout is not None
        # A pod goes, and the kubelet dies, while the shadow observes.
        wait_until(lambda: "state" in recorded(directory))
        (tmp_path / "manifests" / "plain.yaml").unlink()
        wait_until(lambda: "plain" not in running.pods())
        running.stop()
        wait_until(lambda: "skipped" in recorded(directory))
        running.start()
        report = json.loads(shadow.stdout.read())
    assert report["skippedObservations"]
    found = replay_shadow(directory)
    assert (found.mismatches, found.gaps, found.name) == ([], [], "n1")
    assert len(found.differ) == sum(one["kind"] in REPEATABLE for one in report["differences"])
    assert found.decisions > len(PODS) * 3
    # Another configuration decides as it did beside the kubelet.
    config, _ = load_config([following])
    changes = [one._asdict() for one in replay_shadow(directory, config).changes]
    assert changes == report["next"]["changes"]
    assert {"refuse", "resize"} <= {one["decision"] for one in changes}


def test_the_check_of_a_takeover_writes_nothing(running: Kubelet, tmp_path: Path) -> None:
    done, written = traced(command(running, tmp_path, "--check", name="takeover"), tmp_path / "trace")
    counts = json.loads(done.stdout)["counts"]
    assert (counts["kept"], counts["ended"], done.returncode) == (5, 2, 0), done.stdout
    assert written == []


def test_a_value_that_another_process_changed_is_a_difference(running: Kubelet, tmp_path: Path) -> None:
    mounts = find_mounts()
    uid = running.pods()["burstable"]["metadata"]["uid"]
    share = {1: "cpu.shares", 2: "cpu.weight"}[mounts.version]
    (group,) = mounts.directory("cpu", "/").rglob(f"pod{uid}")
    (group / share).write_text("77")
    done = subprocess.run(
        command(running, tmp_path, "--for", "45s", "--interval", "2s"),
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert done.returncode == 3
    (difference,) = [one for one in report["differences"] if one["kind"] == "cgroups"]
    assert difference["subject"].startswith("default/burstable")
    assert f"{share}=77" in difference["kubelets"]
    assert "requests cpu=10m" in difference["ourReason"]


class Report:
    """Read the report of a running shadow."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/report.json"
        self.last: dict[str, Any] = {}

    def shows(self, condition: Callable[[dict[str, Any]], Any]) -> bool:
        """Read the report; tell whether it satisfies a condition."""
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                self.last = json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return bool(condition(self.last))


def test_it_survives_a_restart_of_the_kubelet(running: Kubelet, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    report = Report(address)
    state = tmp_path / "root" / "cpu_manager_state"
    with subprocess.Popen(
        command(running, tmp_path, "--interval", "1s", "--listen", address), stdout=subprocess.DEVNULL
    ) as shadow:
        try:
            wait_until(lambda: report.shows(lambda r: r["kinds"]["status"]["agreed"]))
            running.stop()
            wait_until(lambda: report.shows(lambda r: r["skippedObservations"]))
            document = yaml.safe_load(running.config.read_text())
            running.config.write_text(yaml.safe_dump({**document, "podPidsLimit": 400}))
            running.start()
            wait_until(lambda: report.shows(lambda r: r["kubeletRestarts"]))
            wait_until(lambda: running.phases() == EXPECTED)
            state.write_bytes(state.read_bytes()[:-20])
            wait_until(lambda: report.shows(lambda r: str(state) in r["faults"]))
            wait_until(lambda: report.shows(lambda r: KEPT in r["kinds"]["cgroups"]["notJudged"]))
            observations = report.last["observations"]
            wait_until(lambda: report.shows(lambda r: r["observations"] > observations + 5))
        finally:
            shadow.terminate()
    assert report.last["kubeletRestarts"] == 1
    assert report.last["differences"] == []
    assert shadow.returncode == 0


def test_it_survives_a_restart_of_the_runtime(
    running: Kubelet, containerd: Containerd, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    report = Report(address)
    with subprocess.Popen(
        command(running, tmp_path, "--interval", "1s", "--listen", address), stdout=subprocess.DEVNULL
    ) as shadow:
        try:
            wait_until(lambda: report.shows(lambda r: r["kinds"]["status"]["agreed"]))
            containerd.kill()
            try:
                wait_until(lambda: report.shows(lambda r: r["skippedObservations"]))
            finally:
                containerd.start()
            observations = report.last["observations"]
            wait_until(
                lambda: report.shows(
                    lambda r: r["observations"] > observations + r["skippedObservations"] + 25
                )
            )
        finally:
            shadow.terminate()
    assert report.last["differences"] == []
    assert any("containerd" in source or "sock" in source for source in report.last["faults"])


def test_a_second_configuration_says_what_it_would_change(running: Kubelet, tmp_path: Path) -> None:
    document = yaml.safe_load((tmp_path / "kubelet.yaml").read_text())
    following = tmp_path / "next.yaml"
    following.write_text(yaml.safe_dump({**document, "podPidsLimit": 99, "maxPods": 3}))
    done = subprocess.run(
        command(running, tmp_path, "--for", "5s", "--interval", "1s", "--with", str(following)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    changes = json.loads(done.stdout)["next"]["changes"]
    refused = [one for one in changes if one["decision"] == "refuse"]
    # The job has ended and the large pod is refused anyway; three of the other five fit.
    assert len(refused) == 2
    assert {one["next"] for one in refused} <= {"OutOfpods", "UnexpectedAdmissionError"}
    pids = [one for one in changes if one["subject"] == "default/plain-n1"]
    assert [(one["decision"], one["now"], one["next"]) for one in pids if "pids.max" in one["now"]] == [
        ("resize", "pids.max=500", "pids.max=99")
    ]


def test_a_second_configuration_that_enforces_quotas_throttles(kubelet: Kubelet, tmp_path: Path) -> None:
    document = yaml.safe_load(kubelet.config.read_text())
    following = tmp_path / "next.yaml"
    following.write_text(yaml.safe_dump(document))
    kubelet.config.write_text(yaml.safe_dump({**document, "cpuCFSQuota": False}))
    kubelet.start()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "limited"}, "spec": PODS["burstable"]}
    (tmp_path / "manifests" / "limited.yaml").write_text(yaml.safe_dump(pod))
    wait_until(lambda: kubelet.phases() == {"limited": "Running"})
    done = subprocess.run(
        command(kubelet, tmp_path, "--for", "5s", "--interval", "1s", "--with", str(following)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    changes = json.loads(done.stdout)["next"]["changes"]
    assert {one["subject"] for one in changes if one["decision"] == "throttle"} >= {"default/limited-n1"}


def configz(kubelet: Kubelet) -> bytes:
    """Return the configuration that the kubelet shows on its authenticated port."""
    port = yaml.safe_load(kubelet.config.read_text())["port"]
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    address = f"https://127.0.0.1:{port}/configz"
    with urllib.request.urlopen(address, timeout=10, context=trusting) as answer:
        return bytes(answer.read())


def test_a_rollout_foretells_how_many_pods_a_kubelet_refuses(running: Kubelet, tmp_path: Path) -> None:
    # A kubelet without an API server does not remember that a pod has ended, and starts the job again.
    (tmp_path / "manifests" / "job.yaml").unlink()
    wait_until(lambda: "job" not in running.pods())
    snapshot, following = tmp_path / "snapshot", tmp_path / "next.yaml"
    (snapshot / "nodes" / "n1").mkdir(parents=True)
    amounts = {"cpu": str(os.cpu_count()), "memory": "64Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": status}
    (snapshot / "node.json").write_text(json.dumps(node))
    (snapshot / "nodes" / "n1" / "configz.json").write_bytes(configz(running))
    (snapshot / "pods.json").write_bytes(urllib.request.urlopen(f"{running.url}/pods").read())
    document = yaml.safe_load(running.config.read_text()) | {"maxPods": 3}
    following.write_text(yaml.safe_dump(document))
    line = [sys.executable, "-m", "engine.cli", "plan", "rollout", "--config", str(following), "--json"]
    done = subprocess.run(
        [*line, "--version", str(find_mounts().version), "--fail-on", "refuse", str(snapshot)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["object"] for row in rows if row["decision"] == "changes"] == ["maxPods"]
    # The kubelet of the test has its log level from a flag, and made a certificate.
    fallen = {row["object"] for row in rows if row["decision"] == "falls-back"}
    assert {"tlsCertFile", "logging.verbosity"} <= fallen
    foretold = [row["reason"].partition(":")[0] for row in rows if row["decision"] == "refuse"]
    running.stop()
    running.config.write_text(following.read_text())
    running.start()

    def refused() -> list[str]:
        return [
            pod["status"]["reason"]
            for name, pod in running.pods().items()
            if name != "too-large" and pod["status"].get("reason")
        ]

    # Two of five: static pods are critical, so that none of them ends for another one.
    wait_until(lambda: len(refused()) >= 2)
    assert sorted(refused()) == sorted(foretold)
