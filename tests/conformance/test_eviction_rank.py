"""Eviction order against the kubelet's recorded answers, kernel and twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine._fast.ranking import _eviction_ranking_c, _eviction_ranking_py
from engine.api.documents import as_written
from engine.api.pod import Pod
from engine.tables import EPHEMERAL_STORAGE_ID, MEMORY_ID, PodTable
from tests.conformance.changed import sums_changed

KERNELS = [pytest.param(_eviction_ranking_c, id="kernel"), pytest.param(_eviction_ranking_py, id="twin")]


def disk_usage(stats: dict[str, Any], measure: list[str], resource: str, local: set[str]) -> int:
    field = "inodes_used" if resource == "inodes" else "used_bytes"

    def amount(part: dict[str, Any] | None) -> int:
        return (part or {}).get(field) or 0

    total = 0
    for container in stats.get("containers") or []:
        total += amount(container.get("rootfs")) if "root" in measure else 0
        total += amount(container.get("logs")) if "logs" in measure else 0
    if "localVolumeSource" in measure:
        total += sum(amount(volume) for volume in stats.get("volumes") or [] if volume["name"] in local)
    return total


def local_volumes(pod: Pod) -> set[str]:
    names = set()
    for volume in pod.spec.volumes or []:
        empty_dir = volume.empty_dir is not None and volume.empty_dir.medium in ("", "Default")
        if (
            volume.host_path is not None
            or volume.config_map is not None
            or volume.git_repo is not None
            or empty_dir
        ):
            names.add(volume.name)
    return names


@pytest.mark.parametrize("kernel", KERNELS)
def test_eviction_rank(vectors, kernel, monkeypatch):
    for name in ("order_by_excess", "order_by_count"):
        monkeypatch.setattr(f"engine.tables.eviction.{name}", getattr(kernel, name))
    from engine.tables import eviction_order

    for case in vectors("eviction_rank"):
        pods = [as_written(pod, Pod, "pod") for pod in case["pods"]]
        if sums_changed(pods):
            continue
        table = PodTable.from_pods(pods)
        stats = [case["stats"].get(pod.uid) for pod in pods]
        known = np.array([found is not None for found in stats], np.uint8)
        if case["kind"] == "memory":
            by, amounts = "memory", [(found or {}).get("working_set_bytes") or 0 for found in stats]
        elif case["kind"] == "pid":
            by, amounts = "processes", [(found or {}).get("process_count") or 0 for found in stats]
        else:
            by = case["resource"]
            amounts = [
                disk_usage(found or {}, case["measure"], case["resource"], local_volumes(pod))
                for found, pod in zip(stats, pods, strict=True)
            ]
        order = eviction_order(table.columns, table.rows(), by, np.array(amounts, np.int64), known)
        assert [table.uid(row) for row in order] == case["order"], case


def test_fractions_of_a_byte_count():
    """Requests of 1500m and 2 bytes both round up to 2, but usage of 2 is above the first only."""
    pods = [
        as_written(
            {
                "metadata": {"uid": uid, "name": uid},
                "spec": {"containers": [{"resources": {"requests": {"memory": memory}}}]},
            },
            Pod,
            uid,
        )
        for uid, memory in (("whole", "2"), ("fraction", "1500m"))
    ]
    table = PodTable.from_pods(pods)
    assert table.columns.ranking[MEMORY_ID].tolist() == [2, 2]
    assert table.columns.fractions == {1: (500_000_000, 0)}
    assert EPHEMERAL_STORAGE_ID == 2
    usage, known = np.array([2, 2]), np.ones(2, np.uint8)
    request, fraction, priority = (
        np.array([2, 2]),
        np.array([0, 500_000_000], np.int32),
        np.zeros(2, np.int32),
    )
    for kernel in (_eviction_ranking_c, _eviction_ranking_py):
        assert kernel.order_by_excess(usage, known, request, fraction, priority).tolist() == [1, 0]
