"""Finds, scans and deletes SCSI disks through sysfs and /dev. Blocking; call it in a thread.

Source: kubelet v1.36 (`pkg/volume/util/device_util_linux.go`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_HOST: Final = re.compile(r"host([0-9]{1,9})")

log = logging.getLogger("kubengine.volumes")


class ScsiDisks:
    """Find the disks of one machine; directories other than /sys and /dev are for tests."""

    def __init__(self, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
        self._sys = sys
        self._dev = dev

    def hosts(self, iqn: str) -> dict[str, int]:
        """Return the SCSI host of each portal that has a session with the target."""
        found = {}
        for number, session in self._sessions(iqn):
            for connection in sorted(session.glob("connection*")):
                attributes = connection / "iscsi_connection" / connection.name
                with suppress(OSError):
                    # After a redirect, the persistent address is the portal that was requested.
                    for kind in ("", "persistent_"):
                        address = (attributes / f"{kind}address").read_text().strip()
                        port = (attributes / f"{kind}port").read_text().strip()
                        found[f"[{address}]:{port}" if ":" in address else f"{address}:{port}"] = number
        return found

    def scan(self, host: int, lun: int) -> None:
        """Scan a host for one LUN only. Raises `OSError`."""
        (self._sys / "class" / "scsi_host" / f"host{host}" / "scan").write_text(f"0 0 {lun}")

    def rescan(self) -> None:
        """Scan all hosts for all disks; failures are logged."""
        for host in sorted((self._sys / "class" / "scsi_host").glob("*")):
            try:
                (host / "scan").write_text("- - -")
            except OSError as error:
                log.warning("SCSI host %s is not scanned: %s", host.name, error.strerror)

    def fibre_channel(self, wwn: str, lun: int) -> list[Path]:
        """Return the devices of a target's LUN, one for each path to it."""
        name = re.compile(rf"(pci-.*-)?fc-0x{re.escape(wwn)}-lun-{lun}")
        return self._linked("by-path", name)

    def identified(self, wwid: str) -> list[Path]:
        """Return the device with an identifier, if there is one."""
        return self._linked("by-id", re.compile(re.escape(f"scsi-{wwid}")))

    def members(self, device: Path) -> list[Path]:
        """Return the disks that are paths of a multipath device, or the disk itself."""
        if not device.name.startswith("dm-"):
            return [device]
        slaves = (self._sys / "block" / device.name / "slaves").glob("*")
        return [self._dev / each.name for each in sorted(slaves)]

    def is_known(self, device: Path) -> bool:
        """Tell whether the kernel has a block device of this name."""
        return (self._sys / "block" / device.name).exists()

    def _linked(self, kind: str, name: re.Pattern[str]) -> list[Path]:
        found = []
        for link in sorted((self._dev / "disk" / kind).glob("*")):
            if name.fullmatch(link.name):
                with suppress(OSError):
                    found.append(link.resolve(strict=True))
        return list(dict.fromkeys(found))

    def find(self, link: str) -> Path | None:
        """Return the first device in /dev/disk/by-path whose name matches a pattern."""
        return next(iter(sorted((self._dev / "disk" / "by-path").glob(link))), None)

    def multipath(self, devices: Iterable[Path]) -> Path | None:
        """Return the multipath device of which one of the devices is a path."""
        for device in devices:
            with suppress(OSError):
                name = device.resolve(strict=True).name
                if name.startswith("dm-"):
                    return self._dev / name
                for mapped in sorted((self._sys / "block").glob("dm-*")):
                    if (mapped / "slaves" / name).exists():
                        return self._dev / mapped.name
        return None

    def disks(self, iqn: str, lun: int) -> list[Path]:
        """Return the disks of a LUN, one for each path."""
        found = []
        for number, session in self._sessions(iqn):
            directory = session / f"target{number}:0:0" / f"{number}:0:0:{lun}" / "block"
            found += [self._dev / disk.name for disk in sorted(directory.glob("*"))[:1]]
        return found

    def delete(self, disk: Path) -> None:
        """Delete an unused disk from the kernel. A missing disk is ignored, and other failures are logged."""
        try:
            (self._sys / "block" / disk.name / "device" / "delete").write_text("1")
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s is not deleted: %s", disk, error.strerror)

    def _sessions(self, iqn: str) -> Iterator[tuple[int, Path]]:
        """Yield the sessions with a target, each with the number of its SCSI host."""
        for host in sorted((self._sys / "class" / "iscsi_host").glob("host*")):
            number = _HOST.fullmatch(host.name)
            if number is None:
                continue
            for session in sorted((host / "device").glob("session*")):
                try:
                    target = (session / "iscsi_session" / session.name / "targetname").read_text()
                except OSError:
                    continue
                if target.strip() == iqn:
                    yield int(number[1]), session
