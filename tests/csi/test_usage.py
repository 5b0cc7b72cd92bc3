"""What is used of volumes, as the summary and the metrics of a node in a cluster tell it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engine.csi.paths import ephemeral_handle
from engine.server.volume_metrics import volume_metrics
from engine.testing.csi_driver import ALL, HANGS, RPC
from tests.cluster_rig import Object
from tests.csi_rig import CLAIMED, INLINE, CsiRig
from tests.node_rig import container
from tests.summaries import summary_of
from tests.waiting import eventually

pytestmark = pytest.mark.root

TOLD = {
    "availableBytes": 70,
    "capacityBytes": 100,
    "usedBytes": 30,
    "inodesFree": 7,
    "inodes": 10,
    "inodesUsed": 3,
}
HEALTHY = (*ALL, RPC.VOLUME_CONDITION)
CLAIM = {"name": "claim", "namespace": "default"}


async def volumes(csi: CsiRig, name: str = "p") -> dict[str, Object]:
    """Return the volumes of a pod in the node's summary by name, without their times."""
    summary = await summary_of(csi.node)
    pod = next(pod for pod in summary["pods"] if pod["podRef"]["name"] == name)
    return {v["name"]: {k: value for k, value in v.items() if k != "time"} for v in pod["volume"]}


async def test_a_driver_reports_the_usage_of_its_volumes(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    one, inline = await csi.run(CLAIMED, "one"), await csi.run(INLINE, "inline")
    assert await volumes(csi, "one") == {"v": {"name": "v", "pvcRef": CLAIM, **TOLD}}
    assert await volumes(csi, "inline") == {"v": {"name": "v", **TOLD}}
    asked = {(request.volume_id, request.volume_path) for request in driver.called("NodeGetVolumeStats")}
    uid = inline["metadata"]["uid"]
    assert asked == {
        ("h1", str(csi.published(one, "pv-claim") / "mount")),
        (ephemeral_handle(uid, "v"), str(csi.published(inline) / "mount")),
    }
    assert len(driver.called("NodeGetVolumeStats")) == 2, "an answer serves all who ask soon after"


async def test_only_the_first_entries_of_a_long_report_are_read(csi: CsiRig) -> None:
    """A message of 4 MiB may hold two million, and each costs the event loop a microsecond."""
    csi.known()
    driver = await csi.driver()
    amounts, inodes = driver.usage
    driver.usage = [inodes] * 64 + [amounts] * 100_000
    await csi.run(INLINE, "inline")
    reported = (await volumes(csi, "inline"))["v"]
    assert reported["inodes"] == 10
    assert reported.get("capacityBytes", 0) == 0


async def test_a_claim_that_two_pods_have_is_one_metric(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    await csi.driver(capabilities=HEALTHY)
    await csi.run(CLAIMED, "one")
    await csi.run(CLAIMED, "two")
    await csi.run(INLINE, "inline")
    text = "".join(volume_metrics(await csi.node.claims_usage()))
    labels = '{namespace="default",persistentvolumeclaim="claim"}'
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        f"kubelet_volume_stats_capacity_bytes{labels} 100",
        f"kubelet_volume_stats_available_bytes{labels} 70",
        f"kubelet_volume_stats_used_bytes{labels} 30",
        f"kubelet_volume_stats_inodes{labels} 10",
        f"kubelet_volume_stats_inodes_free{labels} 7",
        f"kubelet_volume_stats_inodes_used{labels} 3",
        f"kubelet_volume_stats_health_status_abnormal{labels} 0",
    ]


async def test_a_driver_that_cannot_tell_is_not_asked(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver(capabilities=(RPC.STAGE_UNSTAGE_VOLUME,))
    await csi.run(CLAIMED)
    assert await volumes(csi) == {}
    assert await csi.node.claims_usage() == []
    assert driver.called("NodeGetVolumeStats") == []


async def test_an_abnormal_volume_is_reported_once(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver(capabilities=HEALTHY)
    await csi.run(CLAIMED)
    driver.unwell["h1"] = "a disk is gone"
    for _ in range(2):
        assert (await volumes(csi))["v"]["volumeHealthStats"] == {"abnormal": True}
    assert csi.messages("VolumeConditionAbnormal") == ["Volume v: a disk is gone"]
    assert 'abnormal{namespace="default",persistentvolumeclaim="claim"} 1' in "".join(
        volume_metrics(await csi.node.claims_usage())
    )


async def test_a_hanging_driver_delays_no_other_and_is_called_once(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.csi.usage.PATIENCE_SECONDS", 0.05)
    csi.known()
    csi.claim()
    driver = await csi.driver()
    mounts = [{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"}]
    both = [{"name": "v", **CLAIMED}, {"name": "e", "emptyDir": {}}]
    await csi.cluster.run("p", containers=[container(volumeMounts=mounts)], volumes=both)
    await csi.cluster.ready("p")
    driver.faults["NodeGetVolumeStats"] = HANGS
    for _ in range(2):
        assert (await volumes(csi)).keys() == {"e"}
        assert await csi.node.claims_usage() == []
    await eventually(lambda: len(driver.called("NodeGetVolumeStats")) == 1)
    await csi.delete()
    await eventually(csi.is_cleaned_up)


async def test_a_driver_that_fails_is_not_asked_again_at_once(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    await csi.run(CLAIMED)
    driver.faults["NodeGetVolumeStats"] = 13
    for _ in range(2):
        assert await volumes(csi) == {}
    assert len(driver.called("NodeGetVolumeStats")) == 1


async def test_other_volumes_have_a_kubelets_figures(csi: CsiRig, tmp_path: Path) -> None:
    """Walked where the agent makes them, their file system's where they are local; others have none."""
    await csi.cluster.client.create(
        "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "m"}, "data": {"k": "x" * 9000}}, Any
    )
    csi.claim(csi=None, local={"path": str(tmp_path)})
    sources: dict[str, Object] = {
        "disk": {"emptyDir": {}},
        "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        "config": {"configMap": {"name": "m"}},
        "host": {"hostPath": {"path": str(tmp_path)}},
        "local": CLAIMED,
    }
    await csi.cluster.run(
        "p",
        containers=[container(volumeMounts=[{"name": n, "mountPath": f"/{n}"} for n in sources])],
        volumes=[{"name": name, **source} for name, source in sources.items()],
    )
    pod = await csi.cluster.ready("p")
    top = csi.root / "pods" / pod["metadata"]["uid"] / "volumes"
    for name in ("disk", "memory"):
        (top / "kubernetes.io~empty-dir" / name / "f").write_bytes(b"x" * 50_000)
    found = await volumes(csi)
    assert found.keys() == {"disk", "memory", "config", "local"}
    assert 50_000 <= found["disk"]["usedBytes"] < 200_000
    assert found["disk"]["inodesUsed"] == 2
    assert found["memory"]["capacityBytes"] == 1 << 20
    assert 50_000 <= found["memory"]["usedBytes"] < 200_000
    assert 9000 <= found["config"]["usedBytes"] < 100_000
    disk = os.statvfs(tmp_path)
    assert found["local"]["capacityBytes"] == disk.f_blocks * disk.f_frsize
    assert found["local"]["usedBytes"] > 0
    assert found["local"]["pvcRef"] == CLAIM
    summary = await summary_of(csi.node)
    ephemeral = next(p for p in summary["pods"] if p["podRef"]["name"] == "p")["ephemeral-storage"]
    counted = found["disk"]["usedBytes"] + found["config"]["usedBytes"]
    assert counted <= ephemeral["usedBytes"] < counted + 50_000, "memory and claims do not count"
    (claim,) = await csi.node.claims_usage()
    assert claim["pvcRef"] == CLAIM
