"""Cgroups and network devices as they are read: v1 and v2, whole and half gone."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine._fast.reading.groups import COLUMNS
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.stats import shown, system
from engine.node.stats.group import SETTINGS_SECONDS, Groups, GroupSample
from engine.node.stats.network import Interface, interfaces_of, read_devices
from engine.node.stats.sampler import UsageSampler
from engine.node.stats.system import SystemGroups, read_places
from engine.node.stats.used import NodeUsage
from tests.laid_out_cgroups import laid_out

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
    groups = Groups()
    row = groups.add([cgroup])
    return groups.read(laid_out(mount), 100.9).sample(row)


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
    assert found.table.io == {0: [(8, 0, 10, 20, 1, 2)]}


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
    found = read("/g", tree(tmp_path, files))
    found.table.rates[found.row] = 250
    time = "1970-01-01T00:01:40Z"
    psi = {"full": {"total": 5, "avg10": 0, "avg60": 0, "avg300": 0},
           "some": {"total": 77, "avg10": 1.5, "avg60": 0.2, "avg300": 0}}  # fmt: skip
    memory = {"availableBytes": 3_000_300, "usageBytes": 1_000_000, "workingSetBytes": 999_700,
              "rssBytes": 600, "pageFaults": 9, "majorPageFaults": 2}  # fmt: skip
    assert shown.group(found) == {
        "cpu": {"time": time, "usageNanoCores": 250, "usageCoreNanoSeconds": 2_500_000_000, "psi": psi},
        "memory": {"time": time, **memory},
        "swap": {"time": time, "swapUsageBytes": 5, "swapAvailableBytes": 1_999_995},
    }
    assert shown.group(read("/none", tmp_path)) == {}


def test_a_group_that_is_gone_has_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    for mount in (tmp_path, tmp_path / "elsewhere"):
        found = read("/none", mount)
        assert {getattr(found, name) for name in (*COLUMNS, "working_set")} == {None}
        assert found.pressure("cpu", "some") is None
        assert found.table.io == {}


def test_devices_but_for_the_loopback() -> None:
    text = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" \
           "  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n  bad: 1 2\n"  # fmt: skip
    (one,) = read_devices(text)
    assert (one.name, one.rx_bytes, one.rx_packets, one.rx_errors, one.rx_dropped) == ("eth0", 10, 2, 3, 4)
    assert (one.tx_bytes, one.tx_packets, one.tx_errors, one.tx_dropped) == (50, 6, 7, 8)
    assert interfaces_of(2**22 + 1) == []


async def test_one_reading_serves_all_callers(tmp_path: Path) -> None:
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
        mounts=laid_out(mount),
    )
    many = await asyncio.gather(*(sampler.sample() for _ in range(20)))
    assert all(each is many[0] for each in many)
    assert readings == [100.0]
    (pod,) = many[0].pods
    assert many[0].sample(pod.group).rate is None
    assert [group.cgroup for group in pod.containers] == ["/g/cri-id.scope"]
    (tmp_path / "cpuacct/g/cpuacct.usage").write_text("3500000000\n")
    now[0] = 102.0
    later = await sampler.sample()
    assert later.sample(later.pods[0].group).rate == 500_000_000
    assert not later.table.counted, "descriptors cost as much as all else, and few pages show them"
    assert await sampler.sample(descriptors=True) is later
    assert later.table.counted
    assert readings == [100.0, 102.0]
    assert "runtime" not in later.system


def test_values_set_from_outside_are_read_again_occasionally(tmp_path: Path) -> None:
    """Where nothing runs, nothing changes: io and the other numbers stay."""
    calm = {name: text for name, text in V2.items() if not name.endswith("pressure")}
    mount, groups, limits = tree(tmp_path, calm), Groups(), []
    row = groups.add(["/g"])
    for time in (0.0, 30.0, SETTINGS_SECONDS - 1, SETTINGS_SECONDS + 31, SETTINGS_SECONDS + 61):
        sample = groups.read(laid_out(mount), time).sample(row)
        limits.append(sample.memory_limit)
        (mount / "g/memory.max").write_text(f"{int(time) + 1000}\n")
        assert (sample.rss, sample.table.io) == (600, {0: [(8, 0, 10, 20, 1, 2)]})
        assert sample.rate == (None if time == 0 else 0)
    assert limits == [None, None, None, *[SETTINGS_SECONDS - 1 + 1000] * 2]


async def test_a_container_that_moved_to_another_cgroup_is_found(tmp_path: Path) -> None:
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
        mounts=laid_out(mount),
    )
    found = []
    for move in (None, None, "id-again", None, None):
        if move is not None:
            (tmp_path / "cpuacct/g/cpuacct.usage").write_text("2600000000\n")
            for controller in ("cpuacct", "cpu", "memory", "pids", "blkio"):
                (tmp_path / controller / "g/cri-id.scope").rename(tmp_path / controller / "g" / move)
        now[0] += 10
        usage = await sampler.sample()
        (pod,) = usage.pods
        found.append([(group.cgroup, usage.sample(group).memory) for group in pod.containers])
    first, gone, later = (
        [("/g/cri-id.scope", 1_000_000)],
        [("/g/cri-id.scope", None)],
        [("/g/id-again", 1_000_000)],
    )
    assert found == [first, first, gone, later, later]


async def test_a_pod_without_container_cgroups_keeps_its_columns_until_one_appears(tmp_path: Path) -> None:
    container = ContainerRecord("id1", "c", "s1", RUNNING, 0, 1.0, 2.0)
    pod = PodRecord("u", "p", "n", [SandboxRecord("s1", True, 0, 1.0)], [container])
    clock = [100.0]
    for group in ("", "kubepods", "kubepods/u"):
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / "cpu.stat").write_text("usage_usec 1\n")
        (tmp_path / group / "memory.current").write_text("1\n")
    sampler = UsageSampler(
        pods=lambda: [pod],
        pod_cgroup=lambda uid: f"/kubepods/{uid}",
        pods_root=lambda: "/kubepods",
        runtime=tmp_path / "none.sock",
        clock=lambda: clock[0],
        mounts=laid_out(tmp_path),
    )
    first = await sampler.sample()
    clock[0] += 10
    second = await sampler.sample()
    assert second.pods[0] is first.pods[0]
    assert not second.table.looked_at[second.pods[0].group.row], "it rests"
    assert second.lacking
    for owner in ("id1", "s1"):
        (tmp_path / "kubepods/u" / owner).mkdir()
        (tmp_path / "kubepods/u" / owner / "cpu.stat").write_text("usage_usec 1\n")
        (tmp_path / "kubepods/u" / owner / "memory.current").write_text("1\n")
    clock[0] += 10
    third = await sampler.sample()
    assert [group.owner for group in third.pods[0].groups] == ["", "id1", "s1"]
    assert not third.lacking


@pytest.mark.parametrize(
    ("before", "now", "rate"), [("7", "nothing", None), ("nothing", "7", None), ("0", "9" * 30, 2**62)]
)
def test_a_rate_of_what_cannot_be_read(tmp_path: Path, before: str, now: str, rate: int | None) -> None:
    groups = Groups()
    row = groups.add(["/g"])
    for time, used in ((100.0, before), (100.5, now)):
        tree(tmp_path, {"g/cpu.stat": f"usage_usec {used}\n", "g/memory.current": "7\n"})
        sample = groups.read(laid_out(tmp_path), time).sample(row)
    assert sample.rate == rate


PLACES = """12:pids:/all
7:cpu,cpuacct:/cpu/agent
4:memory:/agent
1:name=systemd:/agent
0::/other
"""


def test_processes_may_be_in_another_group_of_each_hierarchy() -> None:
    assert read_places(PLACES, v1=True) == {
        "memory": "/agent",
        "cpuacct": "/cpu/agent",
        "cpu": "/cpu/agent",
        "pids": "/all",
    }
    assert read_places(PLACES, v1=False) == {"memory": "/other"}
    assert read_places("12:pids:/all\n", v1=True) == {}


def test_a_system_group_has_the_values_of_each_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU is found where the CPU hierarchy has the process, though memory's path is unknown there."""
    monkeypatch.setattr(system, "own_places", lambda pid, mounts: read_places(PLACES, v1=True))
    files = {name.replace("/g/", "/agent/"): text for name, text in V1.items() if name.startswith("memory")}
    files |= {name.replace("/g/", "/cpu/agent/"): text for name, text in V1.items() if name.startswith("cpu")}
    mount, groups = tree(tmp_path, {**files, "pids/all/pids.current": "9\n"}), Groups()
    looked = SystemGroups(groups)
    seen = []
    for time in (100.0, 102.0, 104.0):
        looked.update(tmp_path / "none.sock", "/none", laid_out(mount))
        (tmp_path / "cpuacct/cpu/agent/cpuacct.usage").write_text(f"{int(time)}000000000\n")
        sample = groups.read(laid_out(mount), time).sample(looked.groups["kubelet"].row)
        seen.append((sample.cpu, sample.cpu_user, sample.shares, sample.memory, sample.threads, sample.rate))
    known = (1_000_000_000, 512, 1_000_000, 9)
    assert seen == [(100 * 10**9, *known, None), (102 * 10**9, *known, 10**9), (104 * 10**9, *known, 10**9)]
    assert set(looked.groups) == {"kubelet", "pods"}
    monkeypatch.setattr(system, "own_places", lambda pid, mounts: {"memory": "/agent"})
    looked.update(tmp_path / "none.sock", None, laid_out(mount))
    sample = groups.read(laid_out(mount), 106.0).sample(looked.groups["kubelet"].row)
    assert (sample.cpu, sample.memory, set(looked.groups)) == (None, 1_000_000, {"kubelet"})


async def test_changed_pods_leave_the_numbers_of_others(tmp_path: Path) -> None:
    """Against a sampler that sees each moment for the first time; rates go on."""
    chance, now = random.Random(5), [1000.0]
    records: dict[str, PodRecord] = {}

    def at(top: Path) -> UsageSampler:
        return UsageSampler(
            pods=lambda: list(records.values()),
            pod_cgroup=lambda uid: f"/p/{uid}",
            pods_root=lambda: "/p",
            runtime=tmp_path / "none.sock",
            clock=lambda: now[0],
            mounts=laid_out(top),
        )

    def container(uid: str, number: int) -> ContainerRecord:
        return ContainerRecord(f"{uid}-c{number}", "c", "s", RUNNING, number, 1.0)

    def work(cgroup: str) -> None:
        used = chance.randrange(10**9)
        tree(
            tmp_path / cgroup,
            {
                "cpu.stat": f"usage_usec {int(now[0]) * 10**9 + used}\n",
                "memory.current": f"{used}\n",
                "io.stat": f"8:0 rbytes={used} wbytes=2 rios=3 wios=4\n",
            },
        )

    def move() -> None:
        now[0] += 10
        for uid in [f"u{chance.randrange(9)}" for _ in range(3)]:
            record = records.get(uid)
            if record is None:
                sandbox = SandboxRecord(f"{uid}-s", True, 0, 1.0, host_network=True)
                records[uid] = PodRecord(uid, uid, "n", [sandbox], [container(uid, 0)])
                for name in (uid, f"{uid}/{uid}-s", f"{uid}/{uid}-c0"):
                    work(f"p/{name}")
            elif chance.random() < 0.4:
                del records[uid]
                shutil.rmtree(tmp_path / "p" / uid)
            elif chance.random() < 0.6:
                added = container(uid, len(record.containers))
                record.containers.append(added)
                work(f"p/{uid}/{added.id}")
            else:
                for directory in (tmp_path / "p" / uid).iterdir():
                    if directory.is_dir():
                        work(f"p/{uid}/{directory.name}")
                work(f"p/{uid}")

    def whole(usage: NodeUsage) -> dict[str, Any]:
        io = usage.table.io
        return {
            group.cgroup: (
                group.owner,
                usage.sample(group).numbers,
                io.get(group.row),
            )
            for pod in usage.pods
            for group in pod.groups
        }

    kept, before = at(tmp_path), dict[str, Any]()
    for _ in range(60):
        move()
        usage = await kept.sample()
        shown = whole(usage)
        assert shown == whole(await at(tmp_path).sample())
        rates = {group.cgroup: usage.sample(group).rate for pod in usage.pods for group in pod.groups}
        known = {cgroup for cgroup in shown if cgroup in before}
        assert {cgroup for cgroup, rate in rates.items() if rate is not None} <= known
        assert all(rates[cgroup] is not None for cgroup in known if shown[cgroup][1] == before[cgroup][1])
        before = shown
    assert len(usage.table) < 150


async def test_network_devices_are_read_where_something_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def devices(pid: int | str) -> list[Interface]:
        asked.append(pid)
        return [Interface("eth0", *[len(asked)] * 8)]

    monkeypatch.setattr("engine.node.stats.sampler.interfaces_of", devices)
    now = [100.0]
    record = PodRecord("u", "p", "n", [SandboxRecord("s", True, 0, 1.0)], [])
    record.containers.append(ContainerRecord("id", "c", "s", RUNNING, 0, 1.0))
    files = {"g/cpu.stat": "usage_usec 7\n", "g/memory.current": "7\n", "g/cgroup.procs": "1\n"}
    for inner in ("g/s/", "g/id/"):
        files |= {name.replace("g/", inner): text for name, text in files.items() if name.count("/") == 1}
    sampler = UsageSampler(
        pods=lambda: [record],
        pod_cgroup=lambda uid: "/g",
        pods_root=lambda: None,
        runtime=tmp_path / "none.sock",
        clock=lambda: now[0],
        mounts=laid_out(tree(tmp_path, files)),
    )
    shown = []
    for later, used in ((10, 7), (10, 7), (10, 8), (10, 8), (SETTINGS_SECONDS, 8)):
        (tmp_path / "g/cpu.stat").write_text(f"usage_usec {used}\n")
        now[0] += later
        shown.append((await sampler.sample()).networks["u"][0].rx_bytes)
    assert asked.count(1) == 3
    assert shown[0] == shown[1] < shown[2] == shown[3] < shown[4]


def test_settings_of_a_replaced_group_are_read_again(tmp_path: Path) -> None:
    """A resize changes the runtime's report of a pod, and then its groups get new rows."""
    mount, groups = tree(tmp_path, V2), Groups()
    first = groups.add(["/g"])
    groups.read(laid_out(mount), 10.0)
    (mount / "g/memory.max").write_text("4000\n")
    groups.drop(first, 1)
    again = groups.add(["/g", "/g/inner"], {"/g": first})
    sample = groups.read(laid_out(mount), 12.0).sample(again)
    assert (sample.memory_limit, sample.rate) == (4000, 0)
