"""cgroup v2's notifications: pressure stall triggers on a kernel that accounts them, the refusals of
kernels that don't, and a cgroup that goes away."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.eviction.pressure_events import TRIGGERS, PressureEvents
from engine.host.cgroupfs.mounts import readable_mounts
from tests.turns import take_turns
from tests.waiting import eventually

MOUNTS = readable_mounts()
UNIFIED = Path(MOUNTS.bare or MOUNTS.hierarchies[0].path)
SMALL = (b"some 1000 500000\0", b"some 1000 2000000\0")
"""A millisecond of stall is enough; the first is refused to a process without CAP_SYS_RESOURCE."""
_THRASH = """
import os, sys
for directory in sys.argv[2:]:
    with open(directory + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
data = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    for block in range(48):
        os.pwrite(data, bytes(1 << 20), block << 20)
    os.fsync(data)
    for block in range(48):
        os.pread(data, 1 << 20, block << 20)
"""
needs_pressure = pytest.mark.skipif(
    not (UNIFIED / "memory.pressure").exists(),
    reason="needs a cgroup v2 mount (a hybrid's will do) and a kernel that accounts pressure stalls",
)


@pytest.fixture
def group(private_cgroup_root: str) -> Path:
    """Make a cgroup whose processes have 16 MiB, and return its directory in the v2 hierarchy."""
    directory = UNIFIED / private_cgroup_root.strip("/")
    directory.mkdir()
    limit = "memory.limit_in_bytes" if MOUNTS.version == 1 else "memory.max"
    memory = MOUNTS.directory("memory", private_cgroup_root)
    memory.mkdir(exist_ok=True)
    (memory / limit).write_text(str(16 << 20))
    return directory


def thrash(data: str, *directories: Path) -> subprocess.Popen[bytes]:
    """Start a process in these groups that writes and reads far more than they may hold."""
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", _THRASH, data, *map(str, directories)])


@needs_pressure
@pytest.mark.root
async def test_processes_that_stall_for_memory_wake(group: Path, private_cgroup_root: str):
    wakes: list[None] = []
    events = PressureEvents(group, lambda: wakes.append(None), SMALL)
    events.start()
    assert "memory.pressure" in events.watched
    data = f"/var/tmp/{group.name}"
    process = thrash(data, *{group, MOUNTS.directory("memory", private_cgroup_root)})
    try:
        await eventually(lambda: wakes)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        Path(data).unlink(missing_ok=True)
        events.stop()
    assert events.watched == set()


@needs_pressure
@pytest.mark.root
async def test_the_default_triggers_are_used(group: Path):
    events = PressureEvents(group, lambda: None)
    events.start()
    assert "memory.pressure" in events.watched
    events.stop()


@needs_pressure
@pytest.mark.root
async def test_a_removed_cgroup_wakes_once_and_is_dropped(group: Path):
    wakes: list[None] = []
    events = PressureEvents(group, lambda: wakes.append(None))
    events.start()
    await asyncio.to_thread(group.rmdir)
    await eventually(lambda: not events.watched)
    seen = len(wakes)
    await take_turns(20)
    assert len(wakes) == seen >= 1
    events.stop()


async def test_a_removed_cgroup_that_one_file_reports_is_dropped(tmp_path, monkeypatch):
    """Simulate Linux 6.1, which reports through memory.pressure alone that the cgroup is gone."""
    for name in ("memory.pressure", "memory.events.local"):
        (tmp_path / name).write_text("")
    reader, writer = os.pipe()
    registered: list[int] = []

    class Epoll:
        def register(self, descriptor: int, mask: int) -> None:
            registered.append(descriptor)

        def unregister(self, descriptor: int) -> None:
            registered.remove(descriptor)

        def fileno(self) -> int:
            return reader

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            os.read(reader, 1)
            return [(registered[0], select.EPOLLERR)]

        def close(self) -> None:
            os.close(reader)

    def gone(*_: object) -> bytes:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    wakes: list[None] = []
    refusing(monkeypatch, lambda trigger: 0)
    monkeypatch.setattr(select, "epoll", Epoll)
    events = PressureEvents(tmp_path, lambda: wakes.append(None))
    events.start()
    assert events.watched == {"memory.pressure", "memory.events.local"}
    monkeypatch.setattr(os, "pread", gone)
    os.write(writer, b".")
    await eventually(lambda: wakes)
    assert (events.watched, registered) == (set(), [])
    events.stop()
    os.close(writer)


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.EPERM, errno.ENODEV, errno.EBUSY])
async def test_a_kernel_that_refuses_triggers(tmp_path, monkeypatch, caplog, refusal):
    """Simulate pressure accounting that is switched off, and an old kernel without privilege."""
    (tmp_path / "memory.pressure").write_text("")
    attempts = refusing(monkeypatch, lambda trigger: refusal)
    events = PressureEvents(tmp_path, lambda: None)
    caplog.set_level("INFO", "kubengine.eviction")
    events.start()
    events.stop()
    assert attempts == [TRIGGERS[0]]
    assert os.strerror(refusal) in caplog.text


async def test_without_privilege_the_window_is_longer(tmp_path, monkeypatch):
    (tmp_path / "memory.pressure").write_text("")
    attempts = refusing(monkeypatch, lambda trigger: errno.EINVAL if trigger == TRIGGERS[0] else 0)
    events = PressureEvents(tmp_path, lambda: None)
    events.start()
    events.stop()
    assert attempts == list(TRIGGERS)


async def test_a_kernel_without_pressure_files_logs_nothing(tmp_path, caplog):
    caplog.set_level("INFO", "kubengine.eviction")
    events = PressureEvents(tmp_path, lambda: None)
    events.start()
    assert events.watched == set()
    events.stop()
    assert not caplog.records


def refusing(monkeypatch: pytest.MonkeyPatch, refusal: Callable[[bytes], int]) -> list[bytes]:
    """Let writes of triggers fail with these errors (0: accept it), and return the list of attempts."""
    attempts: list[bytes] = []
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if data not in TRIGGERS:
            return real(descriptor, data)
        attempts.append(data)
        number = refusal(data)
        if number:
            raise OSError(number, os.strerror(number))
        return len(data)

    monkeypatch.setattr(os, "write", write)
    return attempts
