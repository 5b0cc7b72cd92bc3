"""Notifications of cgroup v1 about memory usage, where the kernel gives none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.eviction.usage_events import UsageEvents

GIB = 1 << 30


def test_a_refused_notification_is_reported_once_while_the_reason_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = UsageEvents(tmp_path, lambda: None)
    for usage in (GIB, 2 * GIB, 3 * GIB):
        events.arm([usage])
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"no memory notification at {GIB} bytes of {tmp_path}: ")
    (tmp_path / "memory.usage_in_bytes").write_text("0\n")
    (tmp_path / "cgroup.event_control").mkdir()
    for usage in (4 * GIB, 5 * GIB):
        events.arm([usage])
    assert len(caplog.messages) == 2
    assert "Is a directory" in caplog.messages[1]
