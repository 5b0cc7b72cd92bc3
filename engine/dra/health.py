"""Keeps the health of devices, and encodes it as `dra_health_state` for the next agent. Pure.

A driver lists its devices again and again; what it has not listed for a device's time-out is unknown. Times
are Unix seconds by the agent's clock: when a report came, not when the driver says that it looked.
Rules and file format: kubelet v1.36 (`pkg/kubelet/cm/dra/healthinfo.go`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from engine.api.encoding.json_text import encode_json

HEALTHY, UNHEALTHY, UNKNOWN = "Healthy", "Unhealthy", "Unknown"
DEFAULT_TIMEOUT: Final = 30.0
MAX_TIMEOUT: Final = 10 * 365 * 86400.0
MAX_MESSAGE: Final = 1024
"""Bytes of a message."""

MAX_DEVICES: Final = 16_384
"""Devices of one driver whose health is kept."""

DeviceKey = tuple[str, str]
"""Pool and device."""


class DeviceHealth(msgspec.Struct, frozen=True):
    """Hold the health of a device, which is valid for `timeout` seconds after `at`, when it was last
    listed.
    """

    pool: str
    device: str
    health: str = UNKNOWN
    message: str = ""
    timeout: float = DEFAULT_TIMEOUT
    at: float = 0.0

    @property
    def key(self) -> DeviceKey:
        return self.pool, self.device

    @property
    def expires_at(self) -> float:
        return self.at + self.timeout


def reported(pool: str, device: str, health: str, message: str, timeout: float) -> DeviceHealth:
    """Return a report with its time-out and the length of its message in the kubelet's bounds."""
    if timeout <= 0:
        timeout = DEFAULT_TIMEOUT
    # In bytes: the API server refuses the status of a pod with a longer message.
    if len(text := message.encode(errors="replace")) > MAX_MESSAGE:
        message = text[: MAX_MESSAGE - 3].decode(errors="ignore") + "..."
    return DeviceHealth(pool, device, health, message, min(timeout, MAX_TIMEOUT))


class HealthTable:
    """Hold the health of devices by driver."""

    def __init__(self) -> None:
        self._drivers: dict[str, dict[DeviceKey, DeviceHealth]] = {}

    def get(self, driver: str, pool: str, device: str, now: float) -> DeviceHealth:
        """Return a device's health; unknown if no driver has reported it within its time-out."""
        known = self._drivers.get(driver, {}).get((pool, device))
        if known is None or now > known.expires_at:
            return DeviceHealth(pool, device)
        return known

    def update(self, driver: str, listed: Iterable[DeviceHealth], now: float) -> list[DeviceKey]:
        """Take over a driver's list; return the devices whose health changed.

        Raises `ValueError` for more than MAX_DEVICES.
        """
        known = self._drivers.setdefault(driver, {})
        changed = []
        for report in listed:
            before = known.get(report.key)
            if before is None and len(known) >= MAX_DEVICES:
                raise ValueError(f"more than {MAX_DEVICES} devices")
            known[report.key] = current = replace(report, at=now)
            if before is None or replace(before, at=now) != current:
                changed.append(report.key)
        return changed

    def expire(self, now: float) -> list[tuple[str, DeviceKey]]:
        """Drop reports past their time-out; return the devices (driver, key) that are now unknown."""
        stale = [
            (driver, key)
            for driver, devices in self._drivers.items()
            for key, known in devices.items()
            if now > known.expires_at
        ]
        for driver, key in stale:
            del self._drivers[driver][key]
        return stale

    def next_expiry(self) -> float | None:
        """Return when the first report times out, in Unix seconds; None if there is none."""
        return min(
            (h.expires_at for devices in self._drivers.values() for h in devices.values()), default=None
        )

    def forget(self, driver: str) -> list[DeviceKey]:
        """Drop a driver's reports; return the devices that are now unknown."""
        return list(self._drivers.pop(driver, ()))

    def encode(self) -> bytes:
        """Return the content of the file."""
        return encode_json(
            {
                driver: _Driver({f"{h.pool}/{h.device}": _written(h) for h in devices.values()})
                for driver, devices in sorted(self._drivers.items())
            }
        )

    def restore(self, text: bytes) -> None:
        """Take over what a file says. Raises `ValueError`."""
        for driver, state in _files.decode(text).items():
            read = [_read(device) for device in (state.devices or {}).values()]
            self._drivers[driver] = {health.key: health for health in read[:MAX_DEVICES]}


class _Device(msgspec.Struct):
    pool: str = msgspec.field(default="", name="PoolName")
    device: str = msgspec.field(default="", name="DeviceName")
    health: str = msgspec.field(default=UNKNOWN, name="Health")
    at: datetime | None = msgspec.field(default=None, name="LastUpdated")
    timeout: int = msgspec.field(default=0, name="HealthCheckTimeout")
    message: str = msgspec.field(default="", name="Message")


class _Driver(msgspec.Struct):
    devices: dict[str, _Device] | None = msgspec.field(default=None, name="Devices")


_files = msgspec.json.Decoder(dict[str, _Driver])


def _written(known: DeviceHealth) -> _Device:
    at = datetime.fromtimestamp(known.at, UTC)
    return _Device(known.pool, known.device, known.health, at, round(known.timeout * 1e9), known.message)


def _read(device: _Device) -> DeviceHealth:
    health = device.health if device.health in (HEALTHY, UNHEALTHY) else UNKNOWN
    at = device.at.timestamp() if device.at is not None else 0.0
    known = reported(device.pool, device.device, health, device.message, device.timeout / 1e9)
    return replace(known, at=at)
