"""`dra_manager_state` and `dra_health_state` are the kubelet's, both ways."""

from __future__ import annotations

import json
import zlib

import pytest

from engine.dra import checkpoint
from engine.dra.health import HEALTHY, HealthTable, reported
from engine.dra.table import ClaimState, ClaimTable, PreparedDevice

EMPTY = (
    b'{"Data":"{\\"kind\\":\\"DRACheckpoint\\",\\"apiVersion\\":\\"checkpoint.dra.kubelet.k8s.io/v1\\",'
    b'\\"ClaimInfoStateList\\":[]}","Checksum":2361995144}'
)
"""As a kubelet wrote it (kubernetes/kubernetes#131513)."""

CLAIMS = [
    ClaimState(
        "uid-1",
        "gpu",
        "default",
        {"pod-1", "pod-2"},
        {
            "a.example.com": (
                PreparedDevice("pool", "gpu-0", "share-1", ("r",), ("a.example.com/gpu=0",)),
                PreparedDevice("pool", "<&>"),
            ),
            "b.example.com": (),
        },
    ),
    ClaimState("uid-2", "nic", "other", {"pod-3"}, {"a.example.com": ()}),
]


def test_a_kubelets_file_is_read_and_written_to_the_letter() -> None:
    assert checkpoint.decode(EMPTY) == []
    assert checkpoint.encode([]) == EMPTY


def test_a_written_checkpoint_is_read_again() -> None:
    assert checkpoint.decode(checkpoint.encode(CLAIMS)) == CLAIMS
    data = json.loads(json.loads(checkpoint.encode(CLAIMS))["Data"])
    first = data["ClaimInfoStateList"][0]
    assert first["PodUIDs"] == {"pod-1": {}, "pod-2": {}}
    assert first["DriverState"]["b.example.com"] == {"Devices": None}
    assert first["DriverState"]["a.example.com"]["Devices"][1] == {
        "PoolName": "pool",
        "DeviceName": "<&>",
        "ShareID": None,
        "RequestNames": None,
        "CDIDeviceIDs": None,
    }


def test_a_kubelets_claims_are_taken_over() -> None:
    data = (
        '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{'
        '"ClaimUID":"u","ClaimName":"c","Namespace":"default","PodUIDs":{"p":{}},"DriverState":{"d":{"Devices":'
        '[{"PoolName":"worker","DeviceName":"dev-0","ShareID":null,"RequestNames":["my"],'
        '"CDIDeviceIDs":["d/test=claim"]}]},"empty":{"Devices":null}}}]}'
    )
    text = json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode()
    (claim,) = checkpoint.decode(text)
    assert claim.pods == {"p"}
    assert claim.drivers == {
        "d": (PreparedDevice("worker", "dev-0", None, ("my",), ("d/test=claim",)),),
        "empty": (),
    }
    assert not claim.is_prepared, "this agent has not asked yet"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"Data":"x","Checksum":1}',
        EMPTY.replace(b"2361995144", b"2361995145"),
        EMPTY.replace(b"DRACheckpoint", b"DRACheckpoinT"),
        b'{"Data":"{\\"kind\\":\\"K\\"}","Checksum":%d}' % zlib.crc32(b'{"kind":"K"}'),
        b'{"Data":"[]","Checksum":%d}' % zlib.crc32(b"[]"),
    ],
)
def test_a_damaged_file_is_noticed(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        checkpoint.decode(text)


def test_pods_are_found_by_claim_and_claims_by_pod() -> None:
    table = ClaimTable(checkpoint.decode(checkpoint.encode(CLAIMS)))
    assert sorted(table.pods) == ["pod-1", "pod-2", "pod-3"]
    assert [claim.name for claim in table.of_pod("pod-1")] == ["gpu"]
    assert table.users_of("a.example.com", [("pool", "gpu-0")]) == {"pod-1", "pod-2"}
    assert table.users_of("b.example.com", [("pool", "gpu-0")]) == set()
    assert table.in_use() == {"<any>": 0}
    (gpu,) = table.of_pod("pod-1")
    gpu.prepared = set(gpu.drivers)
    assert table.in_use() == {"a.example.com": 1, "b.example.com": 1, "<any>": 1}
    table.remove(gpu)
    assert table.pods == ["pod-3"]


def test_the_health_of_devices_is_kept() -> None:
    table, again = HealthTable(), HealthTable()
    table.update("d", [reported("pool", "dev", HEALTHY, "fine", 60)], 1000.0)
    written = json.loads(table.encode())
    assert written["d"]["Devices"]["pool/dev"] == {
        "PoolName": "pool",
        "DeviceName": "dev",
        "Health": "Healthy",
        "LastUpdated": "1970-01-01T00:16:40Z",
        "HealthCheckTimeout": 60_000_000_000,
        "Message": "fine",
    }
    again.restore(table.encode())
    assert again.get("d", "pool", "dev", 1059) == table.get("d", "pool", "dev", 1059)
    go = (
        b'{"d":{"Devices":{"pool/dev":{"PoolName":"pool","DeviceName":"dev","Health":"Unhealthy",'
        b'"LastUpdated":"2026-11-24T01:02:03.123456789+01:00","HealthCheckTimeout":0,"Message":""}}}}'
    )
    again.restore(go)
    assert again.get("d", "pool", "dev", 1795478523.2).health == "Unhealthy"
