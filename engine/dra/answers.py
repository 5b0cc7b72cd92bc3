"""Checks a driver's answers against what it was asked; the first fault is the error. Pure.

The kubelet (v1.36) takes devices as they come. Here a device needs a pool and a name, and a CDI name has to
be one that a runtime can look up, so that a fault of the driver is named where it is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from engine.dra.table import ClaimState, PreparedDevice

MAX_CLAIM_DEVICES: Final = 4096
"""Devices of one claim that one driver may name; a claim allocates 32 at most."""

MAX_TEXT: Final = 512
"""Bytes of a name; of an error, as it goes into an event."""

_CDI_ID = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)


class ClaimAnswer(msgspec.Struct, frozen=True):
    """Hold a driver's answer for one claim: the devices, or the fault."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class CheckedAnswers(msgspec.Struct):
    """Hold checked answers: `done` are the claims, by uid, for which the driver did as asked; `faults` give
    the reasons of the others by claim, and under '' faults that concern no claim of the request.
    """

    done: dict[str, tuple[PreparedDevice, ...]] = msgspec.field(default_factory=dict)
    faults: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def fault(self) -> str:
        """Return the first fault; empty if there is none."""
        return next(iter(self.faults.values()), "")


def check_answers(
    method: str, asked: Mapping[str, str], answers: Mapping[str, ClaimAnswer]
) -> CheckedAnswers:
    """Check the answers for the claims in `asked` (uid → name)."""
    checked = CheckedAnswers()
    for uid, name in asked.items():
        answer = answers.get(uid)
        if answer is None:
            continue
        if answer.error:
            checked.faults[uid] = f"{method} failed for ResourceClaim {name}: {shortened(answer.error)}"
        elif wrong := _wrong_devices(answer.devices):
            checked.faults[uid] = f"{method} failed for ResourceClaim {name}: the driver named {wrong}"
        else:
            checked.done[uid] = answer.devices
    unknown = sorted(answers.keys() - asked.keys())
    if unknown:
        text = f"{method} returned result for unknown claim UID {shortened(unknown[0])}"
        checked.faults.setdefault("", text)
    skipped = asked.keys() - answers.keys()
    for uid in skipped:
        checked.faults[uid] = f"{method} skipped {len(skipped)} ResourceClaims"
    return checked


def _wrong_devices(devices: Sequence[PreparedDevice]) -> str:
    if len(devices) > MAX_CLAIM_DEVICES:
        return f"more than {MAX_CLAIM_DEVICES} devices"
    for device in devices:
        if not device.pool or not device.device:
            return f"a device without a name: pool {device.pool!r}, device {device.device!r}"
        if long := _too_long((device.pool, device.device, *device.requests, *device.cdi_ids)):
            return f"a device with a name of more than {MAX_TEXT} bytes: {shortened(long, 64)!r}"
        for id in device.cdi_ids:
            if _CDI_ID.fullmatch(id) is None:
                return f"the CDI device {id!r}, which is not vendor/class=name"
    return ""


def _too_long(names: Iterable[str]) -> str:
    return next((name for name in names if len(name.encode(errors="replace")) > MAX_TEXT), "")


def shortened(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def batches(wanted: Iterable[tuple[ClaimState, Iterable[str]]]) -> dict[str, list[ClaimState]]:
    """Group claims by the drivers to ask: each driver is called once for all of its claims."""
    found: dict[str, list[ClaimState]] = {}
    for claim, drivers in wanted:
        for driver in drivers:
            found.setdefault(driver, []).append(claim)
    return dict(sorted(found.items()))
