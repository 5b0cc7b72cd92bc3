"""What the whole machine uses of its memory: one count for the signal and for all that shows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.eviction.readings import NodeView, SignalReader
from engine.host.cgroupfs.usage import CgroupUsage, HeldFile, machine_memory
from engine.node.nodeinfo import machine
from engine.node.stats.summary import node_summary
from engine.server.resource_metrics import resource_metrics
from tests.laid_out_cgroups import laid_out

MEMINFO = "MemTotal:       1000 kB\nMemFree:         300 kB\nMemAvailable:    900 kB\n"
V1 = {"memory/memory.usage_in_bytes": "600000\n", "memory/memory.stat": "total_inactive_file 100000\n"}
V2 = {"memory.stat": "anon 5\ninactive_file 100000\n"}


@pytest.fixture(params=["v1", "v2"])
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for name, text in {"v1": V1, "v2": V2}[request.param].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_v2_root_is_counted_by_what_is_not_free(mount: Path, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    used = 600_000 if (mount / "memory").exists() else 700 << 10
    root, held = CgroupUsage("/", laid_out(mount)), HeldFile(meminfo)
    assert machine_memory(root, held) == (used, used - 100_000)
    root.close()
    held.close()


def test_the_shown_machine_memory_is_that_of_the_signal(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    monkeypatch.setattr("engine.eviction.readings.PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "proc/meminfo")
    reader = SignalReader(NodeView(mounts=laid_out(mount)), nodefs=tmp_path)
    available = reader.read(1.0)["memory.available"].available
    reader.close()
    used, working_set = machine.memory_in_use(laid_out(mount))
    assert used - working_set == 100_000
    shown = node_summary("n", tmp_path, 0.0, 1.0, (used, working_set))["memory"]
    assert shown["availableBytes"] == available == (1000 << 10) - working_set
    assert (shown["usageBytes"], shown["workingSetBytes"]) == (used, working_set)
    nobody = SimpleNamespace(
        root=0, time=1.0, pods={}, sample=lambda _: SimpleNamespace(cpu=None), memory=(used, working_set)
    )
    assert f"node_memory_working_set_bytes {working_set} " in next(iter(resource_metrics(nobody))).decode()


def test_without_cgroups_available_memory_is_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    assert machine.memory_in_use(laid_out(tmp_path / "none")) == (100 << 10, 100 << 10)
