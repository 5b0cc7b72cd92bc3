"""`kubengine bench node` from its command line, a second engine behind a kubelet's flags."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.bench.node import NodeBenchResult
from engine.bench.report import json_report
from engine.runtime.hollow import HollowRuntime
from engine.testing.apiserver import ApiServer
from engine.testing.apiserver.paths import ResourcePath, parse_path
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SMALL = ["--pods", "3", "--repetitions", "1", "--seconds", "1", "--limit", "60"]


@pytest.fixture
def kubelet(tmp_path: Path) -> Path:
    path = tmp_path / "kubelet"
    body = (Path(__file__).parent / "fake_kubelet.py").read_text()
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a temporary directory for workspaces, whose path is short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name)


def bench(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bench_groups() -> set[str]:
    return {path.name for path in Path("/sys/fs/cgroup").glob("*/kubengine-bench-*")}


LEFT_BEFORE = bench_groups()
"""What a bench that was killed left on this machine."""


def assert_nothing_left(directory: Path) -> None:
    assert list(directory.iterdir()) == []
    elsewhere = {path.name for path in Path(tempfile.gettempdir()).glob("kubengine-bench-*")}
    assert bench_groups() - elsewhere - LEFT_BEFORE == set()
    assert [link for link in Path("/var/log/containers").glob("*.log") if leads_to(link, directory)] == []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes()
        except OSError:
            continue
        assert str(directory).encode() not in command, command


def path(text: str) -> ResourcePath:
    parsed = parse_path(text)
    assert parsed is not None
    return parsed


def leads_to(link: Path, directory: Path) -> bool:
    try:
        return link.readlink().is_relative_to(directory)
    except OSError:
        return False


@pytest.mark.slow
def test_both_agents_go_through_all_phases_on_the_same_terms(
    kubelet: Path, directory: Path, tmp_path: Path
) -> None:
    record, report, page = tmp_path / "record", tmp_path / "out.json", tmp_path / "out.html"
    arguments = ["node", "--kubelet", str(kubelet), *SMALL, "--output", str(report), "--html", str(page)]
    arguments += ["--probe-mix", "http=2,tcp=1,exec=1", "--probes-per-second", "4", "--images", "20"]
    run = bench(directory, *arguments, FAKE_KUBELET_RECORD=str(record))
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    result: dict[str, Any] = json.loads(report.read_text())
    assert result["complete"]
    assert result["versions"] == {"engine": "this engine", "kubelet": "v1.33.4"}
    phases = ["start", "pods", "idle", "statistics", "probing", "churn", "refill"]
    phases += ["restart", "devices", "preemption", "image-gc"]
    for label in ("engine", "kubelet"):
        assert list(result["runs"][label]) == phases
        (figures,) = result["runs"][label]["pods"]
        assert figures["runtime_calls"] > 3
        assert 0 < figures["start_p50_s"] <= figures["start_p99_s"]
        (figures,) = result["runs"][label]["statistics"]
        for scraped in ("cadvisor", "summary", "resource"):
            assert figures[f"{scraped}_cpu_ms"] > 0, scraped
            assert figures[f"{scraped}_kb"] > 0, scraped
        (figures,) = result["runs"][label]["refill"]
        assert figures["drained_s"] > 0 < figures["refilled_s"]
        assert result["runs"][label]["restart"][0]["restarts_caused"] == 0
        assert result["runs"][label]["devices"][0]["start_p50_s"] > 0
        (figures,) = result["runs"][label]["probing"]
        assert figures["http_per_s"] > 0
        assert figures["exec_per_s"] >= 0
        (figures,) = result["runs"][label]["image-gc"]
        assert figures["images"] == 20
    assert "ENGINE/KUBELET" in output
    assert page.read_text().count("<svg") > 10
    given = json.loads(record.read_text())
    assert given["config"]["address"] == "127.0.0.1"
    assert given["flags"]["--root-dir"].startswith(str(directory))
    assert_nothing_left(directory)


def test_a_run_is_compared_with_an_earlier_one(directory: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    figures = {"wall_s": 1.0, "cpu_s": 0.5, "rss_mb": 50.0}
    runs = {"engine": {"start": [figures, figures]}}
    earlier.write_text(json_report(NodeBenchResult({"pods": 60}, {"python": "2.7"}, runs=runs)))
    run = bench(directory, "node", *SMALL, "--phases", "start", "--markdown", "--compare", str(earlier))
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert "not measured under the same conditions: pods: 60, now 3" in errors
    _, _, comparison = output.partition("| phase | figure | before | now | now / before | verdict |\n")
    lines = [line.strip("| ").split(" | ") for line in comparison.splitlines()[1:]]
    assert [(line[-5], line[-4]) for line in lines] == [
        ("wall_s", "1 (1 to 1)"),
        ("cpu_s", "0.5 (0.5 to 0.5)"),
        ("rss_mb", "50 (50 to 50)"),
    ]
    assert {line[-1] for line in lines} == {"one repetition"}


async def test_a_runtime_without_the_image_is_reported_at_once(directory: Path) -> None:
    async with HollowRuntime(directory / "cri.sock") as runtime:
        run = bench(directory, "node", *SMALL, "--runtime", f"unix://{runtime.socket}")
        _, errors = await asyncio.to_thread(run.communicate, timeout=PATIENCE)
    assert run.returncode == 1
    assert f"unix://{runtime.socket}: has no image registry.invalid/kubengine/bench:1" in errors
    assert "ctr -n k8s.io images tag" in errors


def test_a_kubelet_that_dies_is_quoted_and_the_engines_figures_are_kept(
    kubelet: Path, directory: Path
) -> None:
    run = bench(
        directory, "node", "--kubelet", str(kubelet), *SMALL, "--phases", "start", FAKE_KUBELET_DIES="1"
    )
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert "failed to run Kubelet: it was told to" in errors
    assert "Traceback" not in errors
    assert "start" in output
    assert_nothing_left(directory)


@pytest.mark.parametrize("version", ["v1.20.0", "v1.44.1-beta.0"])
def test_an_unknown_kubelet_version_is_reported(kubelet: Path, directory: Path, version: str) -> None:
    arguments = ["node", "--kubelet", str(kubelet), *SMALL, "--phases", "start"]
    run = bench(directory, *arguments, FAKE_KUBELET_VERSION=version)
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert f"kubelet: {version} is outside 1.28 to 1.36" in errors


def test_limits_of_an_old_kubelet_are_reported_and_its_logs_removed(kubelet: Path, directory: Path) -> None:
    arguments = ["node", "--kubelet", str(kubelet), *SMALL, "--phases", "start,pods,image-gc", "--markdown"]
    run = bench(directory, *arguments, FAKE_KUBELET_VERSION="v1.28.15")
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert "kubelet: v1.28.15 has no podLogsDir" in errors
    assert "image-gc: kubelet: runs image garbage collection on its own schedule" in errors
    assert "| phase | figure | engine | kubelet | engine / kubelet |" in output
    assert list(Path("/var/log/pods").glob("bench_bench-*")) == []
    assert_nothing_left(directory)


def test_a_program_that_is_no_kubelet_is_refused(directory: Path) -> None:
    run = bench(directory, "node", "--kubelet", "/bin/true", *SMALL)
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert "which is not a kubelet" in errors
    assert_nothing_left(directory)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
def test_an_interrupted_run_cleans_up_and_reports_its_results(
    directory: Path, number: signal.Signals
) -> None:
    run = bench(directory, "node", *SMALL, "--seconds", "60")
    assert run.stderr is not None
    lines = []
    for line in run.stderr:
        lines.append(line)
        if "pods:" in line:
            break
    time.sleep(0.5)
    run.send_signal(number)
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130, "".join(lines) + errors
    assert "measured so far" in errors
    assert "start_p50_s" in output
    assert_nothing_left(directory)


def test_an_agent_that_is_killed_ends_the_run_cleanly(directory: Path) -> None:
    run = bench(directory, "node", *SMALL, "--seconds", "60")
    assert run.stderr is not None
    for line in run.stderr:
        if "pods:" in line:
            break
    agents = [
        int(process.parent.name)
        for process in Path("/proc").glob("[0-9]*/cmdline")
        if str(directory).encode() in (command := process.read_bytes()) and b"\0run\0" in command
    ]
    assert len(agents) == 1
    os.kill(agents[0], signal.SIGKILL)
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert "ended with status -9" in errors
    assert_nothing_left(directory)


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a file system of 16 MB, and yield its path."""
    path = directory / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        path.rmdir()


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 12)):
            pass


@pytest.mark.root
def test_a_full_disk_ends_the_run_cleanly_and_reports_the_measurements(small_disk: Path) -> None:
    run = bench(small_disk, "node", *SMALL, "--limit", "8", "--phases", "start,idle,pods,churn")
    assert run.stderr is not None
    for line in run.stderr:
        if "start:" in line:
            break
    fill(small_disk)
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert f"the file system of {small_disk}" in errors
    assert "measured so far" in errors
    assert "Traceback" not in errors
    assert "cpu_s" in output
    (small_disk / "filler").unlink()
    assert_nothing_left(small_disk)


@pytest.mark.root
def test_a_report_that_cannot_be_written_is_reported_and_leaves_no_part(
    directory: Path, small_disk: Path
) -> None:
    fill(small_disk)
    report = small_disk / "out.json"
    run = bench(directory, "node", *SMALL, "--phases", "start", "--output", str(report))
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert f"{report}: not written: No space left on device" in errors
    assert "cpu_s" in output
    assert not report.exists()


async def test_an_agent_joins_a_cluster_and_leaves_nothing_there(directory: Path, tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server:
        kubeconfig = server.kubeconfig("admin", organization="system:masters")
        arguments = ["node", *SMALL, "--phases", "start,api", "--kubeconfig", str(kubeconfig)]
        report = tmp_path / "out.json"
        run = bench(directory, *arguments, "--output", str(report))
        output, errors = await asyncio.to_thread(run.communicate, timeout=PATIENCE)
        left = [server.objects.list(path(f"/api/v1/{kind}")) for kind in ("nodes", "namespaces", "pods")]
    assert run.returncode == 0, errors
    (figures,) = json.loads(report.read_text())["runs"]["engine"]["api"]
    assert 0 < figures["ready_p50_s"] <= figures["ready_p99_s"] <= figures["wall_s"]
    assert figures["requests_per_pod"] >= 1
    assert "idle_requests_per_min" in output
    assert figures["deletion_requests_per_pod"] >= 2
    assert figures["deleted_s"] > 0
    assert left == [[], [], []]
    assert_nothing_left(directory)


def test_without_a_cluster_the_api_phase_names_its_needs(directory: Path) -> None:
    run = bench(directory, "node", *SMALL, "--phases", "start,api")
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert "api: needs --kubeconfig" in errors
    assert_nothing_left(directory)


@pytest.mark.slow
def test_scale_prints_a_table(directory: Path) -> None:
    run = bench(directory, "scale", "--pods", "2,4", "--seconds", "1")
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    header, _, *rows = output.splitlines()
    assert header.startswith("| pods | all Ready after | CPU for it |")
    assert [row.split("|")[1].strip() for row in rows] == ["2", "4"]
    assert_nothing_left(directory)
