"""The node on a real containerd and this machine's cgroups: names, values, order, volumes, clean-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.api.status import ContainerStatus
from engine.server.resource_metrics import resource_metrics
from engine.testing.containerd import Containerd
from tests.node_rig import Rig
from tests.summaries import summary_of
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root]


def cgroup_file(rig: Rig, controller: str, file: str, *below: str) -> str:
    """Return the text of a cgroup file of this node, on this machine's v1 hierarchies."""
    root = Path("/sys/fs/cgroup") / controller / rig.config.cgroup_root.lstrip("/") / "kubepods"
    return root.joinpath(*below, file).read_text().strip()


def only_container(containerd: Containerd, rig: Rig, name: str) -> dict[str, Any]:
    uid = rig.pod(name).uid
    listed = containerd.ctr("-n", "k8s.io", "containers", "ls", "-q").split()
    for identity in listed:
        info = json.loads(containerd.ctr("-n", "k8s.io", "containers", "info", identity))
        labels = info["Labels"]
        if labels.get("io.kubernetes.pod.uid") == uid and labels.get("io.cri-containerd.kind") == "container":
            return info
    raise AssertionError(f"containerd has no container of {name}")


async def test_the_three_classes_run_with_their_names_and_values(rig: Rig, containerd: Containerd):
    await rig.start()
    rig.write(
        "guaranteed", {"containers": [container(resources={"limits": {"cpu": "250m", "memory": "64Mi"}})]}
    )
    rig.write(
        "burstable",
        {"containers": [container(resources={"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}})]},
    )
    rig.write("besteffort", {"containers": [container()]})
    names = ("guaranteed", "burstable", "besteffort")
    await eventually(lambda: all(rig.phase(name) == "Running" for name in names))
    info = only_container(containerd, rig, "guaranteed")
    assert info["Labels"]["io.kubernetes.pod.name"] == "guaranteed-n1"
    assert info["Labels"]["io.kubernetes.container.name"] == "c"
    pod = f"pod{rig.pod('guaranteed').uid}"
    assert cgroup_file(rig, "cpu", "cpu.shares", pod) == "256"
    assert cgroup_file(rig, "cpu", "cpu.cfs_quota_us", pod) == "25000"
    assert cgroup_file(rig, "memory", "memory.limit_in_bytes", pod) == str(64 << 20)
    assert cgroup_file(rig, "cpu", "cpu.shares", pod, info["ID"]) == "256"
    assert cgroup_file(rig, "memory", "memory.limit_in_bytes", pod, info["ID"]) == str(64 << 20)
    assert cgroup_file(rig, "cpu", "cpu.shares", "burstable") == "102"
    pod = f"pod{rig.pod('burstable').uid}"
    assert cgroup_file(rig, "cpu", "cpu.shares", "burstable", pod) == "102"
    assert cgroup_file(rig, "cpu", "cpu.cfs_quota_us", "burstable", pod) == "-1"
    pod = f"pod{rig.pod('besteffort').uid}"
    assert cgroup_file(rig, "cpu", "cpu.shares", "besteffort", pod) == "2"
    assert [rig.pod(n).status.qos_class for n in names] == ["Guaranteed", "Burstable", "BestEffort"]


async def test_the_summary_shows_the_usage_of_pods(rig: Rig):
    await rig.start()
    rig.write("used", {"containers": [container()]})
    await eventually(lambda: rig.phase("used") == "Running")
    summary = await summary_of(rig.node)
    assert summary["node"]["nodeName"] == "n1"
    assert 0 < summary["node"]["fs"]["availableBytes"] < summary["node"]["fs"]["capacityBytes"]
    used = next(p for p in summary["pods"] if p["podRef"]["name"] == "used-n1")
    assert used["podRef"]["uid"] == rig.pod("used").uid
    assert used["containers"][0]["name"] == "c"
    assert used["containers"][0]["memory"]["workingSetBytes"] > 0


async def test_a_finished_pod_is_left_out_of_the_summary_and_takes_nothing_from_it(rig: Rig):
    await rig.start()
    rig.write("used", {"containers": [container()]})
    rig.write("done", {"containers": [container(script="true")], "restartPolicy": "Never"})
    half = [container(), container("gone", script="true")]
    rig.write("half", {"containers": half, "restartPolicy": "OnFailure"})
    await eventually(lambda: rig.phase("used") == "Running" and rig.phase("done") == "Succeeded")
    await eventually(lambda: any(s.state.terminated for s in rig.pod("half").status.container_statuses))
    summary = await summary_of(rig.node)
    shown = {pod["podRef"]["name"]: pod for pod in summary["pods"]}
    assert shown.keys() >= {"used-n1", "half-n1"}
    for name in ("used-n1", "half-n1"):
        running = next(c for c in shown[name]["containers"] if c["name"] == "c")
        assert running["memory"]["workingSetBytes"] > 0
    usage = await rig.node.usage()
    page = resource_metrics(usage, await rig.node.runtime_use(usage))
    metrics = b"".join(page).decode()
    assert 'container_memory_working_set_bytes{container="c",namespace="default",pod="half-n1"}' in metrics


async def test_init_sidecar_volumes_environment_and_last_words(rig: Rig, tmp_path: Path):
    await rig.start()
    shared = {"name": "shared", "mountPath": "/shared"}
    rig.write(
        "whole",
        {
            "volumes": [
                {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": str(tmp_path / "host"), "type": "DirectoryOrCreate"}},
                {
                    "name": "facts",
                    "projected": {
                        "sources": [
                            {
                                "downwardAPI": {
                                    "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
                                }
                            }
                        ]
                    },
                },
            ],
            "initContainers": [
                container("init", "echo from-init > /shared/word", volumeMounts=[shared]),
                container("side", restartPolicy="Always"),
            ],
            "containers": [
                container(
                    "main",
                    'echo "$IP $(cat /shared/word) $(cat /facts/name) $(hostname)" > /host/out; ' + WAIT,
                    env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    volumeMounts=[
                        shared,
                        {"name": "host", "mountPath": "/host"},
                        {"name": "facts", "mountPath": "/facts"},
                    ],
                ),
                container("dies", "echo last words > /dev/termination-log; exit 7"),
            ],
        },
    )
    out = tmp_path / "host" / "out"
    await eventually(lambda: out.exists() and out.read_text())
    ip = rig.pod("whole").status.pod_ip
    assert out.read_text() == f"{ip} from-init whole-n1 whole-n1\n"

    def last_words() -> str:
        status = next(s for s in rig.pod("whole").status.container_statuses if s.name == "dies")
        ended = status.last_state.terminated or status.state.terminated
        return ended.message if ended is not None else ""

    await eventually(lambda: last_words() == "last words\n")
    mounted = Path("/proc/self/mountinfo").read_text()
    assert f"{rig.root}/pods/" in mounted
    (rig.manifests / "whole.yaml").unlink()
    await eventually(lambda: not rig.node.pods())
    assert f"{rig.root}/pods/" not in Path("/proc/self/mountinfo").read_text()


async def test_hooks_run_and_grace_is_kept(rig: Rig, tmp_path: Path):
    await rig.start()
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    rig.write(
        "hooked",
        {
            "terminationGracePeriodSeconds": 10,
            "volumes": [{"name": "hooks", "hostPath": {"path": str(hooks)}}],
            "containers": [
                container(
                    script="trap 'echo term >> /hooks/log; exit 0' TERM; while true; do sleep 0.1; done",
                    volumeMounts=[{"name": "hooks", "mountPath": "/hooks"}],
                    lifecycle={
                        "postStart": {"exec": {"command": ["sh", "-c", "echo started >> /hooks/log"]}},
                        "preStop": {"exec": {"command": ["sh", "-c", "echo stopping >> /hooks/log"]}},
                    },
                )
            ],
        },
    )
    await eventually(lambda: rig.phase("hooked") == "Running")
    (rig.manifests / "hooked.yaml").unlink()
    await eventually(lambda: not rig.node.pods())
    assert (hooks / "log").read_text().split() == ["started", "stopping", "term"]


async def test_a_missing_image_is_reported_and_the_rest_runs(rig: Rig):
    await rig.start()
    rig.write("missing", {"containers": [container(image="example.com/nothing:1")]})
    rig.write("fine", {"containers": [container()]})
    await eventually(lambda: rig.phase("fine") == "Running")

    def waiting() -> str:
        status = rig.pod("missing").status.container_statuses[0]
        return status.state.waiting.reason if status.state.waiting else ""

    await eventually(lambda: waiting() == "ErrImageNeverPull")


async def test_a_live_container_is_resized_without_a_restart(rig: Rig, containerd: Containerd):
    def amounts(cpu: str, memory: str) -> dict[str, Any]:
        return {"containers": [container(resources={"limits": {"cpu": cpu, "memory": memory}})]}

    await rig.start()
    rig.write("sized", amounts("100m", "64Mi"))
    await eventually(lambda: rig.phase("sized") == "Running")
    identity, pod = only_container(containerd, rig, "sized")["ID"], f"pod{rig.pod('sized').uid}"
    for cpu, memory, shares, limit in (("200m", "128Mi", 204, 128 << 20), ("50m", "32Mi", 51, 32 << 20)):
        rig.write("sized", amounts(cpu, memory))

        def has_its_values(shares: int = shares, limit: int = limit) -> bool:
            levels = [(pod,), (pod, identity)]
            return all(
                cgroup_file(rig, "cpu", "cpu.shares", *level) == str(shares)
                and cgroup_file(rig, "memory", "memory.limit_in_bytes", *level) == str(limit)
                for level in levels
            )

        await eventually(has_its_values)

    def status() -> ContainerStatus:
        return rig.pod("sized").status.container_statuses[0]

    await eventually(lambda: str(status().resources.limits["cpu"]) == "50m")
    assert status().restart_count == 0
    assert only_container(containerd, rig, "sized")["ID"] == identity
    rig.write("sized", amounts("1000", "32Mi"))

    def conditions() -> dict[str, str]:
        return {c.type: c.reason for c in rig.pod("sized").status.conditions}

    await eventually(lambda: conditions().get("PodResizePending") == "Infeasible")
    assert cgroup_file(rig, "cpu", "cpu.shares", pod) == "51"


async def test_nothing_survives_the_node(rig: Rig, containerd: Containerd):
    await rig.start()
    rig.write("one", {"containers": [container()]})
    await eventually(lambda: rig.phase("one") == "Running")
    await rig.node.remove_all_pods()
    assert containerd.ctr("-n", "k8s.io", "containers", "ls", "-q").split() == []
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{rig.config.cgroup_root.lstrip('/')}/kubepods"))
    assert not list((rig.root / "pods").iterdir())


async def test_an_endless_hook_runs_until_its_container_ends(rig: Rig, tmp_path: Path):
    """It has the whole time that the container has, also what follows the grace period."""
    hooks = tmp_path / "hooks"
    hooks.mkdir(mode=0o777)
    hook = {"exec": {"command": ["sh", "-c", "while true; do echo hook >> /hooks/lines; sleep 0.05; done"]}}
    main = container(
        script="trap 'echo terminated >> /hooks/lines' TERM; while true; do sleep 0.05; done",
        lifecycle={"preStop": hook},
        volumeMounts=[{"name": "hooks", "mountPath": "/hooks"}],
    )
    await rig.start()
    manifest = rig.write(
        "hooked",
        {"containers": [main], "volumes": [{"name": "hooks", "hostPath": {"path": str(hooks)}}]},
    )
    await eventually(lambda: rig.phase("hooked") == "Running")
    manifest.unlink()
    await eventually(lambda: not rig.node.pods())
    lines = (hooks / "lines").read_text().split()
    assert set(lines) == {"hook", "terminated"}
    assert lines[-1] == "hook"
    assert "FailedPreStopHook" in rig.reasons()
