"""Volumes that a driver makes for one pod: from its registration to the end of the pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.csi.paths import attachment_name, ephemeral_handle
from engine.csi.volume import TOKENS
from engine.host.mountinfo import mounts_below
from tests.csi_rig import DRIVER, CsiRig
from tests.waiting import eventually

pytestmark = pytest.mark.root


async def test_a_pod_gets_a_volume_and_gives_it_back(csi: CsiRig) -> None:
    csi.known()
    driver = await csi.driver()
    attributes = {"driver": DRIVER, "volumeAttributes": {"size": "small"}, "fsType": "ext4"}
    pod = await csi.run({"csi": attributes})
    uid = pod["metadata"]["uid"]
    handle = ephemeral_handle(uid, "v")
    (asked,) = driver.called("NodePublishVolume")
    assert asked.volume_id == handle
    assert asked.target_path == str(csi.published(pod) / "mount")
    assert dict(asked.volume_context) == {"size": "small"}
    assert (asked.staging_target_path, asked.readonly) == ("", False)
    assert asked.volume_capability.mount.fs_type == "ext4"
    assert asked.volume_capability.access_mode.mode == 1
    assert driver.called("NodeStageVolume") == []
    (driver.volume(handle) / "f").write_text("in the volume")
    assert (csi.published(pod) / "mount/f").read_text() == "in the volume"
    assert json.loads((csi.published(pod) / "vol_data.json").read_text()) == {
        "attachmentID": attachment_name(handle, DRIVER, "n1"),
        "driverName": DRIVER,
        "nodeName": "n1",
        "specVolID": "v",
        "volumeHandle": handle,
        "volumeLifecycleMode": "Ephemeral",
    }
    await csi.delete()
    (gone,) = driver.called("NodeUnpublishVolume")
    assert (gone.volume_id, gone.target_path) == (asked.volume_id, asked.target_path)
    assert csi.is_cleaned_up()
    assert (driver.volume(handle) / "f").exists()


async def test_a_pod_that_has_ended_holds_no_volume(csi: CsiRig) -> None:
    csi.known()
    driver = await csi.driver()
    pod = await csi.run(restartPolicy="Never", activeDeadlineSeconds=1)
    await csi.cluster.until("p", "Failed")
    await eventually(lambda: len(driver.called("NodeUnpublishVolume")) == 1)
    await eventually(lambda: not csi.published(pod).exists())
    assert mounts_below(csi.root) == []


async def test_a_driver_receives_the_pod_and_its_service_account(csi: CsiRig) -> None:
    tokens = [{"audience": "vault"}, {"audience": "", "expirationSeconds": 3700}]
    csi.known(podInfoOnMount=True, tokenRequests=tokens)
    driver = await csi.driver()
    pod = await csi.run(serviceAccountName="builder")
    (asked,) = driver.called("NodePublishVolume")
    context = dict(asked.volume_context)
    given = json.loads(context.pop("csi.storage.k8s.io/serviceAccount.tokens"))
    assert context == {
        "csi.storage.k8s.io/pod.name": "p",
        "csi.storage.k8s.io/pod.namespace": "default",
        "csi.storage.k8s.io/pod.uid": pod["metadata"]["uid"],
        "csi.storage.k8s.io/serviceAccount.name": "builder",
        "csi.storage.k8s.io/ephemeral": "true",
    }
    assert {audience: set(token) for audience, token in given.items()} == {
        "vault": {"token", "expirationTimestamp"},
        "": {"token", "expirationTimestamp"},
    }
    specs = [r.value["spec"] for r in csi.cluster.server.requests if r.path.endswith("builder/token")]
    assert [spec["expirationSeconds"] for spec in specs] == [3600, 3700]
    assert [spec.get("audiences") for spec in specs] == [["vault"], None]


@pytest.mark.parametrize("in_secrets", [False, True])
async def test_secrets_and_tokens_go_where_the_driver_wants_them(csi: CsiRig, in_secrets: bool) -> None:
    csi.known(tokenRequests=[{"audience": "a"}], serviceAccountTokenInSecrets=in_secrets)
    secret = {"metadata": {"name": "s"}, "data": {"key": "dmFsdWU="}}
    csi.cluster.server.create("/api/v1/namespaces/default/secrets", secret)
    driver = await csi.driver()
    await csi.run({"csi": {"driver": DRIVER, "nodePublishSecretRef": {"name": "s"}, "readOnly": True}})
    (asked,) = driver.called("NodePublishVolume")
    token = "csi.storage.k8s.io/serviceAccount.tokens"
    assert asked.secrets["key"] == "value"
    assert (token in asked.secrets, token in asked.volume_context) == (in_secrets, not in_secrets)
    assert asked.readonly


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, f'volume mode "Ephemeral" not supported by driver {DRIVER} (no CSIDriver object)'),
        (
            {"volumeLifecycleModes": ["Persistent"]},
            f'volume mode "Ephemeral" not supported by driver {DRIVER} (only supports ["Persistent"])',
        ),
        ({"fsGroupPolicy": ""}, "expected valid fsGroupPolicy, received nil value or empty string"),
    ],
)
async def test_a_volume_unknown_to_the_driver_delays_the_pod(
    csi: CsiRig, spec: dict[str, Any] | None, words: str
) -> None:
    if spec is not None:
        csi.known(**spec)
    driver = await csi.driver()
    await csi.ask()
    await eventually(lambda: len(csi.messages()) == 1)
    assert csi.messages()[0].startswith(
        'MountVolume.SetUp failed for volume "v" : kubernetes.io/csi: mounter.'
    )
    assert csi.messages()[0].endswith(words)
    assert driver.called("NodePublishVolume") == []
    await csi.delete()
    assert csi.is_cleaned_up()


async def test_a_refusal_is_reported_in_the_drivers_words_and_retried(csi: CsiRig) -> None:
    csi.known()
    driver = await csi.driver()
    driver.faults["NodePublishVolume"] = 3
    pod = await csi.ask()
    await eventually(lambda: len(driver.called("NodePublishVolume")) > 1)
    assert csi.messages() == [
        'MountVolume.SetUp failed for volume "v" : '
        "rpc error: code = InvalidArgument desc = told to fail: NodePublishVolume"
    ]
    driver.faults.clear()
    await csi.cluster.ready("p")
    assert (csi.published(pod) / "mount").is_dir()


async def test_a_pod_waits_for_a_driver_that_registers_later(csi: CsiRig) -> None:
    csi.known()
    await csi.ask()
    await csi.driver()
    await csi.cluster.ready("p")


async def test_a_missing_driver_is_reported(csi: CsiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.csi.drivers.CsiDrivers.wait_for.__defaults__", (0.01,))
    csi.known()
    await csi.ask()
    await eventually(lambda: len(csi.messages()) == 1)
    assert csi.messages() == [
        'MountVolume.SetUp failed for volume "v" : kubernetes.io/csi: mounter.SetUpAt failed to get CSI '
        f"client: driver name {DRIVER} not found in the list of registered CSI drivers"
    ]


async def test_a_driver_that_wants_it_is_asked_again_with_tokens_that_hold(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has the current token; a published volume stays as it is."""
    monkeypatch.setattr("engine.node.volumes.volume_manager.REPUBLISH_SECONDS", 0.0)
    csi.known(requiresRepublish=True, tokenRequests=[{"audience": "vault", "expirationSeconds": 2}])
    driver = await csi.driver()
    await csi.run()

    def tokens() -> list[str]:
        asked = driver.called("NodePublishVolume")
        return [json.loads(each.volume_context[TOKENS])["vault"]["token"] for each in asked]

    await eventually(lambda: len(tokens()) >= 3 and len(set(tokens())) >= 2)
    assert len({each.target_path for each in driver.called("NodePublishVolume")}) == 1
    assert driver.called("NodeUnpublishVolume") == []
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    asked = len(tokens())
    assert len(driver.called("NodeUnpublishVolume")) == 1
    assert driver.calls[-1].method == "NodeUnpublishVolume", f"{asked} times, and never after its end"
