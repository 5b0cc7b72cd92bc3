"""Images of a registry that asks who is there: Debian's docker-registry, a real containerd, an API server."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.node import Node
from engine.node.images.providers import load_programs
from engine.node.nodeinfo.options import NodeOptions
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG
from tests.cluster_rig import Cluster, Joined
from tests.ports import free_port
from tests.system.busybox import container
from tests.waiting import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.containerd,
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]

USER, PASSWORD = "me", "swordfish"
HTPASSWD = f"{USER}:$2y$05$abcdefghijklmnopqrstuupWDwJQeCHYIBQy8WvkVB6ImhZ476YYy\n"
Object = dict[str, Any]


class Registry:
    """Name images of a registry; `name` is the registry's host and port."""

    def __init__(self, name: str) -> None:
        self.name = name

    def image(self, path: str) -> str:
        return f"{self.name}/{path}:1"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("registry")
    (directory / "htpasswd").write_text(HTPASSWD)
    name = f"127.0.0.1:{free_port()}"
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
        "http": {"addr": name},
        "auth": {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}},
    }
    (directory / "config.yml").write_text(json.dumps(config))
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(directory / "config.yml")], stdout=log, stderr=log
        )
    try:
        _wait_for(name, process)
        yield Registry(name)
    finally:
        process.kill()
        process.wait()


def _wait_for(name: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{name}/v2/", timeout=10)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("docker-registry has ended")


@pytest.fixture
def image(registry: Registry, containerd: Containerd, request: pytest.FixtureRequest) -> Iterator[str]:
    """Push an image to the registry, yield its name, and keep it out of the runtime before and after."""
    name = registry.image(request.node.name.replace("[", "-").strip("]")[:100])
    containerd.ctr("images", "tag", BUSYBOX_TAG, name)
    containerd.ctr("images", "push", "--plain-http", "--user", f"{USER}:{PASSWORD}", name)
    containerd.ctr("images", "rm", "--sync", name)
    yield name
    containerd.ctr("images", "rm", "--sync", name)


def docker_config(registry: Registry, password: str = PASSWORD) -> bytes:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    return json.dumps({"auths": {registry.name: {"auth": auth}}}).encode()


def pull_secret(cluster: Cluster, registry: Registry, name: str, password: str = PASSWORD) -> None:
    encoded = base64.b64encode(docker_config(registry, password)).decode()
    cluster.server.create(
        "/api/v1/namespaces/default/secrets",
        {
            "metadata": {"name": name},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": encoded},
        },
    )


async def run(cluster: Cluster, name: str, image: str, *secrets: str, policy: str = "IfNotPresent") -> None:
    containers = [container(image=image, imagePullPolicy=policy)]
    await cluster.run(name, containers=containers, imagePullSecrets=[{"name": each} for each in secrets])


async def pull_error(cluster: Cluster, name: str) -> str:
    """Wait until the pod's image cannot be pulled, and return the message in its status."""

    def waiting(pod: Object | None) -> Object:
        statuses = (pod or {}).get("status", {}).get("containerStatuses", ())
        return statuses[0]["state"].get("waiting", {}) if statuses else {}

    pod = await cluster.wait_for(
        name, lambda pod: waiting(pod).get("reason") in ("ErrImagePull", "ImagePullBackOff")
    )
    return str(waiting(pod)["message"])


def reasons(joined: Joined) -> list[str]:
    assert joined.node is not None
    return [event.reason for event in joined.node.recorder]


async def test_an_image_of_a_pull_secret_is_for_those_who_have_one(
    joined: Joined, cluster: Cluster, registry: Registry, image: str
) -> None:
    for name, password in (("good", PASSWORD), ("same", PASSWORD), ("bad", "guess")):
        pull_secret(cluster, registry, name, password)
    await joined.start()
    await run(cluster, "none", image)
    assert "401" in await pull_error(cluster, "none") or "authorization failed" in await pull_error(
        cluster, "none"
    )
    await run(cluster, "owner", image, "bad", "good")
    await cluster.ready("owner")
    await run(cluster, "same", image, "same")
    await cluster.ready("same")
    for name, secrets in (("later", ()), ("guesses", ("bad",))):
        await run(cluster, name, image, *secrets)
        assert await pull_error(cluster, name)
    await run(cluster, "never", image, policy="Never")
    await eventually(lambda: "ErrImageNeverPull" in reasons(joined))
    records = joined.root / "image_manager/pulled"
    (record,) = [json.loads(file.read_bytes()) for file in records.iterdir()]
    ((name, kept),) = record["credentialMapping"].items()
    assert name == image.removesuffix(":1")
    assert sorted(each["name"] for each in kept["kubernetesSecrets"]) == ["good", "same"]
    assert PASSWORD not in json.dumps(record)
    await joined.restart()
    await cluster.ready("owner")
    await run(cluster, "after", image)
    assert await pull_error(cluster, "after")


async def test_a_missing_pull_secret_is_reported_and_the_others_are_tried(
    joined: Joined, cluster: Cluster, registry: Registry, image: str
) -> None:
    pull_secret(cluster, registry, "good")
    await joined.start()
    await run(cluster, "p", image, "gone", "good")
    await cluster.ready("p")
    assert "FailedToRetrieveImagePullSecret" in reasons(joined)


async def test_images_of_the_nodes_own_credentials_serve_all_pods(
    joined: Joined, cluster: Cluster, registry: Registry, image: str
) -> None:
    joined.root.mkdir()
    (joined.root / "config.json").write_bytes(docker_config(registry))
    await joined.start()
    for name in ("one", "two"):
        await run(cluster, name, image)
        await cluster.ready(name)


PROGRAM = """#!/bin/sh
cat > "$0.asked"
cat <<END
{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
 "cacheKeyType": "Image", "cacheDuration": "1m",
 "auth": {"%s": {"username": "%s", "password": "%s"}}}
END
"""


async def test_a_credential_provider_is_asked_for_an_image(
    joined: Joined, cluster: Cluster, registry: Registry, image: str, tmp_path: Path
) -> None:
    program = tmp_path / "bin/ask"
    program.parent.mkdir()
    program.write_text(PROGRAM % (registry.name, USER, PASSWORD))
    program.chmod(0o755)
    provider = {
        "name": "ask",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "matchImages": [registry.name],
        "defaultCacheDuration": "1m",
    }
    config = tmp_path / "providers.yaml"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "kubelet.config.k8s.io/v1",
                "kind": "CredentialProviderConfig",
                "providers": [provider],
            }
        )
    )
    joined.node = Node(
        config=joined.config,
        runtime_endpoint=str(joined.endpoint),
        root=joined.root,
        name="n1",
        options=NodeOptions(
            kubeconfig=joined.kubeconfig,
            credential_programs=load_programs(config, program.parent, time.time).credentials,
        ),
    )
    await joined.node.start()
    await run(cluster, "p", image)
    await cluster.ready("p")
    assert json.loads(Path(f"{program}.asked").read_text())["image"] == image.removesuffix(":1")
