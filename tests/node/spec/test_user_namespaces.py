"""Pods with users of their own: each a range, kept; refused where the runtime can't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Pod, PodSpec
from engine.node.runtime_view.runtime_health import HandlerFeatures, RuntimeFeatures
from engine.node.spec.user_namespaces import UserNamespaceAllocator
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig, container
from tests.waiting import eventually

CAN = RuntimeFeatures(handlers={"": HandlerFeatures(user_namespaces=True), "old": HandlerFeatures()})


def pod(uid: str, host_users: bool | None = False) -> Pod:
    made = Pod(spec=PodSpec(host_users=host_users))
    made.metadata.uid = uid
    return made


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    for uid in ("a", "b", "c"):
        (tmp_path / uid).mkdir()
    return tmp_path


def first(users: UserNamespaceAllocator, uid: str) -> int:
    found = users.of(pod(uid), "", CAN)
    assert found is not None
    assert found.mode == cri.POD
    assert found.uids == found.gids
    assert [(m.container_id, m.length) for m in found.uids] == [(0, 65536)]
    return found.uids[0].host_id


def test_each_pod_has_a_range_of_its_own_and_keeps_it(pods: Path):
    users = UserNamespaceAllocator(pods)
    assert [first(users, uid) for uid in ("a", "b", "a")] == [65536, 131072, 65536]
    assert first(UserNamespaceAllocator(pods), "b") == 131072
    (pods / "a" / "userns").unlink()
    assert first(users, "c") == 65536
    kept = json.loads((pods / "c" / "userns").read_text())
    mapping = {"hostId": 65536, "containerId": 0, "length": 65536}
    assert kept == {"uidMappings": [mapping], "gidMappings": [mapping]}


@pytest.mark.parametrize("host_users", [None, True])
def test_other_pods_use_the_hosts(pods: Path, host_users: bool | None):
    assert UserNamespaceAllocator(pods).of(pod("a", host_users), "", RuntimeFeatures()) is None


@pytest.mark.parametrize(
    ("handler", "features", "words"),
    [
        ("", RuntimeFeatures(), "runtime does not support user namespaces"),
        ("old", CAN, 'RuntimeClass handler "old" does not support user namespaces'),
        ("new", CAN, 'namespaces: the handler "new" is not known'),
    ],
)
def test_an_unknown_handler_is_named(pods: Path, handler: str, features: RuntimeFeatures, words: str):
    with pytest.raises(Refused, match="can't set") as refused:
        UserNamespaceAllocator(pods).of(pod("a"), handler, features)
    assert str(refused.value).endswith(words)
    assert not (pods / "a" / "userns").exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"uidMappings":[],"gidMappings":[]}',
        '{"uidMappings":[{"hostId":1,"containerId":0,"length":65536}],'
        '"gidMappings":[{"hostId":1,"containerId":0,"length":65536}]}',
    ],
)
def test_an_invalid_file_is_named_and_set_aside_and_delays_no_pod(
    pods: Path, text: str, caplog: pytest.LogCaptureFixture
):
    (pods / "a" / "userns").write_text(text)
    users = UserNamespaceAllocator(pods)
    assert users.of(pod("b"), "", CAN) is not None
    assert str(pods / "a" / "userns") in caplog.text
    assert list((pods / "a").glob("userns.bad-*"))
    assert users.of(pod("a"), "", CAN) != users.of(pod("b"), "", CAN)


def test_ids_come_in_whole_ranges(pods: Path):
    with pytest.raises(InvalidInput, match="idsPerPod"):
        UserNamespaceAllocator(pods, 1000)


def test_ranges_are_parts_of_the_ids_that_were_given(pods: Path):
    users = UserNamespaceAllocator(pods)
    assert first(users, "a") == 65536
    users.use_ids(range(1 << 20, (1 << 20) + 2 * 65536), 2)
    assert [first(users, uid) for uid in ("a", "b", "c")] == [65536, 1 << 20, (1 << 20) + 65536]
    (pods / "d").mkdir()
    with pytest.raises(Refused, match="could not find an empty slot"):
        users.of(pod("d"), "", CAN)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (range(70000, 70000 + 65536), "expected whole ranges of 65536 ids, got 65536 from 70000"),
        (range(65536, 65536 + 70000), "expected whole ranges of 65536 ids, got 70000 from 65536"),
        (range(65536), "the first id must be at least 65536, got 0"),
        (range(65536, 3 * 65536), "expected 65536 ids for each of 3 pods, got 131072"),
    ],
)
def test_ids_that_cannot_be_given_on_are_refused(pods: Path, ids: range, words: str):
    with pytest.raises(InvalidInput, match=words):
        UserNamespaceAllocator(pods).use_ids(ids, 3)


async def test_a_runtime_without_user_namespaces_makes_no_sandbox_for_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RuntimeFeatures, "of", lambda _: RuntimeFeatures())
    await rig.start()
    rig.write("own", {"containers": [container()], "hostUsers": False})
    await eventually(lambda: "FailedCreatePodSandBox" in rig.reasons())
    said = [e.message for e in rig.node.recorder if e.reason == "FailedCreatePodSandBox"]
    assert "runtime does not support user namespaces" in said[0]
    assert rig.phase("own") == "Pending"


async def test_the_runtime_receives_the_id_range_and_maps_the_mounts(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RuntimeFeatures, "of", lambda _: CAN)
    await rig.start()
    volume = {"volumes": [{"name": "e", "emptyDir": {}}]}
    mounts = [{"name": "e", "mountPath": "/e"}]
    rig.write("own", {"containers": [container(volumeMounts=mounts)], "hostUsers": False, **volume})
    await eventually(lambda: rig.phase("own") == "Running")
    sandbox = next(iter(hollow.service.records.sandboxes.values())).config
    options = sandbox.linux.security_context.namespace_options.userns_options
    assert (options.mode, options.uids[0].host_id) == (cri.POD, 65536)
    made = next(iter(hollow.service.records.containers.values())).config
    assert made.linux.security_context.namespace_options.userns_options == options
    assert all(mount.uidMappings == options.uids for mount in made.mounts)
