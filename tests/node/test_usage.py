"""Cgroups and network devices as they are read: v1 and v2, whole and half gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine._fast.reading.groups import COLUMNS
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.usage import shown
from engine.node.usage.group import WHOLE_SECONDS, GroupSample, GroupTable
from engine.node.usage.network import interfaces_of, read_devices
from engine.node.usage.sampler import UsageSampler, UsedGroup

V1 = {
    "cpuacct/g/cpuacct.usage": "2500000000\n",
    "cpuacct/g/cpuacct.stat": "user 100\nsystem 50\n",
    "cpu/g/cpu.stat": "nr_periods 10\nnr_throttled 3\nthrottled_time 7000\n",
    "cpu/g/cpu.shares": "512\n",
    "cpu/g/cpu.cfs_quota_us": "-1\n",
    "cpu/g/cpu.cfs_period_us": "100000\n",
    "memory/g/memory.usage_in_bytes": "1000000\n",
    "memory/g/memory.limit_in_bytes": "9223372036854771712\n",
    "memory/g/memory.memsw.limit_in_bytes": "2000000\n",
    "memory/g/memory.failcnt": "4\n",
    "memory/g/memory.stat": "cache 1\ntotal_cache 400\ntotal_rss 600\ntotal_inactive_file 300\ntotal_swap 5\n"
    "total_pgfault 9\ntotal_pgmajfault 2\n",
    "memory/g/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory/g/cgroup.procs": "1\n22\n",
    "pids/g/pids.current": "5\n",
    "pids/g/pids.max": "max\n",
    "blkio/g/blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\nTotal 30\n",
    "blkio/g/blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\nTotal 3\n",
}
V2 = {
    "g/cpu.stat": "usage_usec 2500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 3\n"
    "throttled_usec 7\n",
    "g/cpu.weight": "20\n",
    "g/cpu.max": "max 100000\n",
    "g/memory.current": "1000000\n",
    "g/memory.max": "max\n",
    "g/memory.swap.max": "2000000\n",
    "g/memory.swap.current": "5\n",
    "g/memory.stat": "anon 600\nfile 400\ninactive_file 300\npgfault 9\npgmajfault 2\n",
    "g/memory.events": "low 0\nmax 4\noom 1\noom_kill 1\n",
    "g/cgroup.procs": "1\n22\n",
    "g/pids.current": "5\n",
    "g/pids.max": "max\n",
    "g/io.stat": "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16\n",
    "g/cpu.pressure": "some avg10=1.50 avg60=0.20 avg300=0.00 total=77\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    "g/memory.pressure": "nonsense\n",
}


def tree(top: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


def read(cgroup: str, mount: Path) -> GroupSample:
    table = GroupTable()
    sample = table.add(cgroup)
    table.read(mount)
    return sample


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_a_group_is_read_the_same_from_both_versions(tmp_path: Path, files: dict[str, str]) -> None:
    found = read("/g", tree(tmp_path, files))
    assert (found.cpu, found.cpu_user, found.cpu_system) == (2_500_000_000, 1_000_000_000, 500_000_000)
    assert (found.periods, found.throttled_periods, found.throttled) == (10, 3, 7000)
    assert (found.shares, found.quota, found.period) == (512 if files is V1 else 500, -1, 100_000)
    assert (found.memory, found.working_set, found.memory_limit) == (1_000_000, 999_700, None)
    assert (found.rss, found.cache, found.swap, found.swap_limit) == (600, 400, 5, 2_000_000)
    assert (found.faults, found.major_faults, found.memory_failures, found.oom_kills) == (9, 2, 4, 1)
    assert (found.threads, found.threads_limit, found.processes) == (5, None, 2)
    assert found.first_process == 1
    assert found.table.io == [(0, 8, 0, 10, 20, 1, 2)]


def test_pressure_is_shown_where_the_kernel_has_it(tmp_path: Path) -> None:
    found = read("/g", tree(tmp_path, V2))
    cpu = shown.psi(found, "cpu")
    assert cpu == {
        "some": {"total": 77, "avg10": 1.5, "avg60": 0.2, "avg300": 0.0},
        "full": {"total": 5, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
    }
    assert shown.psi(found, "io") is None


def test_a_group_in_the_shape_of_the_summary(tmp_path: Path) -> None:
    files = {**V2, "g/memory.max": "4000000\n"}
    used = UsedGroup("/g", read("/g", tree(tmp_path, files)))
    used.sample.table.rates = [250]
    time = "1970-01-01T00:01:40Z"
    psi = {"full": {"total": 5, "avg10": 0, "avg60": 0, "avg300": 0},
           "some": {"total": 77, "avg10": 1.5, "avg60": 0.2, "avg300": 0}}  # fmt: skip
    memory = {"availableBytes": 3_000_300, "usageBytes": 1_000_000, "workingSetBytes": 999_700,
              "rssBytes": 600, "pageFaults": 9, "majorPageFaults": 2}  # fmt: skip
    assert shown.group(used, 100.9) == {
        "cpu": {"time": time, "usageNanoCores": 250, "usageCoreNanoSeconds": 2_500_000_000, "psi": psi},
        "memory": {"time": time, **memory},
        "swap": {"time": time, "swapUsageBytes": 5, "swapAvailableBytes": 1_999_995},
    }
    table = GroupTable()
    gone = UsedGroup("/none", table.add("/none"))
    table.read(tmp_path)
    assert shown.group(gone, 100.9) == {}


def test_a_group_that_is_gone_has_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    for mount in (tmp_path, tmp_path / "elsewhere"):
        found = read("/none", mount)
        assert {getattr(found, name) for name in (*COLUMNS, "working_set")} == {None}
        assert found.pressure("cpu", "some") is None
        assert found.table.io == []


def test_devices_but_for_the_loopback() -> None:
    text = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" \
           "  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n  bad: 1 2\n"  # fmt: skip
    (one,) = read_devices(text)
    assert (one.name, one.rx_bytes, one.rx_packets, one.rx_errors, one.rx_dropped) == ("eth0", 10, 2, 3, 4)
    assert (one.tx_bytes, one.tx_packets, one.tx_errors, one.tx_dropped) == (50, 6, 7, 8)
    assert interfaces_of(2**22 + 1) == []


async def test_one_reading_serves_all_who_ask(tmp_path: Path) -> None:
    """And a rate comes from two."""
    inner = {name.replace("/g/", "/g/cri-id.scope/"): text for name, text in V1.items()}
    mount, now = tree(tmp_path, {**V1, **inner}), [100.0]
    containers = [ContainerRecord("id", "c", "s", RUNNING, 0, 1.0)]
    record = PodRecord("u", "p", "n", [SandboxRecord("s", True, 0, 1.0, host_network=True)], containers)
    readings = []

    def pods() -> list[PodRecord]:
        readings.append(now[0])
        return [record]

    sampler = UsageSampler(
        pods=pods,
        pod_cgroup=lambda uid: "/g",
        pods_root=lambda: "/g",
        runtime=tmp_path / "none.sock",
        clock=lambda: now[0],
        mount=mount,
    )
    many = await asyncio.gather(*(sampler.sample() for _ in range(20)))
    assert all(each is many[0] for each in many)
    assert readings == [100.0]
    (pod,) = many[0].pods
    assert pod.group.sample.rate is None
    assert [group.cgroup for group in pod.containers] == ["/g/cri-id.scope"]
    (tmp_path / "cpuacct/g/cpuacct.usage").write_text("3500000000\n")
    now[0] = 102.0
    later = await sampler.sample()
    assert later.pods[0].group.sample.rate == 500_000_000
    assert readings == [100.0, 102.0]
    assert "runtime" not in later.system


def test_what_is_set_from_outside_is_looked_at_now_and_then(tmp_path: Path) -> None:
    """Where nothing runs nothing else changes; io and other numbers stay as they were."""
    calm = {name: text for name, text in V2.items() if not name.endswith("pressure")}
    mount, table, limits = tree(tmp_path, calm), None, []
    for time in (0.0, 30.0, WHOLE_SECONDS - 1, WHOLE_SECONDS + 31, WHOLE_SECONDS + 61):
        table = GroupTable(table, time)
        sample = table.add("/g")
        table.read(mount)
        limits.append(sample.memory_limit)
        (mount / "g/memory.max").write_text(f"{int(time) + 1000}\n")
        assert (sample.rss, table.io) == (600, [(0, 8, 0, 10, 20, 1, 2)])
        assert sample.rate == (None if time == 0 else 0)
    assert limits == [None, None, None, 1299, 1299]


async def test_a_container_that_came_back_elsewhere_is_found(tmp_path: Path) -> None:
    """Where a container's group was is remembered only as long as it is there."""
    inner = {name.replace("/g/", "/g/cri-id.scope/"): text for name, text in V1.items()}
    mount, now = tree(tmp_path, {**V1, **inner}), [100.0]
    containers = [ContainerRecord("id", "c", "s", RUNNING, 0, 1.0)]
    record = PodRecord("u", "p", "n", [SandboxRecord("s", True, 0, 1.0, host_network=True)], containers)
    sampler = UsageSampler(
        pods=lambda: [record],
        pod_cgroup=lambda uid: "/g",
        pods_root=lambda: None,
        runtime=tmp_path / "none.sock",
        clock=lambda: now[0],
        mount=mount,
    )
    found = []
    for move in (None, None, "id-again", None, None):
        if move is not None:
            (tmp_path / "cpuacct/g/cpuacct.usage").write_text("2600000000\n")
            for controller in ("cpuacct", "cpu", "memory", "pids", "blkio"):
                (tmp_path / controller / "g/cri-id.scope").rename(tmp_path / controller / "g" / move)
        now[0] += 10
        (pod,) = (await sampler.sample()).pods
        found.append([(group.cgroup, group.sample.memory) for group in pod.containers])
    first, gone, later = (
        [("/g/cri-id.scope", 1_000_000)],
        [("/g/cri-id.scope", None)],
        [("/g/id-again", 1_000_000)],
    )
    assert found == [first, first, gone, later, later]
