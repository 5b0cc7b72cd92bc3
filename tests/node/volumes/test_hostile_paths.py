"""Whatever a pod or an object says where a file lies: nothing is written or read outside its volume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.errors import KubengineError
from engine.api.objects.cluster_objects import ClusterTrustBundle, ConfigMap, Secret
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.host.mounts import unmount_below
from engine.node.controlplane.control_plane import NoCluster, ServiceAccountToken
from engine.node.volumes import PodVolumes
from engine.node.volumes.contents import ContentSource
from engine.node.volumes.env_files import env_files

Object = dict[str, Any]
LEADING_OUT = (
    "../escaped",
    "../../../../escaped",
    "a/../../escaped",
    "/escaped",
    "..",
    "..data/escaped",
    "..escaped",
    "a\0/../../escaped",
)


class _Token:
    text, renew_at, expires_at = "token", 0.0, 0.0


class Hostile(NoCluster):
    """Serve objects with an arbitrary key, which an API server would refuse."""

    def __init__(self, key: str = "k") -> None:
        super().__init__(dict)
        self._key = key

    async def secret(self, pod: Pod, name: str) -> Secret:
        return Secret(data={self._key: b"x"})

    async def config_map(self, pod: Pod, name: str) -> ConfigMap:
        return ConfigMap(data={self._key: "x"})

    async def token(self, pod: Pod, audience: str, seconds: int) -> ServiceAccountToken:
        return _Token()

    async def trust_bundles(self, pod: Pod) -> Mapping[str, ClusterTrustBundle]:
        return {"b": ClusterTrustBundle()}


def sources(path: str) -> dict[str, Object]:
    items = [{"key": "k", "path": path}]
    field = {"path": path, "fieldRef": {"fieldPath": "metadata.name"}}
    return {
        "secret": {"secret": {"secretName": "s", "items": items}},
        "config map": {"configMap": {"name": "m", "items": items}},
        "downward": {"downwardAPI": {"items": [field]}},
        "projected secret": {"projected": {"sources": [{"secret": {"name": "s", "items": items}}]}},
        "projected config map": {"projected": {"sources": [{"configMap": {"name": "m", "items": items}}]}},
        "projected downward": {"projected": {"sources": [{"downwardAPI": {"items": [field]}}]}},
        "token": {"projected": {"sources": [{"serviceAccountToken": {"path": path}}]}},
        "trust bundle": {"projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": path}}]}},
        "pod certificate": {
            "projected": {
                "sources": [{"podCertificate": {"signerName": "e.com/s", "credentialBundlePath": path}}]
            }
        },
    }


KINDS = tuple(sources("x"))
WHOLE: dict[str, Object] = {
    "secret": {"secret": {"secretName": "s"}},
    "config map": {"configMap": {"name": "m"}},
    "projected secret": {"projected": {"sources": [{"secret": {"name": "s"}}]}},
    "projected config map": {"projected": {"sources": [{"configMap": {"name": "m"}}]}},
}


def pod_with(source: Object) -> Pod:
    value = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": {
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", **source}],
        },
    }
    return msgspec.convert(value, Pod, dec_hook=decode_hook)


def everything(top: Path) -> set[Path]:
    """Return the paths below `top` that have the name of a written file, wherever it was written."""
    return {path for path in top.rglob("*") if "escaped" in path.name or path.name == "x"}


async def write(root: Path, source: Object, objects: NoCluster) -> None:
    pod = pod_with(source)
    (volume,) = pod.spec.volumes or ()
    contents = await ContentSource(pod, objects, (), {}).of(volume)
    PodVolumes(root).write(pod, volume, contents, {})


@pytest.fixture
def root(tmp_path: Path) -> Any:
    yield tmp_path / "root"
    unmount_below(tmp_path)


@pytest.mark.root
@pytest.mark.parametrize("path", LEADING_OUT)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_path_that_leads_out_is_refused(kind: str, path: str, root: Path, tmp_path: Path) -> None:
    with pytest.raises(KubengineError):
        await write(root, sources(path)[kind], Hostile())
    assert everything(tmp_path) == set()
    assert not Path("/escaped").exists()


@pytest.mark.root
@pytest.mark.parametrize("key", LEADING_OUT)
@pytest.mark.parametrize("kind", WHOLE)
async def test_a_key_that_leads_out_is_refused(kind: str, key: str, root: Path, tmp_path: Path) -> None:
    with pytest.raises(KubengineError):
        await write(root, WHOLE[kind], Hostile(key))
    assert everything(tmp_path) == set()
    assert not Path("/escaped").exists()


@pytest.mark.root
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pod certificate"])
async def test_planted_links_are_replaced_not_followed(kind: str, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    await write(root, sources("a/x")[kind], Hostile())
    (volume,) = (each for each in (root / "pods/u1/volumes").glob("*/v"))
    for name in ("a", "..data"):
        (volume / name).unlink()
        (volume / name).symlink_to(outside)
    await write(root, sources("a/x")[kind], Hostile())
    assert list(outside.iterdir()) == []
    assert (volume / "a" / "x").resolve().is_relative_to(volume.resolve())
    assert (volume / "a" / "x").is_file()


@pytest.mark.parametrize("path", ["../host", "../../../host", "/../host", "link", "directory/host", "up"])
def test_variables_are_read_from_no_file_outside_their_volume(path: str, tmp_path: Path) -> None:
    volume = tmp_path / "a/volume"
    volume.mkdir(parents=True)
    for at in (tmp_path / "host", tmp_path / "a/host"):
        at.write_text("KEY=secret\n")
    (volume / "link").symlink_to(tmp_path / "host")
    (volume / "directory").symlink_to(tmp_path)
    (volume / "up").symlink_to("../host")
    reference = {"fileKeyRef": {"volumeName": "v", "path": path, "key": "KEY"}}
    variable = {"name": "KEY", "valueFrom": reference}
    value = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "env": [variable]}]},
    }
    (container,) = msgspec.convert(value, Pod, dec_hook=decode_hook).spec.containers
    (file,) = env_files(container, {"v": volume}).values()
    assert file.text is None
