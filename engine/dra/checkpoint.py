"""Reads and writes the claim table in the kubelet's format (`dra_manager_state`), from which either agent can
continue. Pure.

The file is JSON around JSON: `Data` is a text with the claims, `Checksum` its CRC-32 (kubelet v1.36,
`pkg/kubelet/cm/dra/state`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.dra.table import ClaimState, PreparedDevice

KIND: Final = "DRACheckpoint"
VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


class _Device(msgspec.Struct, rename={"cdi": "CDIDeviceIDs"}):
    pool: str = msgspec.field(default="", name="PoolName")
    device: str = msgspec.field(default="", name="DeviceName")
    share: str | None = msgspec.field(default=None, name="ShareID")
    requests: list[str] | None = msgspec.field(default=None, name="RequestNames")
    cdi: list[str] | None = None


class _Driver(msgspec.Struct):
    devices: list[_Device] | None = msgspec.field(default=None, name="Devices")


class _Claim(msgspec.Struct):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pods: dict[str, dict[str, Any]] | None = msgspec.field(default=None, name="PodUIDs")
    drivers: dict[str, _Driver] | None = msgspec.field(default=None, name="DriverState")


class _Data(msgspec.Struct):
    kind: str = ""
    version: str = msgspec.field(default="", name="apiVersion")
    claims: list[_Claim] | None = msgspec.field(default=None, name="ClaimInfoStateList")


class _File(msgspec.Struct):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


_files = msgspec.json.Decoder(_File)
_datas = msgspec.json.Decoder(_Data)


def encode(claims: Iterable[ClaimState]) -> bytes:
    """Return the content of the file."""
    listed = [_written(claim) for claim in sorted(claims, key=lambda claim: claim.key)]
    data = json.dumps(
        {"kind": KIND, "apiVersion": VERSION, "ClaimInfoStateList": listed}, separators=(",", ":")
    )
    return encode_json(_File(data, zlib.crc32(data.encode())))


def decode(text: bytes) -> list[ClaimState]:
    """Return the claims of a file, none of them prepared by this agent yet. Raises `ValueError`."""
    file = _files.decode(text)
    found = zlib.crc32(file.data.encode())
    if found != file.checksum:
        raise ValueError(f"the checksum is {file.checksum}, but that of the data is {found}")
    data = _datas.decode(file.data)
    if data.kind != KIND or data.version != VERSION:
        raise ValueError(f"expected {KIND} of {VERSION}, got {data.kind!r} of {data.version!r}")
    return [_read(claim) for claim in data.claims or ()]


def _written(claim: ClaimState) -> dict[str, Any]:
    return {
        "ClaimUID": claim.uid,
        "ClaimName": claim.name,
        "Namespace": claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": device.pool,
                        "DeviceName": device.device,
                        "ShareID": device.share_id,
                        "RequestNames": list(device.requests) or None,
                        "CDIDeviceIDs": list(device.cdi_ids) or None,
                    }
                    for device in devices
                ]
                or None
            }
            for driver, devices in sorted(claim.drivers.items())
        },
    }


def _read(claim: _Claim) -> ClaimState:
    return ClaimState(
        uid=claim.uid,
        name=claim.name,
        namespace=claim.namespace,
        pods=set(claim.pods or ()),
        drivers={
            driver: tuple(
                PreparedDevice(d.pool, d.device, d.share, tuple(d.requests or ()), tuple(d.cdi or ()))
                for d in state.devices or ()
            )
            for driver, state in (claim.drivers or {}).items()
        },
    )
