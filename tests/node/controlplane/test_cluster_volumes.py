"""What pods get of their cluster: tokens, secrets and config maps, as files and variables; their changes."""

# ruff: noqa: PTH115, PTH208 - names are what is compared

from __future__ import annotations

import asyncio
import base64
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.host.mountinfo import mounts_below
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster, Joined
from tests.node_rig import container
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

NAMESPACE = "/api/v1/namespaces/default"
TOKEN_REQUEST = f"{NAMESPACE}/serviceaccounts/default/token"
Object = dict[str, Any]


def secret(cluster: Cluster, name: str = "s", immutable: bool | None = None, **data: bytes) -> Object:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    made = {"metadata": {"name": name}, "data": encoded, "immutable": immutable}
    return cluster.server.create(f"{NAMESPACE}/secrets", made)


def config_map(cluster: Cluster, name: str = "m", **data: str) -> Object:
    return cluster.server.create(f"{NAMESPACE}/configmaps", {"metadata": {"name": name}, "data": data})


def change(cluster: Cluster, kind: str, name: str, data: Object) -> None:
    path = f"{NAMESPACE}/{kind}/{name}"
    cluster.server.update(path, {**cluster.server.get(path), "data": data})


async def run_with(cluster: Cluster, source: Object, name: str = "p", **spec: Any) -> None:
    """Create a pod that mounts the volume `source` at /v."""
    mounts = [{"name": "v", "mountPath": "/v"}]
    await cluster.run(
        name, containers=[container(volumeMounts=mounts)], volumes=[{"name": "v", **source}], **spec
    )


def pod_of_node(joined: Joined, name: str = "p") -> Pod:
    assert joined.node is not None
    return next(pod for pod in joined.node.pods() if pod.metadata.name == name)


def volume(joined: Joined, plugin: str, name: str = "p") -> Path:
    return joined.root / "pods" / pod_of_node(joined, name).uid / f"volumes/kubernetes.io~{plugin}/v"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def messages(joined: Joined, reason: str) -> list[str]:
    assert joined.node is not None
    return [event.message for event in joined.node.recorder if event.reason == reason]


def is_in_memory(path: Path) -> bool:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(path) and " - tmpfs " in line for line in lines)


# Tokens


DEFAULT_ACCESS: Object = {
    "projected": {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                }
            },
        ],
    }
}


async def test_an_ordinary_pod_gets_its_service_account(joined: Joined, cluster: Cluster) -> None:
    config_map(cluster, "kube-root-ca.crt", ca="its certificate")
    await joined.start()
    await run_with(cluster, DEFAULT_ACCESS)
    pod = await cluster.ready("p")
    path = volume(joined, "projected")
    assert is_in_memory(path)
    assert {name: (path / name).read_text()[:6] for name in ("token", "ca.crt", "namespace")} == {
        "token": "token-",
        "ca.crt": "its ce",
        "namespace": "defaul",
    }
    (asked,) = [r.value for r in cluster.server.requests if r.path == TOKEN_REQUEST]
    assert asked["spec"] == {
        "expirationSeconds": 3607,
        "boundObjectRef": {
            "kind": "Pod",
            "name": "p",
            "uid": pod["metadata"]["uid"],
            "apiVersion": "v1",
        },
    }
    await cluster.delete("p")
    await cluster.gone("p")
    assert mounts_below(joined.root) == []
    assert list((joined.root / "pods").iterdir()) == []


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        ({}, (0o644, 0, 0)),
        ({"runAsUser": 1234}, (0o600, 1234, 0)),
        ({"fsGroup": 77}, (0o640, 0, 77)),
        ({"fsGroup": 77, "runAsUser": 1234}, (0o640, 1234, 77)),
    ],
)
async def test_a_token_is_for_the_pods_user_and_group_only(
    joined: Joined, cluster: Cluster, context: Object, wanted: tuple[int, int, int]
) -> None:
    await joined.start()
    source = {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "vault"}}]}}
    await run_with(cluster, source, securityContext=context)
    await cluster.ready("p")
    file = (volume(joined, "projected") / "token").stat()
    assert (stat.S_IMODE(file.st_mode), file.st_uid, file.st_gid) == wanted
    (asked,) = [r.value for r in cluster.server.requests if r.path == TOKEN_REQUEST]
    assert asked["spec"]["audiences"] == ["vault"]


async def test_a_token_readable_in_the_pod_is_unreadable_on_the_host(
    joined: Joined, cluster: Cluster
) -> None:
    await joined.start()
    await run_with(cluster, {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    await cluster.ready("p")
    file = volume(joined, "projected") / "token"
    assert mode(file) == 0o644
    closed = [directory for directory in file.parents if not mode(directory) & 0o001]
    assert joined.root / "pods" in closed
    read = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", str(file)]
    refused = await asyncio.to_thread(
        subprocess.run, read, capture_output=True, check=False, timeout=PATIENCE, text=True
    )
    assert refused.returncode != 0
    assert "Permission denied" in refused.stderr


async def test_a_token_that_is_not_given_is_waited_for(joined: Joined, cluster: Cluster) -> None:
    cluster.server.fail(403, path="/token$", times=5)
    await joined.start()
    source = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    await run_with(cluster, source)
    await cluster.ready("p")
    (text,) = messages(joined, "FailedMount")
    assert text.startswith('MountVolume.SetUp failed for volume "v" : failed to fetch token: ')


# Files


async def test_a_secrets_keys_are_files_and_follow_it(joined: Joined, cluster: Cluster) -> None:
    secret(cluster, user=b"me", password=b"\x00\xff")
    await joined.start()
    await run_with(cluster, {"secret": {"secretName": "s", "defaultMode": 0o400}})
    await cluster.ready("p")
    path = volume(joined, "secret")
    assert is_in_memory(path)
    assert (path / "password").read_bytes() == b"\x00\xff"
    assert mode(path / "password") == 0o400
    shown = os.readlink(path / "..data")
    change(cluster, "secrets", "s", {"user": base64.b64encode(b"you").decode()})
    await eventually(lambda: os.readlink(path / "..data") != shown)
    assert sorted(n for n in os.listdir(path) if not n.startswith("..")) == ["user"]
    assert (path / "user").read_text() == "you"


async def test_chosen_keys_of_a_config_map_at_paths_of_their_own(joined: Joined, cluster: Cluster) -> None:
    config_map(cluster, a="1", b="2", c="3")
    items = [
        {"key": "a", "path": "x/y"},
        {"key": "b", "path": "b", "mode": 0o600},
        {"key": "no", "path": "n"},
    ]
    await joined.start()
    await run_with(cluster, {"configMap": {"name": "m", "items": items, "optional": True}})
    await cluster.ready("p")
    path = volume(joined, "configmap")
    assert (path / "x/y").read_text() == "1"
    assert (mode(path / "x/y"), mode(path / "b")) == (0o644, 0o600)
    assert sorted(n for n in os.listdir(path) if not n.startswith("..")) == ["b", "x"]


async def test_a_part_of_a_volume_stays_as_it_was(joined: Joined, cluster: Cluster) -> None:
    config_map(cluster, a="1")
    mounts = [
        {"name": "v", "mountPath": "/v"},
        {"name": "v", "mountPath": "/a", "subPath": "a"},
    ]
    await joined.start()
    volumes = [{"name": "v", "configMap": {"name": "m"}}]
    await cluster.run("p", containers=[container(volumeMounts=mounts)], volumes=volumes)
    await cluster.ready("p")
    path = volume(joined, "configmap")
    part = path.parents[2] / "volume-subpaths/v/c/1"
    change(cluster, "configmaps", "m", {"a": "2"})
    await eventually(lambda: (path / "a").read_text() == "2")
    assert part.read_text() == "1"


async def test_labels_and_annotations_are_followed(joined: Joined, cluster: Cluster) -> None:
    await joined.start()
    items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    await run_with(cluster, {"downwardAPI": {"items": items}})
    await cluster.ready("p")
    file = volume(joined, "downward-api") / "labels"
    assert file.read_text() == ""
    await cluster.client.patch(f"{NAMESPACE}/pods/p", {"metadata": {"labels": {"a": "b"}}}, Object)
    await eventually(lambda: file.read_text() == 'a="b"')


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"secret": {"secretName": "s"}}, 'secret "s" not found'),
        ({"configMap": {"name": "m"}}, 'configmap "m" not found'),
        (
            {"projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "m"}}]}},
            '[secret "s" not found, configmap "m" not found]',
        ),
    ],
)
async def test_a_missing_object_is_reported_and_the_pod_waits(
    joined: Joined, cluster: Cluster, source: Object, words: str
) -> None:
    await joined.start()
    await run_with(cluster, source)
    failed = f'MountVolume.SetUp failed for volume "v" : {words}'
    await eventually(lambda: messages(joined, "FailedMount") == [failed])
    pod = await cluster.pod("p")
    assert pod is not None
    assert pod["status"]["phase"] == "Pending"
    secret(cluster, a=b"1")
    config_map(cluster, b="1")
    await cluster.ready("p")


async def test_a_deleted_object_leaves_its_files_and_is_reported(joined: Joined, cluster: Cluster) -> None:
    config_map(cluster, a="1")
    await joined.start()
    await run_with(cluster, {"configMap": {"name": "m"}})
    await cluster.ready("p")
    cluster.server.delete(f"{NAMESPACE}/configmaps/m")
    failed = 'MountVolume.SetUp failed for volume "v" : configmap "m" not found'
    await eventually(lambda: messages(joined, "FailedMount") == [failed])
    assert (volume(joined, "configmap") / "a").read_text() == "1"
    config_map(cluster, a="2")
    await eventually(lambda: (volume(joined, "configmap") / "a").read_text() == "2")


async def test_a_pod_that_is_being_deleted_may_outlive_its_objects(joined: Joined, cluster: Cluster) -> None:
    """A namespace that ends deletes its objects while the pods' containers still stop."""
    config_map(cluster, a="1")
    await joined.start()
    await run_with(
        cluster,
        {"configMap": {"name": "m"}},
        annotations={"runtime.kubengine.dev/stop-after": "15s"},
        terminationGracePeriodSeconds=60,
    )
    await cluster.ready("p")
    await cluster.delete("p", grace=60)
    await eventually(lambda: pod_of_node(joined).metadata.deletion_timestamp is not None)
    config_map(cluster, "later", a="1")
    cluster.server.delete(f"{NAMESPACE}/configmaps/m")
    await run_with(cluster, {"configMap": {"name": "later"}}, "q")
    await cluster.ready("q")
    assert (volume(joined, "configmap") / "a").read_text() == "1"
    assert messages(joined, "FailedMount") == []
    await cluster.delete("p", grace=0)


@pytest.mark.parametrize("path", ["../out", "/out", "..data/x", "a/../../../out"])
async def test_no_path_leads_out(joined: Joined, cluster: Cluster, path: str) -> None:
    """An API server refuses such a path; if one accepts it, nothing else is harmed."""
    secret(cluster, a=b"1")
    await joined.start()
    await run_with(cluster, {"secret": {"secretName": "s", "items": [{"key": "a", "path": path}]}})
    await eventually(lambda: len(messages(joined, "FailedMount")) == 1)
    assert "below the volume" in messages(joined, "FailedMount")[0]
    assert not list(joined.root.rglob("out"))


async def test_one_watch_for_each_object_while_a_pod_names_it(joined: Joined, cluster: Cluster) -> None:
    secret(cluster, a=b"1")
    secret(cluster, "fixed", immutable=True, a=b"1")
    await joined.start()
    for name in ("one", "two"):
        await run_with(cluster, {"secret": {"secretName": "s"}}, name)
    await run_with(cluster, {"secret": {"secretName": "fixed"}}, "three")
    for name in ("one", "two", "three"):
        await cluster.ready(name)
    asked = [r.params["fieldSelector"] for r in cluster.server.requests if r.path.endswith("/secrets")]
    assert sorted(asked) == ["metadata.name=fixed", "metadata.name=s"]
    assert joined.node is not None
    await eventually(lambda: watched(cluster) == {"s"})
    for name in ("one", "two"):
        await cluster.delete(name)
        await cluster.gone(name)
    await eventually(lambda: watched(cluster) == set())


def watched(cluster: Cluster) -> set[str]:
    """Return the names of the secrets that have an open watch."""
    return {
        selector.removeprefix("metadata.name=")
        for path, selector in cluster.server.open_watches
        if path == "/api/v1/secrets"
    }


async def test_an_ended_pod_keeps_no_secrets(joined: Joined, cluster: Cluster) -> None:
    secret(cluster, a=b"1")
    await joined.start()
    await run_with(cluster, {"secret": {"secretName": "s"}}, activeDeadlineSeconds=1)
    await cluster.until("p", "Failed")
    path = volume(joined, "secret")
    await eventually(lambda: not path.exists())
    assert mounts_below(joined.root) == []
    await eventually(lambda: watched(cluster) == set())


# Claims


def claim(cluster: Cluster, phase: str = "Bound", uid: str = "", **source: Any) -> None:
    """Create a claim and the persistent volume to which it is bound."""
    claims = f"{NAMESPACE}/persistentvolumeclaims"
    made = cluster.server.create(
        claims, {"metadata": {"name": "c"}, "spec": {"volumeName": "pv"}, "status": {"phase": phase}}
    )
    reference = {"namespace": "default", "name": "c", "uid": uid or made["metadata"]["uid"]}
    volume = {"metadata": {"name": "pv"}, "spec": {"claimRef": reference, **source}}
    cluster.server.create("/api/v1/persistentvolumes", volume)


CLAIMED: Object = {"persistentVolumeClaim": {"claimName": "c"}}
UNABLE = (
    "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], "
    "failed to process volumes=[v]: error processing PVC default/c: "
)


def mount_of(hollow: HollowRuntime) -> Any:
    (config,) = [c.config for c in hollow.service.records.containers.values()]
    return next(m for m in config.mounts if m.container_path == "/v")


async def test_a_claim_of_a_host_path_is_that_path(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime, tmp_path: Path
) -> None:
    claim(cluster, hostPath={"path": str(tmp_path / "data"), "type": "DirectoryOrCreate"})
    await joined.start()
    await run_with(cluster, {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}})
    await cluster.ready("p")
    assert (mount_of(hollow).host_path, mount_of(hollow).readonly) == (str(tmp_path / "data"), True)


async def test_a_local_volume_is_mounted_shared_and_survives_its_pod(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime, tmp_path: Path
) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    (data / "below").mkdir(parents=True, mode=0o700)
    (data / "below/file").write_text("kept")
    (data / "below/file").chmod(0o600)
    outside.write_text("not the volume's")
    outside.chmod(0o600)
    (data / "link").symlink_to(outside)
    claim(cluster, local={"path": str(data)})
    await joined.start()
    await run_with(cluster, CLAIMED, securityContext={"fsGroup": 77})
    await cluster.ready("p")
    path = joined.root / "pods" / pod_of_node(joined).uid / "volumes/kubernetes.io~local-volume/pv"
    assert mount_of(hollow).host_path == str(path)
    assert path.samefile(data)
    for file, wanted in ((data, 0o2770), (data / "below", 0o2770), (data / "below/file", 0o660)):
        assert (file.stat().st_gid, mode(file) & wanted) == (77, wanted)
    assert (outside.stat().st_gid, mode(outside)) == (0, 0o600)
    await joined.restart()
    await cluster.delete("p")
    await cluster.gone("p")
    assert mounts_below(joined.root) == []
    assert (data / "below/file").read_text() == "kept"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"phase": "Pending", "local": {"path": "/tmp"}}, UNABLE + "PVC is not bound"),
        (
            {"uid": "another", "local": {"path": "/tmp"}},
            UNABLE + "found PV object pv but its pv.Spec.ClaimRef.UID another does not point to claim.UID ",
        ),
        (
            {"volumeMode": "Block", "local": {"path": "/tmp"}},
            UNABLE + "volume v has volumeMode Block, but is specified in volumeMounts",
        ),
        ({"local": {"path": "/a/../b"}}, 'MountVolume.SetUp failed for volume "pv" : invalid path: '),
        (
            {"rbd": {"monitors": ["10.0.0.1"], "image": "disk"}},
            'MountVolume.SetUp failed for volume "pv" : no volume plugin',
        ),
        (
            {
                "local": {"path": "/tmp"},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "no", "operator": "Exists"}]},
                        ]
                    }
                },
            },
            'MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms',
        ),
    ],
)
async def test_a_claim_that_cannot_be_mounted_holds_the_pod_up(
    joined: Joined, cluster: Cluster, made: Object, words: str
) -> None:
    claim(cluster, **made)
    await joined.start()
    await run_with(cluster, CLAIMED)
    await eventually(lambda: len(messages(joined, "FailedMount")) == 1)
    assert messages(joined, "FailedMount")[0].startswith(words)


async def test_a_claim_that_is_not_there_is_waited_for(
    joined: Joined, cluster: Cluster, tmp_path: Path
) -> None:
    await joined.start()
    await run_with(cluster, CLAIMED)
    await eventually(lambda: len(messages(joined, "FailedMount")) == 1)
    missing = 'failed to fetch PVC from API server: persistentvolumeclaims "c" not found'
    assert messages(joined, "FailedMount") == [UNABLE + missing]
    claim(cluster, hostPath={"path": str(tmp_path)})
    await cluster.ready("p")


# Variables


def environment(hollow: HollowRuntime) -> dict[str, bytes]:
    (config,) = [c.config for c in hollow.service.records.containers.values()]
    return {pair.key: pair.value for pair in config.envs}


async def test_variables_of_objects_and_services(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
) -> None:
    config_map(cluster, a="1", b="2")
    secret(cluster, b=b"3\xff", c=b"4")
    port = {"port": 443, "name": "https", "protocol": "TCP"}
    services = "/api/v1/namespaces/default/services"
    for name, address in (("kubernetes", "10.0.0.1"), ("my-db", "10.0.0.2"), ("headless", "None")):
        spec = {"clusterIP": address, "ports": [port]}
        cluster.server.create(services, {"metadata": {"name": name}, "spec": spec})
    await joined.start()
    env = [
        {"name": "c", "value": "own $(M_a) $(MY_DB_SERVICE_HOST)"},
        {"name": "key", "valueFrom": {"secretKeyRef": {"name": "s", "key": "c"}}},
        {"name": "no", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "c", "optional": True}}},
    ]
    env_from = [
        {"prefix": "M_", "configMapRef": {"name": "m"}},
        {"secretRef": {"name": "s"}},
        {"configMapRef": {"name": "gone", "optional": True}},
    ]
    await cluster.run("p", containers=[container(env=env, envFrom=env_from)])
    await cluster.ready("p")
    given = environment(hollow)
    own = {name: given[name] for name in ("M_a", "M_b", "b", "c", "key")}
    assert own == {"M_a": b"1", "M_b": b"2", "b": b"3\xff", "c": b"own 1 10.0.0.2", "key": b"4"}
    assert "no" not in given
    assert given["KUBERNETES_SERVICE_HOST"] == b"10.0.0.1"
    assert given["MY_DB_PORT_443_TCP"] == b"tcp://10.0.0.2:443"
    assert not [name for name in given if name.startswith("HEADLESS")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"envFrom": [{"secretRef": {"name": "gone"}}]}, 'secret "gone" not found'),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "x"}}}]},
            "couldn't find key x in ConfigMap default/m",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x"}}}]},
            "couldn't find key x in Secret default/s",
        ),
    ],
)
async def test_a_missing_variable_holds_the_container_up(
    joined: Joined, cluster: Cluster, fields: Object, words: str
) -> None:
    config_map(cluster, a="1")
    secret(cluster, a=b"1")
    await joined.start()
    await cluster.run("p", containers=[container(**fields)])

    def waiting(pod: Object | None) -> Object:
        statuses = (pod or {}).get("status", {}).get("containerStatuses", ())
        return statuses[0]["state"].get("waiting", {}) if statuses else {}

    pod = await cluster.wait_for("p", lambda pod: waiting(pod).get("reason") == "CreateContainerConfigError")
    assert waiting(pod)["message"] == words
    assert f"Error: {words}" in messages(joined, "Failed")


async def test_a_changed_config_map_waits_for_the_start_of_a_container_with_a_subpath(
    joined: Joined, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime mounts the file of the subPath at the start, and cannot mount a deleted file."""
    config_map(cluster, k="old")
    begin, links = RuntimeClient.start_container, []

    async def start_container(client: RuntimeClient, container_id: str) -> None:
        change(cluster, "configmaps", "m", {"k": "new"})
        # The agent learns of the change within milliseconds, and would write it at once.
        for _ in range(50):
            await asyncio.sleep(0.01)
        (mount,) = (joined.root / "pods").glob("*/volume-subpaths/v/c/0")
        links.append(mount.stat().st_nlink)
        await begin(client, container_id)

    monkeypatch.setattr(RuntimeClient, "start_container", start_container)
    await joined.start()
    mounts = [{"name": "v", "mountPath": "/file", "subPath": "k"}]
    volumes = [{"name": "v", "configMap": {"name": "m"}}]
    await cluster.run("p", containers=[container(volumeMounts=mounts)], volumes=volumes)
    await cluster.ready("p")
    assert links == [1]
    await eventually(lambda: (volume(joined, "configmap") / "k").read_text() == "new")
    await cluster.delete("p")
    await cluster.gone("p")
