"""Claims of pods and real drivers at real sockets: prepared once, given back once, whatever fails."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine.api.errors import KubengineError, Refused
from engine.dra import checkpoint
from engine.testing.dra_driver import HANGS, PREPARE, UNPREPARE, SampleDraDriver
from engine.wire import dra_v1_pb2 as wire
from tests.dra.rig import DRIVER, DraRig
from tests.waiting import eventually

INTERNAL = 13
OTHER = "other.example.com"


def kept(dra: DraRig) -> list[str]:
    """Return the names of the claims in the state file, or [] without a file."""
    path = dra.root / "dra_manager_state"
    return [claim.name for claim in checkpoint.decode(path.read_bytes())] if path.exists() else []


async def test_a_pods_claims_are_prepared_in_one_call_a_driver_and_given_back(dra: DraRig) -> None:
    one, two = await dra.driver(), await dra.driver(OTHER)
    dra.claim("a", "p")
    dra.claim("b", "p", drivers=[DRIVER, OTHER])
    pod = dra.pod("p", "a", "b")
    await dra.manager.prepare(pod)
    await dra.manager.prepare(pod)
    assert one.called(PREPARE) == [("uid-a", "uid-b")]
    assert two.called(PREPARE) == [("uid-b",)]
    assert kept(dra) == ["a", "b"]
    (container,) = pod.spec.containers
    assert sorted(dra.manager.container_devices(pod, container)) == [
        f"{DRIVER}/device=a", f"{DRIVER}/device=b", f"{OTHER}/device=b",
    ]  # fmt: skip
    await dra.manager.unprepare("p")
    await dra.manager.unprepare("p")
    assert one.called(UNPREPARE) == [("uid-a", "uid-b")]
    assert one.prepared == two.prepared == {}
    assert kept(dra) == []


@pytest.mark.parametrize("service", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_a_driver_is_called_by_the_service_that_it_has(dra: DraRig, service: str) -> None:
    driver = await dra.driver(services=[service])
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    await dra.manager.unprepare("p")
    assert {call.service for call in driver.calls} == {service}


async def test_the_first_known_service_of_the_drivers_list_is_used(dra: DraRig) -> None:
    driver = await dra.driver(services=["v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"])
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    assert driver.calls[0].service == "v1beta1.DRAPlugin"


async def test_a_claim_of_two_pods_is_prepared_once_and_unprepared_with_the_last(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p", "q")
    await asyncio.gather(*(dra.manager.prepare(dra.pod(name, "a")) for name in "pq"))
    assert driver.called(PREPARE) == [("uid-a",)]
    await dra.manager.unprepare("p")
    assert driver.called(UNPREPARE) == []
    await dra.manager.unprepare("q")
    assert driver.called(UNPREPARE) == [("uid-a",)]


async def test_a_request_names_the_devices_that_a_container_gets(dra: DraRig) -> None:
    driver = await dra.driver()
    driver.devices_of = lambda claim: [
        wire.Device(pool_name="p", device_name=n, request_names=r, cdi_device_ids=[f"v/c={n}"])
        for n, r in (("big", ["gpu"]), ("small", ["other"]), ("every", []))
    ]
    dra.claim("a", "p")
    pod = dra.pod("p", "a", request="gpu/large")
    await dra.manager.prepare(pod)
    assert dra.manager.container_devices(pod, pod.spec.containers[0]) == ["v/c=big", "v/c=every"]


# What is wrong with a claim or a driver


async def test_a_claim_with_a_missing_driver_leaves_no_record(dra: DraRig) -> None:
    dra.claim("a", "p")
    with pytest.raises(Refused, match=f"^prepare dynamic resources: DRA driver {DRIVER} is not registered$"):
        await dra.manager.prepare(dra.pod("p", "a"))
    await dra.manager.unprepare("p")
    assert kept(dra) == []


async def test_a_claim_that_is_missing_or_another_pods_is_not_prepared(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("theirs", "q")
    for name, said in (
        ("none", 'fetch ResourceClaim none: resourceclaims.resource.k8s.io "none" not found'),
        ("theirs", r"pod p \(p\) is not allowed to use ResourceClaim theirs"),
    ):
        with pytest.raises(Refused, match=said):
            await dra.manager.prepare(dra.pod("p", name))
    assert driver.calls == []


async def test_a_claim_of_the_same_name_waits_until_the_old_one_is_unprepared(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    dra.claim("a", "q", uid="new")
    text = "old ResourceClaim with same name a and different UID uid-a still exists"
    with pytest.raises(Refused, match=text):
        await dra.manager.prepare(dra.pod("q", "a"))
    await dra.manager.unprepare("p")
    await dra.manager.prepare(dra.pod("q", "a"))
    assert driver.prepared.keys() == {"new"}


@pytest.mark.parametrize("how", ["error", "status", "skips", "stray", "name", "cdi"])
async def test_a_failed_prepare_is_rolled_back_with_all_drivers(dra: DraRig, how: str) -> None:
    """kubernetes/kubernetes#137945"""
    good, bad = await dra.driver(), await dra.driver(OTHER)
    said = {
        "error": "NodePrepareResources failed for ResourceClaim b: no power",
        "status": "NodePrepareResources: rpc error: code = Internal desc = told to fail",
        "skips": "NodePrepareResources skipped 1 ResourceClaims",
        "stray": "NodePrepareResources returned result for unknown claim UID not-asked",
        "name": "the driver named a device without a name",
        "cdi": "the driver named the CDI device 'no such form'",
    }[how]
    if how == "error":
        bad.errors["b"] = "no power"
    elif how == "status":
        bad.faults[PREPARE] = INTERNAL
    elif how == "skips":
        bad.skips.add("b")
    elif how == "stray":
        bad.strays = ["not-asked"]
    elif how == "name":
        bad.devices_of = lambda claim: [wire.Device()]
    else:
        bad.devices_of = lambda claim: [
            wire.Device(pool_name="p", device_name="d", cdi_device_ids=["no such form"])
        ]
    dra.claim("a", "p")
    dra.claim("b", "p", drivers=[DRIVER, OTHER])
    pod = dra.pod("p", "a", "b")
    with pytest.raises(Refused, match=said):
        await dra.manager.prepare(pod)
    assert good.prepared == {}
    bad.errors.clear()
    bad.faults.clear()
    bad.skips.clear()
    bad.strays.clear()
    bad.devices_of = bad._device
    await dra.manager.prepare(pod)
    assert good.prepared.keys() == {"uid-a", "uid-b"}
    await dra.manager.unprepare("p")
    assert good.prepared == bad.prepared == {}
    assert kept(dra) == []
    assert good.wrong == bad.wrong == []


async def test_a_pod_that_never_started_waits_for_no_driver(dra: DraRig) -> None:
    """kubernetes/kubernetes#131957: what was rolled back is not asked for again."""
    good, bad = await dra.driver(), await dra.driver(OTHER)
    bad.errors["a"] = "no power"
    dra.claim("a", "p", drivers=[DRIVER, OTHER])
    bad.faults[UNPREPARE] = INTERNAL
    with pytest.raises(Refused):
        await dra.manager.prepare(dra.pod("p", "a"))
    assert good.prepared == {}
    bad.errors.clear()
    bad.faults.clear()
    await dra.manager.unprepare("p")
    assert len(good.called(UNPREPARE)) == 1
    assert len(bad.called(UNPREPARE)) == 2, "it failed to roll back, and is asked again"


async def test_a_failed_attempt_takes_nothing_from_a_pod_that_runs(dra: DraRig) -> None:
    """Also not where another agent prepared it, and this one is to prepare it again for a second pod."""
    good, bad = await dra.driver(), await dra.driver(OTHER)
    dra.claim("a", "p", "q", drivers=[DRIVER, OTHER])
    p = dra.pod("p", "a")
    await dra.manager.prepare(p)
    await dra.restart()
    bad.errors["a"] = "no power"
    with pytest.raises(Refused, match="no power"):
        await dra.manager.prepare(dra.pod("q", "a"))
    assert good.prepared.keys() == {"uid-a"}
    assert len(dra.manager.container_devices(p, p.spec.containers[0])) == 2
    await dra.manager.unprepare("q")
    assert good.called(UNPREPARE) == bad.called(UNPREPARE) == []


async def test_a_driver_that_never_answers_does_not_delay_others(dra: DraRig) -> None:
    dra.call_seconds = 0.2
    await dra.restart()
    good, bad = await dra.driver(), await dra.driver(OTHER)
    bad.faults[PREPARE] = HANGS
    dra.claim("a", "p", drivers=[DRIVER, OTHER])
    dra.claim("b", "q")
    with pytest.raises(Refused, match="NodePrepareResources: rpc error: code = DeadlineExceeded"):
        await asyncio.gather(dra.manager.prepare(dra.pod("p", "a")), dra.manager.prepare(dra.pod("q", "b")))
    await eventually(lambda: "uid-b" in good.prepared)
    assert good.prepared.keys() == {"uid-b"}
    await dra.manager.unprepare("p")
    assert bad.called(UNPREPARE) == [("uid-a",)], "it may have done something"


async def test_a_driver_that_is_away_keeps_its_claims_until_it_is_back(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    await dra.manager.drivers.deregister(DRIVER, driver.socket)
    for _ in range(2):
        with pytest.raises(Refused, match=f"^unprepare dynamic resources: DRA driver {DRIVER} is not reg"):
            await dra.manager.unprepare("p")
    assert kept(dra) == ["a"]
    await dra.register(driver)
    await dra.manager.unprepare("p")
    assert driver.prepared == {}


async def test_of_two_drivers_the_one_that_gave_back_is_not_asked_again(dra: DraRig) -> None:
    good, bad = await dra.driver(), await dra.driver(OTHER)
    dra.claim("a", "p", drivers=[DRIVER, OTHER])
    await dra.manager.prepare(dra.pod("p", "a"))
    bad.errors["a"] = "busy"
    with pytest.raises(Refused, match="NodeUnprepareResources failed for ResourceClaim a: busy"):
        await dra.manager.unprepare("p")
    bad.errors.clear()
    await dra.manager.unprepare("p")
    assert len(good.called(UNPREPARE)) == 1
    assert len(bad.called(UNPREPARE)) == 2


# Calls that cross


async def test_prepare_and_unprepare_of_one_claim_never_cross(dra: DraRig) -> None:
    """kubernetes/kubernetes#140527"""
    driver = await dra.driver()
    driver.delay = 0.02
    dra.claim("a", "p", "q")
    pods = [dra.pod(name, "a") for name in "pq"]

    async def use(turn: int) -> None:
        pod = pods[turn % 2]
        await dra.manager.prepare(pod)
        assert "uid-a" in driver.prepared
        await dra.manager.unprepare(pod.uid)

    async def again(turn: int) -> None:
        for _ in range(5):
            await use(turn)

    await asyncio.gather(*(again(turn) for turn in range(2)))
    assert driver.wrong == []
    assert driver.prepared == {}
    assert kept(dra) == []


async def test_a_call_is_awaited_although_its_pod_is_gone(dra: DraRig) -> None:
    driver = await dra.driver()
    driver.delay = 0.1
    dra.claim("a", "p")
    preparing = asyncio.create_task(dra.manager.prepare(dra.pod("p", "a")))
    await eventually(lambda: driver.called(PREPARE) != [])
    preparing.cancel()
    await dra.manager.unprepare("p")
    assert driver.wrong == []
    assert [call.method for call in driver.calls] == [PREPARE, UNPREPARE]
    assert driver.prepared == {}


async def test_a_pod_that_is_gone_before_its_turn_is_not_prepared(dra: DraRig) -> None:
    driver = await dra.driver()
    driver.delay = 0.1
    dra.claim("a", "p", "q")
    first = asyncio.create_task(dra.manager.prepare(dra.pod("p", "a")))
    await eventually(lambda: driver.called(PREPARE) != [])
    second = asyncio.create_task(dra.manager.prepare(dra.pod("q", "a")))
    await asyncio.sleep(0.02)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await dra.manager.unprepare("q")
    assert [claim.pods for claim in dra.manager.table] == [{"p"}]


# Agents that come and go


async def test_after_a_restart_containers_have_their_devices_and_nothing_is_given_back(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    pod = dra.pod("p", "a")
    await dra.manager.prepare(pod)
    await dra.restart()
    assert dra.manager.knows(pod)
    assert dra.manager.container_devices(pod, pod.spec.containers[0]) == [f"{DRIVER}/device=a"]
    await dra.manager.prepare(pod)
    assert len(driver.called(PREPARE)) == 2, "a new agent asks again: the machine may have started again"
    assert dra.manager.container_devices(pod, pod.spec.containers[0]) == [f"{DRIVER}/device=a"]
    await dra.manager.unprepare("p")
    assert driver.called(UNPREPARE) == [("uid-a",)]


async def test_claims_of_vanished_pods_are_unprepared(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    dra.running.clear()
    dra.known = False
    await dra.restart()
    assert driver.called(UNPREPARE) == [], "the pod may still be told of"
    dra.known = True
    dra.manager._soon.set()
    await eventually(lambda: driver.prepared == {})
    await eventually(lambda: kept(dra) == [])


async def test_claims_of_a_pod_that_is_gone_wait_for_their_driver(
    dra: DraRig, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    dra.running.clear()
    dra.drivers.clear()
    await dra.restart()
    for _ in range(3):
        dra.manager._soon.set()
        await asyncio.sleep(0.01)
    said = [record for record in caplog.records if "stay prepared" in record.message]
    assert len(said) <= 1
    dra.drivers.append(driver)
    await dra.register(driver)
    await eventually(lambda: driver.prepared == {})


async def test_a_damaged_state_file_is_set_aside_and_the_claims_are_prepared_again(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    pod = dra.pod("p", "a")
    await dra.manager.prepare(pod)
    (dra.root / "dra_manager_state").write_text('{"Data":"{}","Checksum":1}')
    await dra.restart()
    assert len(list(dra.root.glob("dra_manager_state.bad-*"))) == 1
    assert not dra.manager.knows(pod)
    await dra.manager.prepare(pod)
    await dra.manager.unprepare("p")
    assert driver.prepared == {}


async def test_nothing_is_asked_of_a_driver_before_it_is_on_disk(dra: DraRig) -> None:
    driver = await dra.driver()
    seen: list[list[str]] = []
    driver.before = lambda method: seen.append(kept(dra))
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    await dra.manager.unprepare("p")
    assert seen == [["a"], ["a"]]


async def test_a_disk_that_takes_nothing_prepares_nothing(dra: DraRig) -> None:
    driver = await dra.driver()
    dra.claim("a", "p")
    (dra.root / "dra_manager_state").mkdir()
    with pytest.raises(Refused, match="dra_manager_state"):
        await dra.manager.prepare(dra.pod("p", "a"))
    assert driver.calls == []
    assert len(dra.manager.table) == 0
    (dra.root / "dra_manager_state").rmdir()


# Health


async def test_pods_hear_how_the_devices_of_their_claims_are(dra: DraRig) -> None:
    driver = await dra.driver(tells_health=True)
    dra.claim("a", "p")
    pod = dra.pod("p", "a")
    await dra.manager.prepare(pod)

    def health() -> dict[str, tuple[str, str]]:
        (shown,) = dra.manager.health(pod, pod.spec.containers[0]).items()
        assert shown[0] == "claim:a"
        return {id: (known.health, known.message) for id, known in shown[1].items()}

    id = f"{DRIVER}/device=a"
    assert health() == {id: ("Unknown", "")}
    await driver.report(("dev-a", "Healthy", ""), ("stranger", "Unhealthy", "hot"))
    await eventually(lambda: health() == {id: ("Healthy", "")})
    assert dra.changed == ["p"]
    await driver.report(("dev-a", "Unhealthy", "hot"))
    await eventually(lambda: health() == {id: ("Unhealthy", "hot")})
    path = dra.root / "dra_health_state"
    await eventually(lambda: path.exists() and "hot" in path.read_text())
    await driver.die()
    await eventually(lambda: health() == {id: ("Unknown", "")})
    await eventually(lambda: json.loads(path.read_text()) == {})


async def test_the_health_of_devices_outlasts_the_agent(dra: DraRig) -> None:
    driver = await dra.driver(tells_health=True)
    dra.claim("a", "p")
    pod = dra.pod("p", "a")
    await dra.manager.prepare(pod)
    await driver.report(("dev-a", "Healthy", ""))
    await eventually(lambda: dra.changed == ["p"])
    dra.drivers.clear()
    await dra.restart()
    assert [
        known.health for known in dra.manager.health(pod, pod.spec.containers[0])["claim:a"].values()
    ] == ["Healthy"]
    assert dra.changed == ["p"]
    await driver.stop()


async def test_a_device_without_reports_becomes_unknown_after_its_timeout(dra: DraRig) -> None:
    driver = await dra.driver(tells_health=True)
    dra.claim("a", "p")
    pod = dra.pod("p", "a")
    await dra.manager.prepare(pod)
    await driver.report(("dev-a", "Healthy", ""), timeout=1)
    await eventually(lambda: dra.changed == ["p"])
    dra.now += 2
    dra.manager._expire()
    assert dra.changed == ["p", "p"]


async def test_a_driver_that_lists_too_many_devices_is_not_kept_in_memory(
    dra: DraRig, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await dra.driver(tells_health=True)
    await driver.report(*((f"d{i}", "Healthy", "") for i in range(20_000)))
    await eventually(lambda: any("more than 16384 devices" in r.getMessage() for r in caplog.records))


# Registration and slices


async def test_the_newest_instance_that_is_connected_is_called(dra: DraRig) -> None:
    old = await dra.driver(instance="old")
    dra.claim("a", "p")
    dra.claim("b", "q")
    new = SampleDraDriver(dra.root / "new", dra.root / "registry", DRIVER, instance="new")
    drivers = dra.manager.drivers
    await drivers.register(DRIVER, new.socket, new.services)
    await dra.manager.prepare(dra.pod("p", "a"))
    assert old.prepared.keys() == {"uid-a"}
    await new.serve()
    dra.drivers.append(new)
    await eventually(lambda: drivers._instances[DRIVER][-1].connected)
    await dra.manager.prepare(dra.pod("q", "b"))
    assert new.prepared.keys() == {"uid-b"}
    await drivers.deregister(DRIVER, old.socket)
    assert drivers.is_connected(DRIVER)


async def test_whoever_asks_hears_of_each_driver_that_connects(dra: DraRig) -> None:
    heard: list[str] = []
    dra.manager.driver_connected = heard.append
    await dra.driver("dra.cpu")
    assert heard == ["dra.cpu"]


async def test_an_endpoint_is_registered_once(dra: DraRig) -> None:
    driver = await dra.driver()
    with pytest.raises(Refused, match=f"already registered for DRA driver plugin {DRIVER}"):
        await dra.manager.drivers.register(DRIVER, driver.socket, driver.services)


@pytest.mark.parametrize(
    ("name", "versions", "said"),
    [
        (DRIVER, [], "empty list of supported gRPC services"),
        (DRIVER, ["1.0.0"], 'supported by the plugin .."1.0.0".. are supported by the kubelet'),
        ("", ["v1.DRAPlugin"], "expected a driver's name, got ''"),
        ("x" * 300, ["v1.DRAPlugin"], "expected a driver's name"),
        ("d,spec.nodeName=n2", ["v1.DRAPlugin"], "expected a driver's name"),
    ],
)
async def test_a_driver_that_cannot_be_called_is_not_registered(
    dra: DraRig, name: str, versions: list[str], said: str
) -> None:
    with pytest.raises(KubengineError, match=said):
        dra.manager.drivers.check(name, dra.root / "s", versions)


async def test_slices_are_deleted_at_the_start_and_when_a_driver_stays_away(dra: DraRig) -> None:
    await eventually(lambda: dra.wiped == [""])
    dra.manager.drivers._wipe_seconds = 0.05
    driver = await dra.driver()
    await asyncio.sleep(0.1)
    assert dra.wiped == [""], "it is connected"
    await driver.die()
    await eventually(lambda: dra.wiped == ["", DRIVER])


async def test_slices_of_a_driver_that_returns_in_time_stay(dra: DraRig) -> None:
    await eventually(lambda: dra.wiped == [""])
    dra.manager.drivers._wipe_seconds = 5
    driver = await dra.driver()
    await dra.manager.drivers.deregister(DRIVER, driver.socket)
    assert list(dra.manager.drivers._wipes) == [DRIVER]
    await dra.register(driver)
    assert dra.manager.drivers._wipes == {}


async def test_metrics_say_how_long_claims_took_and_how_many_are_in_use(dra: DraRig) -> None:
    await dra.driver()
    dra.claim("a", "p")
    await dra.manager.prepare(dra.pod("p", "a"))
    with pytest.raises(Refused):
        await dra.manager.prepare(dra.pod("q", "none"))
    metrics = dra.registry.metrics
    assert list(metrics["dra_resource_claims_in_use"].collect()) == [  # type: ignore[union-attr]
        ((DRIVER,), 1), (("<any>",), 1),
    ]  # fmt: skip
    operations = metrics["dra_operations_duration_seconds"]
    assert operations.counts.keys() == {  # type: ignore[union-attr]
        ("PrepareResources", "false"), ("PrepareResources", "true"),
    }  # fmt: skip
    calls = metrics["dra_grpc_operations_duration_seconds"]
    method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
    assert calls.counts.keys() == {(DRIVER, method, "OK")}  # type: ignore[union-attr]
    assert [round(b, 3) for b in operations.buckets][::7] == [0.1, 2.0, 40.0]  # type: ignore[union-attr]
