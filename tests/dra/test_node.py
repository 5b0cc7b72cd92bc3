"""A whole node: claims are prepared before the sandbox and given back before the cluster hears of the end."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from engine.node.pod.record_names import ACCEPTED
from engine.testing.dra_driver import PREPARE, UNPREPARE
from engine.wire import dra_v1_pb2 as wire
from engine.wire import podresources_v1_pb2 as v1
from engine.wire.podresources_v1_pb2_grpc import PodResourcesListerStub
from tests import records
from tests.cluster_rig import NODE, PODS, Object
from tests.dra_rig import DRIVER, RESOURCE, ClaimsRig
from tests.node_rig import container
from tests.waiting import eventually

INTERNAL = 13
OTHER = "other.example.com"
SLICES = f"{RESOURCE}/resourceslices"


async def test_a_container_gets_the_devices_of_its_claims(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    claims.claim("gpu")
    pod = await claims.run("p", "gpu")
    assert claims.cdi() == [[f"{DRIVER}/device=gpu"]]
    (status,) = pod["status"]["containerStatuses"]
    assert status["allocatedResourcesStatus"] == [
        {
            "name": "claim:gpu",
            "resources": [{"resourceID": f"{DRIVER}/device=gpu", "health": "Unknown"}],
        }
    ]
    await claims.delete()
    assert driver.prepared == {}
    assert [call.method for call in driver.calls] == [PREPARE, UNPREPARE]


async def test_containers_get_the_requests_that_they_name(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    driver.devices_of = lambda claim: [
        wire.Device(pool_name="p", device_name=n, request_names=[n], cdi_device_ids=[f"v/c={n}"])
        for n in ("a", "b")
    ]
    claims.claim("gpu")
    of = [container(n, resources={"claims": [{"name": "gpu", "request": n}]}) for n in ("a", "b")]
    await claims.run("p", "gpu", containers=[*of, container("neither")])
    assert sorted(claims.cdi()) == [[], ["v/c=a"], ["v/c=b"]]


async def test_a_claim_of_a_template_is_waited_for_and_has_to_be_the_pods(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    asked = container(resources={"claims": [{"name": "gpu"}]})
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    pod = await claims.cluster.run("p", containers=[asked], resourceClaims=[entry])
    await eventually(lambda: claims.messages() != [])
    assert claims.messages() == [
        'Failed to prepare dynamic resources: prepare dynamic resources: pod "default/p": '
        "ResourceClaim not created yet"
    ]
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "uid": pod["metadata"]["uid"],
        "controller": True,
    }
    claims.claim("p-gpu-x", ownerReferences=[owner])
    claims.reserve("p-gpu-x", pod)
    known = await claims.cluster.pod("p")
    assert known is not None
    made = [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]
    known = {**known, "status": {**known["status"], "resourceClaimStatuses": made}}
    claims.cluster.server.update(f"{PODS}/p/status", known)
    ready = await claims.cluster.ready("p")
    assert ready["status"]["resourceClaimStatuses"] == made, "they are not the node's to change"
    assert len(driver.prepared) == 1
    await claims.joined.restart()
    await claims.taken_on(driver, 2)
    await claims.delete()
    assert driver.prepared == {}


async def test_a_pod_that_never_started_is_deleted_at_once(claims: ClaimsRig) -> None:
    """kubernetes/kubernetes#139772 and #131957: no claim yet, and a driver that is not here."""
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    await claims.cluster.run("p", resourceClaims=[entry])
    claims.claim("gpu")
    await claims.ask("q", "gpu")
    await eventually(lambda: len(claims.messages()) == 2)
    assert any(f"DRA driver {DRIVER} is not registered" in text for text in claims.messages())
    await claims.delete("p")
    await claims.delete("q")


async def test_a_pod_starts_once_its_driver_registers(claims: ClaimsRig) -> None:
    claims.claim("gpu")
    await claims.ask("p", "gpu")
    await eventually(lambda: claims.messages() != [])
    await claims.driver()
    await claims.cluster.ready("p")
    assert len(claims.messages()) == 1, "said once while it stays the same"


async def test_a_driver_that_fails_is_named_and_asked_again(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    driver.errors["gpu"] = "no power"
    claims.claim("gpu")
    await claims.ask("p", "gpu")
    await eventually(lambda: claims.messages() != [])
    assert claims.messages() == [
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        f"NodePrepareResources failed for ResourceClaim gpu: no power (DRA driver {DRIVER})"
    ]
    driver.errors.clear()
    await claims.cluster.ready("p")


async def test_the_end_of_a_pod_is_reported_once_its_claims_are_unprepared(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    claims.claim("gpu")
    pod = await claims.run("p", "gpu", restartPolicy="Never")
    driver.faults[UNPREPARE] = INTERNAL
    (made,) = claims.hollow.service.records.containers
    claims.hollow.end_container(made, exit_code=0)
    await eventually(lambda: len(driver.called(UNPREPARE)) > 1)
    known = await claims.cluster.pod("p")
    assert known is not None
    assert known["status"]["phase"] == "Running"
    driver.faults.clear()
    await claims.cluster.until("p", "Succeeded")
    assert driver.prepared == {}
    assert pod["metadata"]["uid"] == known["metadata"]["uid"]


async def test_a_pod_without_grace_waits_for_its_drivers(claims: ClaimsRig) -> None:
    """kubernetes/kubernetes#131513"""
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu")
    driver.faults[UNPREPARE] = INTERNAL
    claims.cluster.server.delete(f"{PODS}/p", grace=0)
    await eventually(lambda: len(driver.called(UNPREPARE)) > 1)
    assert len(claims.node.pods()) == 1
    driver.faults.clear()
    await eventually(lambda: claims.node.pods() == [])
    assert driver.prepared == {}


async def test_a_deleted_pod_whose_driver_is_gone_keeps_nothing_from_other_pods(claims: ClaimsRig) -> None:
    """The scheduler no longer counts it: a pod that it sends instead must not wait for the driver."""
    driver = await claims.driver()
    claims.claim("gpu")
    node = claims.cluster.server.get(NODE)
    all_cpus = {"requests": {"cpu": node["status"]["allocatable"]["cpu"]}}
    asked = container(resources={"claims": [{"name": "gpu"}], **all_cpus})
    await claims.run("old", "gpu", containers=[asked], terminationGracePeriodSeconds=600)
    await driver.stop()
    claims.cluster.server.delete(f"{PODS}/old", grace=0)
    await claims.cluster.run("new", containers=[container(resources=all_cpus)])
    try:
        async with asyncio.timeout(20):
            await claims.cluster.ready("new")
        assert {pod.metadata.name for pod in claims.node.pods()} == {"old", "new"}
    finally:
        await driver.start()
    await eventually(lambda: {pod.metadata.name for pod in claims.node.pods()} == {"new"})
    assert driver.prepared == {}
    assert (await claims.cluster.ready("new"))["status"]["phase"] == "Running"


async def test_a_pod_replaces_one_of_its_name_that_only_has_claims_left(claims: ClaimsRig) -> None:
    """As the pod of a StatefulSet does, after its predecessor was deleted by force."""
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("web", "gpu")
    await driver.stop()
    claims.cluster.server.delete(f"{PODS}/web", grace=0)
    new = await claims.cluster.run("web")
    try:
        async with asyncio.timeout(20):
            await claims.cluster.ready("web")
        assert claims.node.running.containers.pod("default", "web").uid == new["metadata"]["uid"]
        assert len(claims.node.pods()) == 2
    finally:
        await driver.start()
    await eventually(lambda: len(claims.node.pods()) == 1)
    assert (await claims.cluster.ready("web"))["metadata"]["uid"] == new["metadata"]["uid"]


async def test_an_unknown_pod_whose_driver_is_gone_holds_up_no_other(claims: ClaimsRig) -> None:
    """What it holds is unknown while it runs, and nothing afterwards."""
    driver = await claims.driver()
    claims.claim("gpu")
    pod = await claims.run("old", "gpu")
    await claims.joined.stop()
    records.remove(claims.root, ACCEPTED, pod["metadata"]["uid"])
    await driver.stop()
    claims.cluster.server.delete(f"{PODS}/old", grace=0)
    await claims.joined.start()
    await claims.cluster.run("new")
    try:
        async with asyncio.timeout(20):
            await claims.cluster.ready("new")
        assert driver.prepared != {}
    finally:
        await driver.start()
    await eventually(lambda: driver.prepared == {})


async def test_claims_of_pods_deleted_while_no_agent_ran_are_unprepared(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu")
    await claims.joined.stop()
    claims.cluster.server.delete(f"{PODS}/p", grace=0)
    await claims.joined.start()
    await eventually(lambda: driver.prepared == {})


async def test_a_machine_that_starts_again_prepares_claims_before_containers(
    claims: ClaimsRig,
) -> None:
    """kubernetes/kubernetes#141433: what drivers made under /run is gone."""
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu")
    await claims.joined.stop()
    records = claims.hollow.service.records
    for made in list(records.containers.values()):
        records.drop_container(made)
    for sandbox in list(records.sandboxes.values()):
        records.drop_sandbox(sandbox)
    driver.prepared.clear()
    seen: list[int] = []
    driver.before = lambda method: seen.append(len(records.sandboxes))
    await claims.joined.start()
    await eventually(lambda: len(driver.prepared) == 1)
    await eventually(lambda: len(records.containers) == 1)
    assert seen == [0], "before the sandbox"
    assert claims.cdi()[-1] == [f"{DRIVER}/device=gpu"]


async def test_a_container_that_starts_again_keeps_its_devices_without_its_driver(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu")
    await claims.joined.restart()
    await claims.taken_on(driver, 2)
    await driver.stop()
    (made,) = claims.hollow.service.records.containers
    claims.hollow.end_container(made, exit_code=1)
    await eventually(lambda: len(claims.cdi()) == 2)
    assert claims.cdi()[1] == [f"{DRIVER}/device=gpu"]
    assert len(driver.called(PREPARE)) == 1
    await driver.start()


async def test_a_lost_state_file_is_made_again_from_the_claims_of_running_pods(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu")
    await claims.joined.stop()
    (claims.root / "dra_manager_state").write_text("{}")
    await claims.joined.start()
    await eventually(lambda: len(driver.called(PREPARE)) == 2)
    await claims.delete()
    assert driver.prepared == {}


async def test_device_health_appears_in_the_pod_status(claims: ClaimsRig) -> None:
    driver = await claims.driver(tells_health=True)
    claims.claim("gpu")
    await claims.run("p", "gpu")
    await driver.report(("dev-gpu", "Unhealthy", "too hot"))

    def unhealthy(pod: Object | None) -> bool:
        assert pod is not None
        (status,) = pod["status"]["containerStatuses"]
        (shown,) = status["allocatedResourcesStatus"][0]["resources"]
        return bool(
            shown == {"resourceID": f"{DRIVER}/device=gpu", "health": "Unhealthy", "message": "too hot"}
        )

    await claims.cluster.wait_for("p", unhealthy)


async def test_an_extended_resource_may_be_a_claim(claims: ClaimsRig) -> None:
    """No device plugin offers it, and the name of the second is one that no plugin can have."""
    driver = await claims.driver()
    claims.claim("ext")
    names = ("example.com/gpu", "deviceclass.resource.kubernetes.io/gpu")
    asked = [
        container(n, resources={"limits": {r: "1"}, "requests": {r: "1"}})
        for n, r in zip("ab", names, strict=True)
    ]
    pod = await claims.cluster.run("p", node="", containers=asked)
    claims.reserve("ext", pod)
    mappings = [
        {"containerName": n, "resourceName": r, "requestName": "r"} for n, r in zip("ab", names, strict=True)
    ]
    status = {"resourceClaimName": "ext", "requestMappings": mappings}
    known = {**pod, "status": {**pod["status"], "extendedResourceClaimStatus": status}}
    claims.cluster.server.update(f"{PODS}/p/status", known)
    await claims.bind("p")
    ready = await claims.cluster.ready("p")
    assert ready["status"]["extendedResourceClaimStatus"] == status
    assert claims.cdi() == [[f"{DRIVER}/device=ext"]] * 2
    await claims.delete()
    assert driver.prepared == {}


async def pod_resources(claims: ClaimsRig) -> v1.ListPodResourcesResponse:
    socket = claims.root / "pod-resources/kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        answer: v1.ListPodResourcesResponse = await stub.List(v1.ListPodResourcesRequest())
    return answer


async def test_pod_resources_show_the_devices_of_claims(claims: ClaimsRig) -> None:
    await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu")
    (pod,) = (await pod_resources(claims)).pod_resources
    (resource,) = pod.containers[0].dynamic_resources
    assert (resource.claim_name, resource.claim_namespace) == ("gpu", "default")
    (device,) = resource.claim_resources
    assert (device.driver_name, device.pool_name, device.device_name) == (DRIVER, "pool", "dev-gpu")
    assert [each.name for each in device.cdi_devices] == [f"{DRIVER}/device=gpu"]


async def test_slices_of_this_node_are_deleted_when_the_agent_starts(claims: ClaimsRig) -> None:
    server = claims.cluster.server
    for node, driver in (("n1", DRIVER), ("n1", OTHER), ("n2", DRIVER)):
        spec = {"nodeName": node, "driver": driver, "pool": {"name": node}}
        server.create(SLICES, {"metadata": {"name": f"{node}-{driver}"}, "spec": spec})
    await claims.joined.restart()
    await eventually(lambda: [s["metadata"]["name"] for s in server.list(SLICES)] == [f"n2-{DRIVER}"])


async def test_slices_that_the_api_server_does_not_know_are_not_deleted_again_and_again(
    claims: ClaimsRig, caplog: pytest.LogCaptureFixture
) -> None:
    """An API server before v1.34 has no `resource.k8s.io/v1`."""
    claims.cluster.server.fail(404, path="/resourceslices", method="DELETE", times=None)
    async with asyncio.timeout(5):
        await claims.node.running._claims.drivers._wipe(DRIVER)
    assert "cannot be deleted" not in caplog.text


def device(name: str = "d", *cdi: str) -> wire.Device:
    return wire.Device(pool_name="pool", device_name=name, cdi_device_ids=cdi)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (None, "NodePrepareResources returned result for unknown claim UID not-asked"),
        ([device(f"d{number}") for number in range(5000)], "the driver named more than 4096 devices"),
        ([device("")], "the driver named a device without a name: pool 'pool', device ''"),
        (
            [device("d", "v/c=../../etc\n")],
            "the driver named the CDI device 'v/c=../../etc\\n', which is not",
        ),
    ],
    ids=["stray", "thousands", "no name", "CDI"],
)
async def test_one_bad_driver_gets_one_event_and_does_not_affect_others(
    claims: ClaimsRig, devices: list[wire.Device] | None, said: str
) -> None:
    bad = await claims.driver("bad.example.com")
    await claims.driver()
    claims.claim("bad", drivers=["bad.example.com"])
    claims.claim("good")
    good_devices = bad.devices_of
    if devices is None:
        bad.strays = ["not-asked"]
    else:
        bad.devices_of = lambda claim: devices
    await claims.ask("p", "bad")
    await claims.run("q", "good")
    await eventually(lambda: len(bad.called(PREPARE)) > 1)
    (message,) = claims.messages()
    assert said in message
    assert message.endswith("(DRA driver bad.example.com)")
    assert len(message) < 1024
    bad.strays, bad.devices_of = [], good_devices
    await claims.cluster.ready("p")


async def test_shares_of_one_device_are_told_apart_by_their_ids(claims: ClaimsRig) -> None:
    """Consumable capacity: the scheduler gives one device to several claims."""
    driver = await claims.driver()
    driver.devices_of = lambda claim: [
        wire.Device(
            pool_name="pool",
            device_name="nic",
            share_id=f"share-{claim.name}",
            cdi_device_ids=[f"{DRIVER}/device={claim.name}"],
        )
    ]
    for name in "ab":
        claims.claim(name)
        await claims.run(name, name)
    await claims.joined.restart()
    await claims.taken_on(driver, 2)
    expected = {name: [("nic", f"share-{name}")] for name in "ab"}

    async def listed() -> bool:
        """Tell whether the API of pod resources lists each pod's device and share; a restarted agent lists
        a pod late."""
        return {
            pod.name: [(used.device_name, used.share_id) for used in resource.claim_resources]
            for pod in (await pod_resources(claims)).pod_resources
            for resource in pod.containers[0].dynamic_resources
        } == expected

    await eventually(listed)
    await claims.delete("a")
    assert [claim[0].share_id for claim in driver.prepared.values()] == ["share-b"]
    assert driver.wrong == []


async def test_a_pod_that_is_evicted_gives_its_claims_back_first(claims: ClaimsRig) -> None:
    driver = await claims.driver()
    claims.claim("gpu")
    await claims.run("p", "gpu", activeDeadlineSeconds=1)
    pod = await claims.cluster.until("p", "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert driver.prepared == {}


async def test_a_claim_is_kept_in_the_kubelets_file(claims: ClaimsRig) -> None:
    await claims.driver()
    claim = claims.claim("gpu")
    pod = await claims.run("p", "gpu")
    data = json.loads(json.loads((claims.root / "dra_manager_state").read_text())["Data"])
    (kept,) = data["ClaimInfoStateList"]
    assert kept["ClaimUID"] == claim["metadata"]["uid"]
    assert kept["PodUIDs"] == {pod["metadata"]["uid"]: {}}


async def test_the_claims_of_a_node_are_described(claims: ClaimsRig) -> None:
    driver = await claims.driver(tells_health=True)
    claims.claim("gpu")
    await claims.run("p", "gpu")
    await driver.report(("dev-gpu", "Unhealthy", "too hot"))
    devices = claims.node.components["devices"]

    def health() -> str:
        (claim,) = devices.describe()["claims"]  # type: ignore[attr-defined]
        (device,) = claim["devices"]
        return str(device["health"])

    await eventually(lambda: health() == "Unhealthy")
    (claim,) = devices.describe()["claims"]  # type: ignore[attr-defined]
    assert (claim["claim"], claim["pods"], claim["prepared"]) == ("default/gpu", ["default/p"], True)
    assert claim["devices"] == [
        {
            "driver": DRIVER,
            "pool": "pool",
            "device": "dev-gpu",
            "share": None,
            "requests": [],
            "cdi": [f"{DRIVER}/device=gpu"],
            "health": "Unhealthy",
            "message": "too hot",
            "numa": None,
        }
    ]


@pytest.mark.parametrize("gate", ["ResourceHealthStatus", "ResourceHealthStatusMessage"])
async def test_gates_take_health_or_its_message_out_of_the_status(claims: ClaimsRig, gate: str) -> None:
    await claims.joined.stop()
    claims.joined.config.feature_gates = {gate: False}
    await claims.joined.start()
    driver = await claims.driver(tells_health=True)
    await driver.report(("dev-gpu", "Unhealthy", "too hot"))
    claims.claim("gpu")
    await claims.run("p", "gpu")

    def shown(pod: Object | None) -> list[Object]:
        assert pod is not None
        (status,) = pod["status"]["containerStatuses"]
        return [each for of in status.get("allocatedResourcesStatus", ()) for each in of["resources"]]

    if gate == "ResourceHealthStatus":
        assert shown(await claims.cluster.pod("p")) == []
        return
    unhealthy = {"resourceID": f"{DRIVER}/device=gpu", "health": "Unhealthy"}
    await claims.cluster.wait_for("p", lambda pod: shown(pod) == [unhealthy])
