"""A machine with recording stand-ins for `mount -t nfs`, `iscsiadm` and the kernel's view of iSCSI disks.

An export is a directory that gets bind-mounted, a LUN a loop device. The stand-ins cannot show that a server
or a target accepts the commands; they show which commands run, in which order, and what is mounted then.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine.intree.scsi import ScsiDisks

IQN = "iqn.2026-11.com.example:disks"
_MOUNT = """#!/bin/sh
echo "mount $*" >> {log}
[ "$2" = nfs ] || exec {mount} "$@"
[ -e {here}/no-answer ] && exec sleep 600
if [ -e {here}/refuse-mount ]; then cat {here}/refuse-mount >&2; exit 32; fi
for target; do :; done
exec {mount} --bind {export} "$target"
"""
_UMOUNT = """#!/bin/sh
echo "umount $*" >> {log}
[ -e {here}/busy ] && [ "$1" != -f ] && {{ echo "target is busy." >&2; exit 32; }}
exec {umount} "$@"
"""
_ISCSIADM = """#!/bin/sh
echo "iscsiadm $*" >> {log}
case "$*" in
*"-m iface"*"-o show"*) cat {here}/iface;;
*--login*)
    case "$4" in *unreachable*) echo "iscsiadm: cannot connect" >&2; exit 8;; esac
    session={sys}/class/iscsi_host/host7/device/session1
    connection=$session/connection1:0/iscsi_connection/connection1:0
    mkdir -p $session/iscsi_session/session1 $connection {sys}/class/scsi_host/host7
    echo {iqn} > $session/iscsi_session/session1/targetname
    for each in address persistent_address; do echo "${{4%:*}}" > $connection/$each; done
    for each in port persistent_port; do echo "${{4##*:}}" > $connection/$each; done
    for lun in {here}/lun-*; do
        number="${{lun##*-}}" device=$(cat $lun)
        mkdir -p $session/target7:0:0/7:0:0:$number/block/$(basename $device)
        ln -sf $device {dev}/disk/by-path/ip-$4-iscsi-{iqn}-lun-$number
    done;;
*--logout*)
    rm -rf {sys}/class/iscsi_host/host7 {dev}/disk/by-path/*;;
esac
"""


class HostTools:
    """Put the stand-ins first in the PATH until the test ends."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = directory
        self.export, self.sys, self.dev = directory / "export", directory / "sys", directory / "dev"
        self._log = directory / "log"
        for each in (self.export, self.sys / "block", self.dev / "disk" / "by-path", directory / "bin"):
            each.mkdir(parents=True)
        words = {
            "log": self._log, "here": directory, "export": self.export, "sys": self.sys, "dev": self.dev,
            "iqn": IQN, "mount": shutil.which("mount"), "umount": shutil.which("umount"),
        }  # fmt: skip
        for name, script in (("mount", _MOUNT), ("umount", _UMOUNT), ("iscsiadm", _ISCSIADM)):
            self._program(name, script.format(**words))
        (directory / "iface").write_text(
            "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.transport_name = tcp\n"
            "iface.initiatorname = <empty>\niface.mtu = 0\n# END RECORD\n"
        )
        monkeypatch.setenv("PATH", f"{directory / 'bin'}:{os.environ['PATH']}")
        for plugin in ("iscsi", "fc"):
            monkeypatch.setattr(f"engine.intree.{plugin}.ScsiDisks", lambda: ScsiDisks(self.sys, self.dev))

    def lun(self, number: int, device: Path) -> None:
        """Make a disk a LUN of the target."""
        (self.here / f"lun-{number}").write_text(str(device))
        (self.sys / "block" / device.name / "device").mkdir(parents=True)

    def commands(self, name: str = "") -> list[str]:
        """Return the command lines so far of one command, or of all."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if line.startswith(name)]

    def deleted(self, device: Path) -> bool:
        """Tell whether the kernel was asked to forget a disk."""
        return (self.sys / "block" / device.name / "device" / "delete").exists()

    def without(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take a command away, from everywhere."""
        (self.here / "bin" / name).unlink()
        rest = self.here / "rest"
        rest.mkdir()
        for directory in os.environ["PATH"].split(":")[1:]:
            for program in Path(directory).glob("*"):
                if program.name != name and not (rest / program.name).is_symlink():
                    (rest / program.name).symlink_to(program)
        monkeypatch.setenv("PATH", f"{self.here / 'bin'}:{rest}")

    def _program(self, name: str, text: str) -> None:
        program = self.here / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
