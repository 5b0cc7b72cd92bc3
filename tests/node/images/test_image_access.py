"""Images that are for few: pull secrets, the node's own credentials, programs, and records of it."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.events import EventRecorder
from engine.api.pod import Pod, PodSpec
from engine.metrics import Registry as Metrics
from engine.node.controlplane.control_plane import NoCluster
from engine.node.images.access import (
    ALLOWED,
    ALWAYS,
    NEVER,
    PRELOADED,
    ImageAccess,
    check_policy,
    must_verify,
    repository_of,
)
from engine.node.images.docker_config import NodeCredentials
from engine.node.images.keyring import Credential, SecretSource, docker_config, keyring, matches
from engine.node.images.providers import load_programs
from engine.node.images.pull_records import PullRecords
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.wire import cri_v1_pb2 as cri
from tests.cluster_rig import Cluster, Joined, Object
from tests.node_rig import container

PRIVATE = "registry.example.com/team/app:1"
PASSWORD = "correct horse"
NOW = 1_700_000_000.0


# Names and places


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1", "docker.io/library/busybox"),
        ("a/b@sha256:" + 64 * "0", "docker.io/a/b"),
        ("index.docker.io/a", "docker.io/library/a"),
        ("localhost:5000/x/y:tag", "localhost:5000/x/y"),
        ("quay.io/x/y:tag@sha256:" + 64 * "0", "quay.io/x/y"),
    ],
)
def test_the_repository_of_a_name(name: str, repository: str) -> None:
    assert repository_of(name) == repository


@pytest.mark.parametrize(
    ("pattern", "target", "fits"),
    [
        ("quay.io", "quay.io/a/b", True),
        ("quay.io/a", "quay.io/a/b", True),
        ("quay.io/a", "quay.io/b", False),
        ("*.example.com", "r.example.com/a", True),
        ("*.example.com", "example.com/a", False),
        ("*.example.com", "a.b.example.com/a", False),
        ("r*.*.com", "r1.x.com/a", True),
        ("quay.io:443", "quay.io/a", False),
        ("quay.io:443/a", "quay.io:443/a", True),
        ("[::1]:5000", "[::1]:5000/a", True),
    ],
)
def test_every_location_fits_a_name(pattern: str, target: str, fits: bool) -> None:
    assert matches(pattern, target) is fits


def config_of(**places: tuple[str, str]) -> bytes:
    return json.dumps({"auths": {p: {"username": u, "password": w} for p, (u, w) in places.items()}}).encode()


def test_the_most_specific_registry_is_first_and_docker_hub_keeps_its_old_name() -> None:
    config = config_of(
        **{
            "https://quay.io/v2/": ("all", "1"),
            "quay.io/team": ("team", "2"),
            "https://index.docker.io/v1/": ("hub", "3"),
        }
    )
    ring = keyring([docker_config(config), docker_config(config_of(**{"quay.io": ("second", "4")}))])
    assert [c.username for c in ring.lookup("quay.io/team/app")] == ["team", "all", "second"]
    assert [c.username for c in ring.lookup("docker.io/library/busybox")] == ["hub"]
    assert ring.lookup("elsewhere.io/a") == []


def test_auth_is_user_and_password_in_base64_padded_or_not() -> None:
    for text in ("dXNlcjpwYTpzcw==", "dXNlcjpwYTpzcw"):
        config = docker_config(json.dumps({"auths": {"r": {"auth": text}}}).encode())
        assert (config["r"].username, config["r"].password) == ("user", "pa:ss")
    legacy = docker_config(b'{"r": {"username": "a", "password": "b"}}', legacy=True)
    assert legacy["r"].username == "a"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"auths": {"r": {"auth": "%%"}}}', b'{"auths": 1}', b"\xff"]
)
def test_an_invalid_docker_config_is_refused_and_not_quoted(data: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        docker_config(data)
    assert "%%" not in str(caught.value)


def test_a_credential_shows_nothing_of_itself_and_has_the_kubelets_digest() -> None:
    credential = Credential("user", "p<&>")
    assert "user" not in repr(credential)
    assert "p<" not in repr(credential)
    written = b'{"username":"user","password":"p\\u003c\\u0026\\u003e"}'
    assert credential.digest == hashlib.sha256(written).hexdigest()


# Programs


PROGRAM = """#!/bin/sh
cat >> "$ASKED"; echo >> "$ASKED"
cat <<END
{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
 "cacheKeyType": "$1", "cacheDuration": "$2", "auth": {"*.example.com": {"username": "me", "password": "it"}}}
END
"""


def write_programs(tmp_path: Path, *arguments: str, script: str = PROGRAM, **fields: Any) -> Path:
    (tmp_path / "bin").mkdir(exist_ok=True)
    program = tmp_path / "bin/ask"
    program.write_text(script)
    program.chmod(0o755)
    provider = {
        "name": "ask",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "matchImages": ["*.example.com", "other.org/x"],
        "defaultCacheDuration": "1m",
        "args": list(arguments),
        "env": [{"name": "ASKED", "value": str(tmp_path / "asked")}],
        **fields,
    }
    config = tmp_path / "config.yaml"
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [provider],
    }
    config.write_text(json.dumps(document))
    return config


def requested_images(tmp_path: Path) -> list[str]:
    file = tmp_path / "asked"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["image"] for line in lines]


@pytest.mark.parametrize(
    ("arguments", "images"),
    [
        (("Image", "5m"), ["r.example.com/a", "r.example.com/b", "s.example.com/a"]),
        (("Registry", "5m"), ["r.example.com/a", "s.example.com/a"]),
        (("Global", "5m"), ["r.example.com/a"]),
        (("Global", "0s"), ["r.example.com/a"] * 2 + ["r.example.com/b", "s.example.com/a"]),
    ],
)
async def test_a_program_is_asked_as_often_as_its_answers_say(
    tmp_path: Path, arguments: tuple[str, str], images: list[str]
) -> None:
    now = NOW
    config = write_programs(tmp_path, *arguments)
    programs = load_programs(config, tmp_path / "bin", lambda: now)
    for image in ("r.example.com/a", "r.example.com/a", "r.example.com/b", "s.example.com/a"):
        (credentials,) = await programs.credentials(image)
        assert [c.username for c in keyring([credentials]).lookup(image)] == ["me"]
    assert await programs.credentials("elsewhere.io/a") == [{}]
    assert requested_images(tmp_path) == images
    now += 301
    await programs.credentials("r.example.com/a")
    assert len(requested_images(tmp_path)) == len(images) + 1


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\nexit 3",
        "#!/bin/sh\necho nonsense",
        '#!/bin/sh\necho \'{"apiVersion": "x", "kind": "y"}\'',
        "",
    ],
)
async def test_a_failing_program_gives_no_credentials(tmp_path: Path, script: str) -> None:
    config = write_programs(tmp_path, script=script)
    programs = load_programs(config, tmp_path / "bin", lambda: NOW)
    assert await programs.credentials("r.example.com/a") == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "../ask"}, "providers[0].name"),
        ({"apiVersion": "v1"}, "providers[0].apiVersion"),
        ({"matchImages": []}, "providers[0].matchImages"),
        ({"defaultCacheDuration": None}, "providers[0].defaultCacheDuration"),
        ({"tokenAttributes": {}}, "providers[0].tokenAttributes"),
        ({"nonsense": 1}, "nonsense"),
        ({"name": "gone"}, "no such program"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, fields: Object, named: str) -> None:
    config = write_programs(tmp_path, **fields)
    with pytest.raises(InvalidInput) as caught:
        load_programs(config, tmp_path / "bin", lambda: NOW)
    assert named in str(caught.value)


# Who may use what is there


@pytest.mark.parametrize(
    ("policy", "image", "ours", "wanted"),
    [
        (NEVER, "a", True, False),
        (PRELOADED, "a", True, True),
        (PRELOADED, "a", False, False),
        (ALWAYS, "a", False, True),
        (ALLOWED, "r.io/x/a:1", False, False),
        (ALLOWED, "r.io/one@sha256:0", True, False),
        (ALLOWED, "r.io/two", False, True),
    ],
)
def test_which_pods_must_show_credentials(policy: str, image: str, ours: bool, wanted: bool) -> None:
    assert must_verify(policy, ["r.io/x/*", "r.io/one"], image, ours=ours) is wanted


@pytest.mark.parametrize(
    ("policy", "allowed"), [("Sometimes", []), (ALLOWED, ["a:1"]), (ALLOWED, ["*"]), (ALLOWED, ["/*"])]
)
def test_an_unknown_policy_is_refused(policy: str, allowed: list[str]) -> None:
    with pytest.raises(InvalidInput):
        check_policy(policy, allowed)


def test_records_are_the_kubelets_and_survive_damage(tmp_path: Path) -> None:
    records = PullRecords(tmp_path, lambda: NOW)
    credential = Credential("u", "p", source=SecretSource("ns", "s", "1"))
    records.record_pull_intent(PRIVATE)
    assert records.is_ours(PRIVATE, "sha256:1")
    records.record_image_pulled(PRIVATE, "sha256:1", credential)
    (file,) = (tmp_path / "image_manager/pulled").iterdir()
    assert oct(file.stat().st_mode)[-3:] == "600"
    assert json.loads(file.read_bytes()) == {
        "kind": "ImagePulledRecord",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "lastUpdatedTime": "2023-11-14T22:13:20Z",
        "imageRef": "sha256:1",
        "credentialMapping": {
            "registry.example.com/team/app": {
                "kubernetesSecrets": [
                    {"uid": "1", "namespace": "ns", "name": "s", "credentialHash": credential.digest}
                ]
            }
        },
    }
    assert list((tmp_path / "image_manager/pulling").iterdir()) == []
    file.write_bytes(b"{")
    assert records.pull_credentials(PRIVATE, "sha256:1") is None
    records.record_image_pulled(PRIVATE, "sha256:1", None)
    known = records.pull_credentials(PRIVATE, "sha256:1")
    assert known is not None
    assert known.node_pods_accessible


def test_an_image_pulled_after_the_agent_died_needs_credentials(tmp_path: Path) -> None:
    PullRecords(tmp_path, lambda: NOW).record_pull_intent(PRIVATE)
    PullRecords(tmp_path, lambda: NOW).record_image_pulled("gone:1", "sha256:2", None)
    records = PullRecords(tmp_path, lambda: NOW)
    records.reconcile([("sha256:1", [PRIVATE])])
    assert records.is_ours(PRIVATE, "sha256:1")
    assert records.pull_credentials(PRIVATE, "sha256:1") is None
    assert not records.is_ours("gone:1", "sha256:2")
    assert list((tmp_path / "image_manager/pulling").iterdir()) == []


def test_an_image_needs_credentials_that_the_runtime_lists_late_or_by_another_name(tmp_path: Path) -> None:
    for image in ("team/app", "registry.example.com/team/late:1"):
        PullRecords(tmp_path, lambda: NOW).record_pull_intent(image)
    records = PullRecords(tmp_path, lambda: NOW)
    records.reconcile([("sha256:1", ["docker.io/team/app:latest"])])
    assert records.is_ours("team/app", "sha256:1")
    assert records.is_ours("registry.example.com/team/late:1", "sha256:2")
    records.record_image_pulled("team/app", "sha256:1", None)
    (left,) = (tmp_path / "image_manager/pulling").iterdir()
    assert json.loads(left.read_bytes())["image"] == "registry.example.com/team/late:1"


def test_records_of_deleted_images_are_removed(tmp_path: Path) -> None:
    now = NOW
    records = PullRecords(tmp_path, lambda: now)
    for reference in ("sha256:stays", "sha256:gone", "sha256:damaged"):
        records.record_image_pulled("a:1", reference, None)
    now += 300.5
    records.record_image_pulled("late:1", "sha256:late", None)
    pulled = tmp_path / "image_manager/pulled"
    (pulled / f"sha256-{hashlib.sha256(b'sha256:damaged').hexdigest()}").write_bytes(b"{")
    records.prune(["sha256:stays"], NOW + 300.2)
    kept = {json.loads(file.read_bytes())["imageRef"] for file in pulled.iterdir()}
    assert kept == {"sha256:stays", "sha256:late"}
    records.prune(["sha256:stays"], NOW + 302)
    assert len(list(pulled.iterdir())) == 1


async def test_image_records_are_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, reads = PullRecords(tmp_path, lambda: NOW), 0
    access = ImageAccess(
        KubeletConfiguration(),
        records=records,
        node=NodeCredentials(tmp_path, lambda: NOW),
        programs=None,
        objects=NoCluster(dict),
        recorder=EventRecorder(lambda: NOW),
        registry=Metrics(),
    )
    is_ours = records.is_ours

    def counted(image: str, reference: str) -> bool:
        nonlocal reads
        reads += 1
        return is_ours(image, reference)

    monkeypatch.setattr(records, "is_ours", counted)
    pod = Pod(spec=PodSpec(containers=[]))

    async def usable() -> tuple[bool, bool, int]:
        first, second = [await access.may_use(pod, PRIVATE, "sha256:1") for _ in range(2)]
        return first, second, reads

    assert await usable() == (True, True, 1)
    await access.record_pull_intent(PRIVATE)
    assert await usable() == (False, False, 2)
    await access.record_image_pulled(PRIVATE, "sha256:1", Credential("user", PASSWORD))
    assert await usable() == (True, True, 3)
    await access.images_listed([], NOW + 2)
    assert await usable() == (True, True, 4)


# A node whose registry asks who is there


class Registry:
    """Record pulls (image, username). Images of registry.example.com need the password."""

    def __init__(self) -> None:
        self.pulls: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry, pull = Registry(), ImageService.pull_image

    async def asking(self: ImageService, request: cri.PullImageRequest) -> cri.PullImageResponse:
        name = request.image.image
        registry.pulls.append((name, request.auth.username))
        if name.startswith("registry.example.com") and request.auth.password != PASSWORD:
            raise Refused("pull access denied")
        return await pull(self, request)

    monkeypatch.setattr(ImageService, "pull_image", asking)
    return registry


def pull_secret(cluster: Cluster, name: str, password: str = PASSWORD) -> None:
    config = config_of(**{"registry.example.com": (f"user of {name}", password)})
    cluster.server.create(
        "/api/v1/namespaces/default/secrets",
        {
            "metadata": {"name": name},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64.b64encode(config).decode()},
        },
    )


async def run_private(cluster: Cluster, name: str, *secrets: str, **fields: Any) -> None:
    containers = [container(image=PRIVATE, **fields)]
    pull_secrets = [{"name": secret} for secret in secrets]
    await cluster.run(name, containers=containers, imagePullSecrets=pull_secrets)


def waits_for(reason: str) -> Any:
    def waiting(pod: Object | None) -> bool:
        statuses = (pod or {}).get("status", {}).get("containerStatuses", ())
        return bool(statuses) and statuses[0]["state"].get("waiting", {}).get("reason") == reason

    return waiting


async def test_a_pull_secret_opens_the_registry_and_the_image_is_for_its_owners(
    registry: Registry, joined: Joined, cluster: Cluster
) -> None:
    pull_secret(cluster, "wrong", "no")
    pull_secret(cluster, "good")
    pull_secret(cluster, "same")
    await joined.start()
    await run_private(cluster, "first", "wrong", "gone", "good")
    await cluster.ready("first")
    assert registry.pulls == [(PRIVATE, "user of wrong"), (PRIVATE, "user of good")]
    assert joined.node is not None
    said = [e.message for e in joined.node.recorder if e.reason == "FailedToRetrieveImagePullSecret"]
    assert said[0].startswith("Unable to retrieve some image pull secrets (gone);")
    await run_private(cluster, "again", "good")
    await cluster.ready("again")
    assert len(registry.pulls) == 2, "it is there, and the pod may use it"
    await run_private(cluster, "stranger")
    await cluster.wait_for("stranger", waits_for("ErrImagePull"))
    await run_private(cluster, "never", imagePullPolicy="Never")
    await cluster.wait_for("never", waits_for("ErrImageNeverPull"))
    pulled = len(registry.pulls)
    await joined.restart()
    await run_private(cluster, "later", "good")
    await cluster.ready("later")
    assert [user for _, user in registry.pulls[pulled:] if user] == []
    await run_private(cluster, "other", "same")
    await cluster.ready("other")
    assert (PRIVATE, "user of same") in registry.pulls[pulled:]


async def test_the_nodes_own_credentials_are_for_every_pod(
    registry: Registry, joined: Joined, cluster: Cluster
) -> None:
    joined.root.mkdir()
    (joined.root / "config.json").write_bytes(config_of(**{"*.example.com": ("node", PASSWORD)}))
    await joined.start()
    for name in ("one", "two"):
        await run_private(cluster, name)
        await cluster.ready(name)
    assert registry.pulls == [(PRIVATE, "node")]


async def test_an_image_that_was_there_before_is_for_all(
    registry: Registry, joined: Joined, cluster: Cluster, hollow: HollowRuntime
) -> None:
    hollow.images.add(PRIVATE)
    await joined.start()
    await run_private(cluster, "one")
    await cluster.ready("one")
    assert registry.pulls == []


async def test_an_image_is_not_pulled_until_its_pull_can_be_recorded(
    registry: Registry, joined: Joined, cluster: Cluster
) -> None:
    joined.root.mkdir()
    (joined.root / "image_manager").write_text("in the way")
    pull_secret(cluster, "good")
    await joined.start()
    await run_private(cluster, "one", "good")
    pod = await cluster.wait_for("one", waits_for("ErrImagePull"))
    assert pod is not None
    message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert message.startswith("Failed to record image pull intent")
    assert registry.pulls == []
