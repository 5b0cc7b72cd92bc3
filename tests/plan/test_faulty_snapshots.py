"""Whatever is wrong with a snapshot, reading it and asking about it ends in an answer or one clear error."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from engine.api.errors import InvalidInput, KubengineError
from engine.plan import FaultLog, Snapshot, SnapshotFile, load_snapshot, synthesize, write_snapshot
from engine.plan.cluster import Cluster, NodeSelection, ask
from engine.plan.questions import QUESTIONS
from engine.plan.snapshot.columnar_file import TABLES
from engine.plan.snapshot.lazy_table import whole as whole_table

AMOUNTS = {"cpu": "4", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2"}
FILESYSTEM = {
    "capacityBytes": 100,
    "availableBytes": 50,
    "usedBytes": 3,
    "inodes": 10,
    "inodesFree": 5,
    "inodesUsed": 1,
}
CONTAINER = {
    "name": "c",
    "image": "a:1",
    "resources": {
        "requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "2Gi"},
    },
    "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
}
DOCUMENTS: dict[str, Any] = {
    "node": {
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"zone": "a"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"unschedulable": False, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {
            "capacity": AMOUNTS,
            "allocatable": AMOUNTS,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "operatingSystem": "linux", "architecture": "amd64"},
            "images": [{"names": ["a:1", "b@sha256:1"], "sizeBytes": 1000}],
        },
    },
    "pod": {
        "kind": "Pod",
        "metadata": {
            "name": "p1",
            "namespace": "shop",
            "uid": "u1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "x"},
            "annotations": {"kubernetes.io/config.source": "file"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "x", "controller": True}],
        },
        "spec": {
            "nodeName": "n1",
            "priority": 5,
            "containers": [CONTAINER],
            "initContainers": [CONTAINER | {"name": "i", "restartPolicy": "Always"}],
            "overhead": {"cpu": "10m"},
            "resources": {"requests": {"cpu": "2"}},
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    },
    "budget": {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "shop"},
        "spec": {
            "minAvailable": "50%",
            "maxUnavailable": 1,
            "selector": {
                "matchLabels": {"app": "x"},
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}],
            },
        },
    },
    "class": {
        "kind": "PriorityClass",
        "metadata": {"name": "hi"},
        "value": 1000,
        "preemptionPolicy": "Never",
    },
    "summary": {
        "node": {
            "nodeName": "n1",
            "memory": {"availableBytes": 100, "workingSetBytes": 50},
            "fs": FILESYSTEM,
            "runtime": {"imageFs": FILESYSTEM, "containerFs": FILESYSTEM},
            "rlimit": {"maxpid": 100, "curproc": 5},
            "systemContainers": [{"name": "pods", "memory": {"availableBytes": 1, "workingSetBytes": 2}}],
        },
        "pods": [
            {
                "podRef": {"name": "p1", "namespace": "shop", "uid": "u1"},
                "containers": [{"rootfs": FILESYSTEM}],
                "memory": {"workingSetBytes": 5},
                "ephemeral-storage": FILESYSTEM,
                "process_stats": {"process_count": 3},
            }
        ],
    },
    "configuration": {
        "kubeletconfig": {
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
            "evictionSoft": {"memory.available": "200Mi"},
            "evictionSoftGracePeriod": {"memory.available": "1m"},
            "imageGCHighThresholdPercent": 85,
            "imageMinimumGCAge": "2m0s",
            "systemReserved": {"cpu": "1"},
            "cpuCFSQuotaPeriod": "100ms",
        }
    },
    "images": {
        "images": [
            {
                "id": "sha256:1",
                "repoTags": ["a:1"],
                "repoDigests": ["a@sha256:1"],
                "size": "1000",
                "pinned": False,
            }
        ]
    },
    "containers": {
        "containers": [{"image": {"image": "a:1"}, "imageRef": "sha256:1", "imageId": "sha256:1"}]
    },
    "checkpoint": {
        "Data": {
            "PodDeviceEntries": [
                {
                    "PodUID": "u1",
                    "ContainerName": "c",
                    "ResourceName": "nvidia.com/gpu",
                    "DeviceIDs": {"0": ["g0"], "-1": ["g1"]},
                }
            ],
            "RegisteredDevices": {"nvidia.com/gpu": ["g0", "g1", "g2"]},
        },
        "Checksum": 12,
    },
    "held devices": {
        "pod_resources": [
            {
                "name": "p1",
                "namespace": "shop",
                "containers": [
                    {
                        "name": "c",
                        "devices": [
                            {
                                "resource_name": "nvidia.com/gpu",
                                "device_ids": ["g0"],
                                "topology": {"nodes": [{"ID": "1"}]},
                            }
                        ],
                    }
                ],
            }
        ]
    },
}
VALUES: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308, "", "x", "-1", "²", "99", "1e99999",
    "9" * 5000, "1Ei", "\0", "\ud800", [], [None], [[]], [1], ["x"], {}, {"x": None}, {"": ""}, {"x": {}},
    "2026-99-99T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", "100%", "-5%", "NaN",
]  # fmt: skip
SPLICED = ["NaN", "Infinity", "1e999", "{", "[", "]", '"', "tru", '{"a":1,"a":2}', "\xff"]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("preempt", {"critical": True, "requests": {"cpu": "4", "memory": "14Gi"}}),
    (
        "admit",
        {"requests": {"cpu": "1"}, "tolerations": [{"operator": "Exists"}], "node_selector": {"zone": "a"}},
    ),
    ("evict", {"resource": "memory", "use": "90%"}),
    ("evict", {"resource": "disk"}),
    ("image-gc", {}),
    ("cgroups", {"detail": ["pods", "containers", "lint"]}),
    ("devices", {"resource": "nvidia.com/gpu"}),
    ("drain", {"nodes": ["*1"]}),
    ("pending", {}),
]


def steps(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of a document."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*at, key)
        yield from steps(child, (*at, key))


def mutated(chance: random.Random, document: Any) -> bytes:
    """Remove, rename, multiply or replace one to three parts of a document, and encode it.

    Sometimes the text is truncated or has garbage in it.
    """
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        *above, last = chance.choice(list(steps(document)) or [("x",)])
        holder = document
        for step in above:
            holder = holder[step]
        if last not in holder and isinstance(holder, dict):
            continue
        match chance.randrange(6):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[f"{last}x"] = holder.pop(last)
            case 2 if isinstance(holder[last], list):
                holder[last] = holder[last] * chance.choice([0, 2, 70])
            case _:
                holder[last] = chance.choice(VALUES)
    text = json.dumps(document)
    at = chance.randrange(len(text) + 1)
    match chance.randrange(20):
        case 0:
            text = text[:at]
        case 1:
            text = text[:at] + chance.choice(SPLICED) + text[at:]
    return text.encode("latin-1")


def read(path: Path, faults: FaultLog | None = None) -> Snapshot | str:
    """Return the snapshot, or the message of the one clear error."""
    try:
        return load_snapshot([str(path)], faults=faults)
    except InvalidInput as error:
        return str(error)


def all_read(snapshot: Snapshot) -> str:
    """Read every column; return the message of the one clear error, or "" if there is none."""
    try:
        for table in TABLES:
            whole_table(getattr(snapshot, table))
    except InvalidInput as error:
        return str(error)
    return ""


def answered(snapshot: Snapshot) -> None:
    """Check that every question has an answer or ends with one clear error."""
    for name, parameters in ASKED:
        with suppress(KubengineError):
            ask(Cluster(snapshot), name, msgspec.convert(parameters, QUESTIONS[name].parameters))
    with suppress(InvalidInput):
        NodeSelection(selector="zone=a").of(snapshot)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_spoilt_document_is_a_fault_that_names_it(kind: str, tmp_path: Path) -> None:
    """Hundreds of spoilt documents of each kind between whole ones, in files of thirty."""
    chance = random.Random(kind)
    for _ in range(5):
        spoilt = [mutated(chance, DOCUMENTS[kind]) for _ in range(30)]
        whole = [json.dumps(DOCUMENTS[name]).encode() for name in ("node", "pod", "budget") if name != kind]
        path = tmp_path / "n1.json"
        faults = FaultLog()
        for part in (spoilt[:1], spoilt):
            path.write_bytes(b"\n".join([*whole, *part]))
            found = read(path, faults)
            if isinstance(found, Snapshot):
                answered(found)
            else:
                assert str(path) in found
        assert all(fault.origin or fault.subject for fault in faults.kept)


def spoilt_columns(column: pa.ChunkedArray) -> Iterator[tuple[str, pa.Array]]:
    """Yield the column with each fault that a tool could write, after the fault's name."""
    rows = len(column)
    kind = column.type
    yield "missing values", pa.nulls(rows, kind)
    yield "another type", pa.array([[1]] * rows)
    yield "text", pa.array(["x"] * rows)
    yield "numbers", pa.array([2**62 + 5] * rows)
    if pa.types.is_integer(kind):
        highest = 2**kind.bit_width - 1 if "u" in str(kind) else 2 ** (kind.bit_width - 1) - 1
        yield "the highest", pa.array([highest] * rows, kind)
        yield "the lowest", pa.array([0 if "u" in str(kind) else -highest - 1] * rows, kind)
        yield "reversed", pa.array(column.to_pylist()[::-1], kind)
    elif pa.types.is_floating(kind):
        for value in ("nan", "inf", "-inf", "1e300"):
            yield value, pa.array([float(value)] * rows, kind)
    elif not pa.types.is_boolean(kind):
        for text in ("", "{", "[]", '{"a": 1}', '{"containers": 5}', "-1", "99", "4096%", "\0"):
            yield (
                repr(text),
                pa.array([text] * rows, pa.string()).cast(
                    pa.string() if pa.types.is_dictionary(kind) else kind
                ),
            )


@pytest.fixture(scope="module")
def whole() -> Snapshot:
    return synthesize(3, 4, seed=3)


@pytest.mark.parametrize("table", [*TABLES, "nodes as a file has them"])
def test_a_spoilt_table_is_one_error_that_names_file_and_column(
    table: str, whole: Snapshot, tmp_path: Path
) -> None:
    path = tmp_path / "spoilt.kes"
    if table not in TABLES:
        write_snapshot(whole, path)
        whole, table = replace(whole, nodes=whole_table(SnapshotFile(path).load().nodes)), "nodes"
        assert "taints" in whole.nodes.column_names
    content = getattr(whole, table)
    spoilt = [("cut", content.slice(0, max(content.num_rows - 1, 0)))]
    spoilt += [("doubled", pa.concat_tables([content, content]))]
    one_of_each = {name.partition("/")[0]: name for name in content.column_names}
    for name in one_of_each.values():
        at = content.column_names.index(name)
        spoilt.append((f"{name} dropped", content.remove_column(at)))
        for how, column in spoilt_columns(content[name]):
            spoilt.append((f"{name}: {how}", content.set_column(at, name, column)))
    for how, instead in spoilt:
        try:
            write_snapshot(replace(whole, **{table: instead}), path)
        except (KeyError, TypeError, ValueError, RuntimeWarning, pa.ArrowException):
            continue  # not even writable
        found = read(path)
        if isinstance(found, Snapshot):
            answered(found)
            found = all_read(found)
        assert not found or str(path) in found, how


def test_a_written_file_is_read_again(whole: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "whole.kes"
    write_snapshot(whole, path)
    assert whole_table(SnapshotFile(path).load().pods).equals(whole.pods)


def test_a_file_with_a_spoilt_byte_is_one_error_or_is_read(whole: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "spoilt.kes"
    write_snapshot(whole, path)
    data = path.read_bytes()
    chance = random.Random(1)
    for _ in range(200):
        spoilt = bytearray(data)
        if chance.random() < 0.2:
            del spoilt[chance.randrange(len(data)) :]
        else:
            spoilt[
                chance.choice([chance.randrange(400), chance.randrange(len(data)), -chance.randrange(1, 600)])
            ] = chance.randrange(256)
        path.write_bytes(spoilt)
        found = read(path)
        if isinstance(found, Snapshot):
            found = all_read(found)
        assert not found or str(path) in found
