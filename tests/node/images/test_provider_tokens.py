"""Credential providers with service account tokens: what they are shown, for whom answers are good, and which
configurations are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, NotFound
from engine.api.events import EventRecorder
from engine.api.meta import ObjectMeta
from engine.api.objects.cluster_objects import Secret, ServiceAccount
from engine.api.pod import Pod, PodSpec
from engine.metrics import Registry
from engine.node.images.access import ImageAccess
from engine.node.images.docker_config import NodeCredentials
from engine.node.images.keyring import AccountSource, Credential, SecretSource
from engine.node.images.providers import CredentialProviders, load_programs
from engine.node.images.pull_records import PullRecords

IMAGE = "r.example.com/a"
VERSION = "credentialprovider.kubelet.k8s.io/v1"
ATTRIBUTES = {
    "serviceAccountTokenAudience": "registry",
    "cacheType": "ServiceAccount",
    "requireServiceAccount": True,
    "requiredServiceAccountAnnotationKeys": ["example.com/role"],
    "optionalServiceAccountAnnotationKeys": ["example.com/tenant"],
}
PROGRAM = """#!/bin/sh
cat >> "$ASKED"; echo >> "$ASKED"
cat <<END
{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
 "cacheKeyType": "Registry", "cacheDuration": "5m",
 "auth": {"*.example.com": {"username": "u", "password": "$1"}}}
END
"""


@dataclass
class Token:
    text: str


class Accounts:
    """Serve one service account for all pods, with tokens that name the pod."""

    def __init__(self, **annotations: str) -> None:
        self.annotations = {name.replace("_", "/"): value for name, value in annotations.items()}
        self.uid = "account-uid"

    async def service_account(self, pod: Pod) -> ServiceAccount:
        if pod.spec.service_account_name == "gone":
            raise NotFound("not found", subject="serviceaccounts gone")
        name = pod.spec.service_account_name
        return ServiceAccount(ObjectMeta(name=name, uid=self.uid, annotations=self.annotations))

    async def token(self, pod: Pod, audience: str, seconds: int) -> Token:
        return Token(f"token of {pod.uid} for {audience}")


def pod(uid: str, account: str = "builder") -> Pod:
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="team", uid=uid), spec=PodSpec(service_account_name=account)
    )


def write(directory: Path, password: str = "it", version: str = VERSION, **attributes: Any) -> Path:
    (directory / "bin").mkdir(exist_ok=True)
    (directory / "bin/ask").write_text(PROGRAM)
    (directory / "bin/ask").chmod(0o755)
    provider = {
        "name": "ask",
        "apiVersion": version,
        "matchImages": ["*.example.com"],
        "defaultCacheDuration": "1m",
        "args": [password],
        "env": [{"name": "ASKED", "value": str(directory / "asked")}],
        "tokenAttributes": {**ATTRIBUTES, **attributes},
    }
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [provider],
    }
    (directory / "config.yaml").write_text(json.dumps(document))
    return directory / "config.yaml"


def programs(directory: Path, password: str = "it", **attributes: Any) -> CredentialProviders:
    return load_programs(write(directory, password, **attributes), directory / "bin", lambda: 0.0)


def provider_requests(directory: Path) -> list[dict[str, Any]]:
    file = directory / "asked"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_a_program_gets_the_token_and_the_annotations_that_it_names(tmp_path: Path):
    accounts = Accounts(**{"example.com_role": "puller", "example.com_tenant": "t", "other": "secret"})
    (found,) = await programs(tmp_path).credentials(IMAGE, pod("p1"), accounts)
    assert provider_requests(tmp_path) == [
        {
            "apiVersion": VERSION,
            "kind": "CredentialProviderRequest",
            "image": IMAGE,
            "serviceAccountToken": "token of p1 for registry",
            "serviceAccountAnnotations": {"example.com/role": "puller", "example.com/tenant": "t"},
        }
    ]
    (credential,) = found.values()
    assert credential.account is not None
    assert (credential.account.namespace, credential.account.name, credential.account.uid) == (
        "team",
        "builder",
        "account-uid",
    )


@pytest.mark.parametrize(("cache_type", "times"), [("ServiceAccount", 2), ("Token", 4)])
async def test_an_answer_is_good_for_its_account_or_its_token(tmp_path: Path, cache_type: str, times: int):
    accounts = Accounts(**{"example.com_role": "puller"})
    found = programs(tmp_path, cacheType=cache_type)
    for uid in ("p1", "p1", "p2"):
        await found.credentials(IMAGE, pod(uid), accounts)
    accounts.uid = "made again"
    for uid in ("p1", "p2"):
        await found.credentials(IMAGE, pod(uid), accounts)
    assert len(provider_requests(tmp_path)) == times


@pytest.mark.parametrize(
    ("of", "required", "answers", "calls"),
    [
        (pod("p", account=""), True, [{}], 0),
        (pod("p", account="gone"), True, [], 0),
        (pod("p"), True, [{}], 0),
    ],
    ids=["no account", "an account that is gone", "a required annotation is missing"],
)
async def test_a_pod_that_the_program_is_not_for(
    tmp_path: Path, of: Pod, required: bool, answers: list[Any], calls: int
):
    found = programs(tmp_path, requireServiceAccount=required)
    assert await found.credentials(IMAGE, of, Accounts()) == answers
    assert len(provider_requests(tmp_path)) == calls


async def test_a_static_pod_is_asked_for_without_a_token_where_none_is_required(tmp_path: Path):
    found = programs(tmp_path, requireServiceAccount=False, requiredServiceAccountAnnotationKeys=[])
    (credentials,) = await found.credentials(IMAGE, pod("p", account=""), Accounts())
    (request,) = provider_requests(tmp_path)
    assert "serviceAccountToken" not in request
    (credential,) = credentials.values()
    assert credential.account is None


@pytest.mark.parametrize(("cache_type", "given"), [("ServiceAccount", 0), ("Token", 1)])
async def test_the_token_is_no_password_for_other_pods(tmp_path: Path, cache_type: str, given: int):
    accounts = Accounts(**{"example.com_role": "puller"})
    found = programs(tmp_path, "token of p1 for registry", cacheType=cache_type)
    assert len(await found.credentials(IMAGE, pod("p1"), accounts)) == given


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ({"serviceAccountTokenAudience": ""}, ".serviceAccountTokenAudience: expected an audience"),
        ({"requireServiceAccount": None}, ".requireServiceAccount: expected true or false"),
        ({"cacheType": ""}, ".cacheType: expected one of ServiceAccount, Token; got ''"),
        ({"cacheType": "Pod"}, ".cacheType: expected one of ServiceAccount, Token; got 'Pod'"),
        (
            {"requireServiceAccount": False},
            ".requiredServiceAccountAnnotationKeys: requireServiceAccount cannot be false when "
            "requiredServiceAccountAnnotationKeys is set",
        ),
        (
            {"optionalServiceAccountAnnotationKeys": ["a b"]},
            ".optionalServiceAccountAnnotationKeys: 'a b' is not the name of an annotation",
        ),
        (
            {"optionalServiceAccountAnnotationKeys": ["a", "a"]},
            ".optionalServiceAccountAnnotationKeys: 'a' is given twice",
        ),
        (
            {"optionalServiceAccountAnnotationKeys": ["example.com/role"]},
            ": annotation keys cannot be both required and optional: example.com/role",
        ),
        (
            {"version": "credentialprovider.kubelet.k8s.io/v1beta1"},
            f": tokenAttributes is only supported for {VERSION} API version",
        ),
    ],
)
def test_wrong_attributes_are_named(tmp_path: Path, attributes: dict[str, Any], fault: str):
    config = write(tmp_path, **attributes)
    with pytest.raises(InvalidInput) as caught:
        load_programs(config, tmp_path / "bin", lambda: 0.0)
    assert str(caught.value) == f"{config}: providers[0].tokenAttributes{fault}"


def test_with_the_gate_off_tokens_are_refused(tmp_path: Path):
    config = write(tmp_path)
    with pytest.raises(InvalidInput, match="KubeletServiceAccountTokenForCredentialProviders feature gate"):
        load_programs(config, tmp_path / "bin", lambda: 0.0, tokens=False)


async def test_an_image_pulled_with_a_token_is_for_pods_of_that_account(tmp_path: Path):
    class Objects(Accounts):
        async def secret(self, pod: Pod, name: str) -> Secret:
            raise NotFound(name)

    accounts = Objects()
    records = PullRecords(tmp_path, lambda: 0.0)
    access = ImageAccess(
        KubeletConfiguration(),
        records=records,
        node=NodeCredentials(tmp_path, lambda: 0.0),
        programs=None,
        objects=accounts,
        recorder=EventRecorder(lambda: 0.0),
        registry=Registry(),
    )
    await access.record_pull_intent(IMAGE)
    account = AccountSource("team", "builder", "account-uid")
    await access.record_image_pulled(IMAGE, "sha256:1", Credential("u", "p", account=account))
    (file,) = (tmp_path / "image_manager/pulled").iterdir()
    assert json.loads(file.read_bytes())["credentialMapping"] == {
        IMAGE: {"kubernetesServiceAccounts": [{"uid": "account-uid", "namespace": "team", "name": "builder"}]}
    }
    assert await access.may_use(pod("p2"), IMAGE, "sha256:1")
    assert not await access.may_use(pod("p3", account="other"), IMAGE, "sha256:1")
    accounts.uid = "made again"
    assert not await access.may_use(pod("p4"), IMAGE, "sha256:1")
    secret = Credential("u", "p", source=SecretSource("team", "s", "1"))
    await access.record_image_pulled(IMAGE, "sha256:1", secret)
    known = records.pull_credentials(IMAGE, "sha256:1")
    assert known is not None
    assert [each.name for each in known.kubernetes_service_accounts or ()] == ["builder"]
