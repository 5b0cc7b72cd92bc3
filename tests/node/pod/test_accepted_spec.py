"""What was accepted is kept beside the pod: what runs is known where its source is gone, or silent."""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.api.documents import parse_pods
from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.node.pod.record_names import ACCEPTED, key
from engine.node.pod.records import AcceptedSpecs
from engine.node.running_node import RECORDS
from engine.node.sources.static_pods import static_pod
from engine.runtime.hollow import HollowRuntime
from tests import records
from tests.devices.device_rig import DeviceRig
from tests.node.test_known_before_admission import KINDS, LARGE, MOST_CPUS
from tests.node_rig import container
from tests.waiting import eventually

REFUSED = {"limnoreq", "q25", "q26", "vols"}
MANIFESTS = [
    manifest
    for line in (Path(__file__).parents[1] / "data/kubelet_uids.jsonl").read_text().splitlines()
    if (manifest := json.loads(line)["manifest"])["metadata"]["name"] not in REFUSED
]
"""Of many kinds; those that a node accepts."""
CLUSTER = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "away", "cluster": {"server": "https://127.0.0.1:9"}}],
    "users": [{"name": "n1", "user": {"token": "t"}}],
    "contexts": [{"name": "away", "context": {"cluster": "away", "user": "n1"}}],
    "current-context": "away",
}


class Stubborn(DeviceRig):
    """Run a node whose runtime refuses to stop containers while `refusing` is set."""

    def __init__(self, directory: Path, runtime: HollowRuntime, **config: Any) -> None:
        super().__init__(directory, runtime, **config)
        self.refusing = False
        self.refused = 0
        stop = runtime.backend.stop_container

        async def perhaps(stopped: Any, grace: float) -> None:
            if self.refusing:
                self.refused += 1
                raise Refused("it does not let go", subject=stopped.id)
            await stop(stopped, grace)

        runtime.backend.stop_container = perhaps  # type: ignore[method-assign]

    def runs(self) -> list[str]:
        """Return the pods with running containers, as the runtime lists them."""
        records = self.runtime.service.records.containers.values()
        return sorted(c.sandbox.config.metadata.name for c in records if c.state == 1)

    async def restart_without(self, name: str) -> None:
        """Stop the agent, remove a pod's manifest, and let the runtime refuse to stop its containers from
        then on."""
        await self.stop()
        (self.manifests / f"{name}.yaml").unlink()
        self.refusing = True

    async def refuses_again(self) -> None:
        before = self.refused
        await eventually(lambda: self.refused > before + 1)


@pytest.fixture
async def rig() -> AsyncIterator[Stubborn]:
    with tempfile.TemporaryDirectory(prefix="ka-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = Stubborn(Path(short), runtime)
            await rig.start()
            await rig.plugin(2)
            yield rig
            rig.refusing = False
            await rig.close()


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_a_pod_without_a_source_holds_what_it_has_until_it_has_stopped(rig, spec, reason):
    rig.write("old", spec)
    await eventually(lambda: rig.running("old"))
    await rig.restart_without("old")
    rig.write("new", spec)
    rig.write("other", {"containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.allocatable() == 2)
    await eventually(lambda: rig.running("other"))
    await rig.refuses_again()
    assert rig.runs() == ["old-n1", "other-n1"]
    rig.refusing = False
    await eventually(lambda: rig.running("new"))
    assert rig.runs() == ["new-n1", "other-n1"]
    assert reason not in rig.reasons()


@pytest.mark.parametrize("content", [b"", b"{", None], ids=["empty", "strange", "damaged"])
async def test_unaccounted_resources_are_waited_for_however_often_stopping_fails(rig, content):
    rig.write("old", LARGE)
    await eventually(lambda: rig.running("old"))
    uid = rig.runtime_uid("old")
    await rig.restart_without("old")
    if content is None:
        records.damage(rig.root, uid, ACCEPTED)
    else:
        records.replace(rig.root, uid, ACCEPTED, content)
    rig.write("new", LARGE)
    await rig.start()
    await rig.refuses_again()
    assert rig.runs() == ["old-n1"]
    rig.refusing = False
    await eventually(lambda: rig.running("new"))
    assert rig.runs() == ["new-n1"]


async def test_a_resize_while_no_agent_was_there_is_decided_like_any_other(rig):
    small = {"containers": [container(resources={"requests": {"cpu": "100m"}})]}
    rig.write("grows", small)
    rig.write("stays", LARGE)
    await eventually(lambda: rig.running("grows", "stays"))
    await rig.stop()
    rig.write("grows", LARGE)
    await rig.start()

    def deferred() -> bool:
        conditions = rig.pod("grows").status.conditions or []
        return any(c.type == "PodResizePending" and c.reason == "Deferred" for c in conditions)

    await eventually(deferred)
    assert str(rig.pod("grows").spec.containers[0].requests["cpu"]) == "100m"
    await rig.restart()
    await eventually(deferred)
    (rig.manifests / "stays.yaml").unlink()
    await eventually(lambda: str(rig.pod("grows").spec.containers[0].requests["cpu"]) == MOST_CPUS)
    assert rig.runtime.counts()["StartContainer"]["calls"] == 2
    await rig.restart()
    assert str(rig.pod("grows").spec.containers[0].requests["cpu"]) == MOST_CPUS


async def test_running_pods_count_before_their_source_is_read(rig, tmp_path):
    """The node now belongs to a cluster with an unreachable API server: the first pod may be one of the
    cluster's.
    """
    rig.write("m", LARGE)
    await eventually(lambda: rig.running("m"))
    await rig.restart_without("m")
    rig.write("a", LARGE)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(CLUSTER))
    rig.node = Node(
        config=rig.config,
        runtime_endpoint=str(rig.endpoint),
        root=rig.root,
        name="n1",
        options=NodeOptions(kubeconfig=kubeconfig),
    )
    await rig.node.start()
    await eventually(lambda: rig.phase("a") == "Failed")
    assert rig.runs() == ["m-n1"]


async def test_it_is_kept_for_the_agent_alone_and_goes_with_the_pod(rig):
    path = rig.write("a", {"containers": [container(env=[{"name": "PASSWORD", "value": "x"}])]})
    await eventually(lambda: rig.running("a"))
    uid, kept = rig.runtime_uid("a"), rig.root / RECORDS
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert records.recorded(rig.root, uid, ACCEPTED) is not None
    path.unlink()
    await eventually(lambda: not rig.node.pods())
    assert not (rig.root / "pods" / uid).exists()
    await rig.restart()
    await rig.stop()
    with records.store_at(rig.root) as store:
        assert store.get(key(uid, ACCEPTED)) is None


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["metadata"]["name"])
async def test_it_is_read_back_as_it_was(tmp_path, manifest):
    """An unchanged manifest must not appear to be edited."""
    (parsed,), _ = parse_pods(json.dumps(manifest).encode(), "m.json")
    pod = static_pod(parsed, node_name="n1", origin="m.json", seen_at=1e9)
    pod.status.phase = "Running"
    with records.store_at(tmp_path) as store:
        store.start()
        await AcceptedSpecs(store).write(pod)
        await store.stop()
    with records.store_at(tmp_path) as store:
        read = AcceptedSpecs(store).read(pod.uid)
    assert read == Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus())
