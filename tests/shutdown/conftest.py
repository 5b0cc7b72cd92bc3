"""Provide a real dbus-daemon with a stand-in for logind."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shutdown.logind import StandInLogind

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>
"""


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[str]:
    if shutil.which("dbus-daemon") is None:
        pytest.skip("needs dbus-daemon (Debian: dbus)")
    config = tmp_path / "bus.conf"
    config.write_text(CONFIG.format(socket=tmp_path / "bus"))
    command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        yield f"unix:path={tmp_path / 'bus'}"
        daemon.terminate()


@pytest.fixture
def logind(bus: str, tmp_path: Path) -> Iterator[Callable[..., StandInLogind]]:
    made: list[StandInLogind] = []

    def make(**options: object) -> StandInLogind:
        made.append(StandInLogind(bus, tmp_path / "logind.conf.d", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.end()
