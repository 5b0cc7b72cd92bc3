"""What pods of a real API server get on a real containerd, and the events that say why they do not get it."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.cluster.client import ApiClient, ApiError
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.node.pod_admission import app_armor_enabled
from engine.testing.apiserver import Authority
from engine.testing.containerd import Containerd
from tests.cluster.control_plane import ControlPlane, Object, shown
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.containerd]

NAMESPACE = "/api/v1/namespaces/default"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
BUNDLES = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles"


class Site:
    """Hold the node n1 of a real cluster on a real containerd, and do what users do."""

    def __init__(self, admin: ApiClient, node: Node, root: Path) -> None:
        self.admin, self.node, self.root = admin, node, root

    async def create(self, path: str, name: str, **fields: Any) -> Object:
        return await self.admin.create(path, {"metadata": {"name": name}, **fields}, Object)

    async def run(self, name: str, **spec: Any) -> Object:
        """Create a pod of the node, without a token unless `spec` asks for one, and return it."""
        wanted = {"nodeName": "n1", "terminationGracePeriodSeconds": 1, **spec}
        wanted.setdefault("automountServiceAccountToken", False)
        return await self.create(f"{NAMESPACE}/pods", name, spec=wanted)

    async def ready(self, name: str) -> Object:
        def is_ready(pod: Object) -> bool:
            conditions = pod.get("status", {}).get("conditions", ())
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        return await self.wait_for(name, is_ready)

    async def wait_for(self, name: str, holds: Callable[[Object], bool]) -> Object:
        while True:
            try:
                return await shown(self.admin, f"{NAMESPACE}/pods/{name}", holds)
            except TimeoutError:
                continue

    async def event_message(self, name: str, reason: str) -> str:
        """Wait for an event of the pod with this reason, and return its message."""
        found: list[str] = []

        async def is_listed() -> bool:
            events = (await self.admin.get(f"{NAMESPACE}/events", Object))["items"]
            found[:] = [
                event["message"]
                for event in events
                if event["involvedObject"]["name"] == name and event["reason"] == reason
            ]
            return bool(found)

        await eventually(is_listed, every=0.2)
        return found[0]

    async def claim(self, name: str, **source: Any) -> None:
        """Create a claim and its volume, and bind them as a controller does."""
        claims, size = f"{NAMESPACE}/persistentvolumeclaims", {"storage": "1Gi"}
        mode = {"volumeMode": source.get("volumeMode", "Filesystem"), "accessModes": ["ReadWriteOnce"]}
        spec = {**mode, "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
        made = await self.create(claims, name, spec=spec)
        reference = {"namespace": "default", "name": name, "uid": made["metadata"]["uid"]}
        volume = {**source, **mode, "capacity": size, "claimRef": reference}
        await self.create("/api/v1/persistentvolumes", name, spec=volume)
        await self.admin.patch(f"{claims}/{name}/status", {"status": {"phase": "Bound"}}, Object)


@pytest.fixture
async def site(
    real: ControlPlane, connect: Callable[[Path], ApiClient], containerd: Containerd, tmp_path: Path
) -> AsyncIterator[Site]:
    config = KubeletConfiguration(
        cgroups_per_qos=False,
        enforce_node_allocatable=[],
        eviction_hard={"memory.available": "0%"},
        image_gc_high_threshold_percent=100,
        pod_logs_dir=str(tmp_path / "logs"),
    )
    root, admin = tmp_path / "root", connect(real.admin)
    node = Node(
        config=config,
        runtime_endpoint=str(containerd.socket),
        root=root,
        name="n1",
        options=NodeOptions(kubeconfig=real.node),
    )
    await node.start()
    site = Site(admin, node, root)
    try:
        await site.create(f"{NAMESPACE}/serviceaccounts", "default")
    except ApiError as error:
        assert error.reason == "AlreadyExists"  # noqa: PT017
    yield site
    await node.remove_all_pods()
    await node.stop()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


HERE = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
SHOW = """
{ echo "$FILE|$SECRET|$MAP"; cat /all/map /all/secret /all/labels /host/file; stat -c '%F' /dev/data;
  grep -c CERTIFICATE /all/ca.pem; cat /proc/sys/net/ipv4/ip_local_port_range; id -G; } > /out/new
mv /out/new /out/shown
"""


async def test_a_pod_has_all_of_its_cluster_and_sees_it_change(
    site: Site, real: ControlPlane, tmp_path: Path
) -> None:
    device, data = tmp_path / "disk", tmp_path / "data"
    os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(7, 250))
    data.mkdir()
    (data / "file").write_text("on the host\n")
    await site.create(CLASSES, "own", handler="runc", overhead={"podFixed": {"cpu": "10m"}})
    await site.create(BUNDLES, "trusted", spec={"trustBundle": real.authority.certificate.read_text()})
    await site.create(f"{NAMESPACE}/configmaps", "m", data={"map": "map 1\n"})
    await site.create(f"{NAMESPACE}/secrets", "s", data={"secret": encoded("secret 1\n")})
    await site.claim("host", hostPath={"path": str(data)})
    await site.claim(
        "disk",
        volumeMode="Block",
        local={"path": str(device)},
        nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [HERE]}]}},
    )
    sources = [
        {"configMap": {"name": "m"}},
        {"secret": {"name": "s"}},
        {"configMap": {"name": "no", "optional": True}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"clusterTrustBundle": {"path": "ca.pem", "name": "trusted"}},
        {"serviceAccountToken": {"path": "token"}},
    ]
    volumes = [
        {"name": "out", "emptyDir": {}},
        {"name": "all", "projected": {"sources": sources}},
        {"name": "part", "configMap": {"name": "m"}},
        {"name": "host", "persistentVolumeClaim": {"claimName": "host", "readOnly": True}},
        {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
    ]
    out = {"name": "out", "mountPath": "/out"}
    mounts = [
        out,
        {"name": "all", "mountPath": "/all"},
        {"name": "part", "mountPath": "/part", "subPath": "map"},
        {"name": "host", "mountPath": "/host"},
    ]
    env = [
        {"name": "FILE", "valueFrom": {"fileKeyRef": {"volumeName": "out", "path": "env", "key": "A"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "secret"}}},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "map"}}},
    ]
    main = container(
        "c",
        SHOW + WAIT,
        env=env,
        volumeMounts=mounts,
        volumeDevices=[{"name": "disk", "devicePath": "/dev/data"}],
    )
    made = await site.run(
        "p",
        runtimeClassName="own",
        securityContext={
            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 30000"}],
            "supplementalGroups": [4242],
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        initContainers=[container("write", "echo \"A='of a file'\" > /out/env", volumeMounts=[out])],
        containers=[main],
        volumes=volumes,
    )
    assert made["spec"]["overhead"] == {"cpu": "10m"}
    await site.ready("p")
    directory = site.root / "pods" / made["metadata"]["uid"] / "volumes"
    shown_file = directory / "kubernetes.io~empty-dir/out/shown"
    await eventually(shown_file.exists)
    output = shown_file.read_text()
    for words in ("of a file|secret 1", "map 1\nsecret 1\n", "on the host", "block special file\n2\n"):
        assert words in output
    assert "20000\t30000" in output
    assert "4242" in output.splitlines()[-1].split()

    files = directory / "kubernetes.io~projected/all"
    token = (files / "token").read_text()
    await site.admin.patch(f"{NAMESPACE}/configmaps/m", {"data": {"map": "map 2\n"}}, Object)
    await site.admin.patch(f"{NAMESPACE}/secrets/s", {"data": {"secret": encoded("secret 2\n")}}, Object)
    await site.admin.patch(f"{NAMESPACE}/pods/p", {"metadata": {"labels": {"a": "b"}}}, Object)
    other = Authority(tmp_path / "other").certificate.read_text()
    two = {"spec": {"trustBundle": real.authority.certificate.read_text() + other}}
    await site.admin.patch(f"{BUNDLES}/trusted", two, Object)
    await eventually(lambda: (files / "map").read_text() == "map 2\n")
    await eventually(lambda: (files / "secret").read_text() == "secret 2\n")
    await eventually(lambda: (files / "labels").read_text() == 'a="b"')
    await eventually(lambda: (files / "ca.pem").read_text().count("BEGIN") == 2)
    part = directory.parent / "volume-subpaths/part/c/2"
    assert part.read_text() == "map 1\n"
    assert (files / "token").read_text() == token

    await site.admin.delete(f"{NAMESPACE}/pods/p", {"gracePeriodSeconds": 1})
    await eventually(lambda: list((site.root / "pods").iterdir()) == [])
    assert (data / "file").exists()


LOOK = """
{ df -k /memory | tail -n 1; stat -L -c '%a %g' /secret/secret; cat /labels/labels; echo
  for kind in any directory made file new socket character block; do stat -c '%n %F' /host/$kind; done
  echo "$OWN_secret|$CPU|$NODE|$KUBERNETES_SERVICE_HOST"; } > /out/new 2>&1
mv /out/new /out/shown
while sleep 0.2; do cp /secret/secret /out/copy; mv /out/copy /out/followed; done
"""
RETRY = "[ -e /out/once ] || { touch /out/once; exit 42; }; "


def host_paths(directory: Path) -> dict[str, Object]:
    """Create a file of each type below `directory`, and return a hostPath source for each, by its name."""
    (directory / "there").mkdir(parents=True)
    (directory / "file").write_text("")
    os.mknod(directory / "socket", stat.S_IFSOCK | 0o600)
    os.mknod(directory / "character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(directory / "block", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    kinds = {
        "any": ("there", ""),
        "directory": ("there", "Directory"),
        "made": ("made", "DirectoryOrCreate"),
        "file": ("file", "File"),
        "new": ("new", "FileOrCreate"),
        "socket": ("socket", "Socket"),
        "character": ("character", "CharDevice"),
        "block": ("block", "BlockDevice"),
    }
    return {name: {"path": str(directory / path), "type": kind} for name, (path, kind) in kinds.items()}


async def test_a_pod_has_each_kind_of_volume_of_its_node(site: Site, tmp_path: Path) -> None:
    await site.create(f"{NAMESPACE}/secrets", "own", data={"secret": encoded("1")})
    labels = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    hosts = host_paths(tmp_path / "host")
    volumes = [
        {"name": "out", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "secret", "secret": {"secretName": "own", "defaultMode": 0o400}},
        {"name": "labels", "downwardAPI": labels},
        *({"name": name, "hostPath": source} for name, source in hosts.items()),
    ]
    mounts = [{"name": each, "mountPath": f"/{each}"} for each in ("out", "memory", "secret", "labels")]
    mounts += [{"name": each, "mountPath": f"/host/{each}"} for each in hosts]
    env = [
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    out = {"volumeMounts": mounts[:1]}
    retries = container("retries", RETRY + WAIT, restartPolicy="Never", restartPolicyRules=rules, **out)
    main = container(
        "c",
        LOOK,
        env=env,
        envFrom=[{"prefix": "OWN_", "secretRef": {"name": "own"}}],
        resources={"requests": {"cpu": "7m"}},
        volumeMounts=mounts,
    )
    made = await site.run(
        "kinds",
        restartPolicy="Never",
        securityContext={"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 77},
        containers=[main, retries],
        volumes=volumes,
    )
    directory = site.root / "pods" / made["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/out"
    followed = directory / "followed"
    await eventually((directory / "shown").exists)
    output = (directory / "shown").read_text()
    assert output.split()[1] == str(8 << 10), output
    assert "440 77\n" in output
    kinds = ["directory", "directory", "directory", "regular empty file", "regular empty file"]
    kinds += ["socket", "character special file", "block special file"]
    for name, kind in zip(hosts, kinds, strict=True):
        assert f"/host/{name} {kind}\n" in output
    assert "\n1|7|n1|10.0.0.1\n" in output
    await site.admin.patch(f"{NAMESPACE}/secrets/own", {"data": {"secret": encoded("2")}}, Object)
    await eventually(lambda: followed.exists() and followed.read_text() == "2")

    def again(pod: Object) -> bool:
        statuses = {each["name"]: each for each in pod["status"].get("containerStatuses", ())}
        return "retries" in statuses and statuses["retries"]["restartCount"] == 1

    await site.wait_for("kinds", again)
    await site.ready("kinds")
    await site.admin.delete(f"{NAMESPACE}/pods/kinds", {"gracePeriodSeconds": 1})
    await eventually(lambda: list((site.root / "pods").iterdir()) == [])
    assert (tmp_path / "host/file").exists()


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"hostUsers": False},
            "FailedCreatePodSandBox",
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
        ),
        (
            {"volumes": [{"name": "v", "secret": {"secretName": "no"}}]},
            "FailedMount",
            'MountVolume.SetUp failed for volume "v" : secret "no" not found',
        ),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "no"}}]},
            "FailedMount",
            'persistentvolumeclaims "no" not found',
        ),
        (
            {"securityContext": {"supplementalGroupsPolicy": "Strict"}},
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.msgmax" not allowlisted',
        ),
        pytest.param(
            {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
            marks=pytest.mark.skipif(app_armor_enabled(), reason="this machine has AppArmor"),
        ),
    ],
    ids=["users", "secret", "claim", "groups", "sysctl", "armor"],
)
async def test_an_unavailable_object_is_reported(
    site: Site, request: pytest.FixtureRequest, spec: Object, reason: str, words: str
) -> None:
    name = request.node.callspec.id
    mounts = [{"name": volume["name"], "mountPath": "/v"} for volume in spec.get("volumes", ())]
    await site.run(name, containers=[container(volumeMounts=mounts)], **spec)
    assert words in await site.event_message(name, reason)
    await site.admin.delete(f"{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})


async def test_a_variable_that_is_missing_holds_its_container_up(site: Site) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]
    await site.run("env", containers=[container(env=env)])

    def waits(pod: Object) -> bool:
        statuses = pod.get("status", {}).get("containerStatuses", ())
        waiting = statuses[0]["state"].get("waiting", {}) if statuses else {}
        return (waiting.get("reason"), waiting.get("message")) == (
            "CreateContainerConfigError",
            'secret "no" not found',
        )

    await site.wait_for("env", waits)
    assert await site.event_message("env", "Failed") == 'Error: secret "no" not found'
    await site.create(f"{NAMESPACE}/secrets", "no", data={"k": encoded("1")})
    await site.ready("env")
    await site.admin.delete(f"{NAMESPACE}/pods/env", {"gracePeriodSeconds": 0})
