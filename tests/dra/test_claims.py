"""Which claims a pod uses, and whether it may: the decisions without drivers."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidInput, Refused
from engine.api.meta import ObjectMeta, OwnerReference
from engine.api.objects.dynamic_resources import ResourceClaim
from engine.api.pod import Container, Pod, PodResourceClaim, PodSpec, ResourceClaimRef, ResourceRequirements
from engine.api.quantity import Quantity
from engine.api.status import (
    ContainerExtendedResourceRequest,
    ExtendedResourceClaimStatus,
    PodResourceClaimStatus,
    PodStatus,
)
from engine.dra.answers import MAX_CLAIM_DEVICES, ClaimAnswer, check_answers
from engine.dra.claims import PodClaim, check_claim, container_requests, is_claimed, pod_claims
from engine.dra.health import HEALTHY, UNHEALTHY, UNKNOWN, HealthTable, reported
from engine.dra.table import PreparedDevice
from tests.dra.rig import DraRig


def made(*entries: PodResourceClaim, **status: object) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u"),
        spec=PodSpec(containers=[Container(name="c", image="i")], resource_claims=list(entries)),
        status=PodStatus(**status),  # type: ignore[arg-type]
    )


def test_a_pod_has_named_claims_those_of_templates_and_that_of_its_extended_resources() -> None:
    pod = made(
        PodResourceClaim(name="a", resource_claim_name="shared"),
        PodResourceClaim(name="b", resource_claim_template_name="t"),
        PodResourceClaim(name="none", resource_claim_template_name="t"),
        resource_claim_statuses=[
            PodResourceClaimStatus(name="b", resource_claim_name="p-b-x7"),
            PodResourceClaimStatus(name="none"),
        ],
        extended_resource_claim_status=ExtendedResourceClaimStatus(resource_claim_name="p-extended"),
    )
    assert pod_claims(pod) == [
        PodClaim("shared", "a"),
        PodClaim("p-b-x7", "b", generated=True),
        PodClaim("p-extended"),
    ]


def test_a_claim_that_is_not_there_yet_is_waited_for() -> None:
    pod = made(PodResourceClaim(name="b", resource_claim_template_name="t"))
    with pytest.raises(Refused, match=r'^pod "default/p": ResourceClaim not created yet$'):
        pod_claims(pod)


def test_an_entry_of_a_kind_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r'spec.resourceClaim "b": none of the supported fields are set'):
        pod_claims(made(PodResourceClaim(name="b")))


def claim_of(uid: str = "u", **changes: object) -> ResourceClaim:
    return DraRig.claim(_Nowhere(), "cl", uid, **changes)  # type: ignore[arg-type]


class _Nowhere:
    claims: dict[str, ResourceClaim] = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("claim", "generated", "said"),
    [
        (claim_of(owner="u"), True, ""),
        (claim_of(), False, ""),
        (claim_of(), True, r"was not created for Pod default/p \(Pod is not owner\)"),
        (claim_of(owner="other"), True, r"was not created for Pod default/p \(Pod is not owner\)"),
        (claim_of("other"), False, r"pod p \(u\) is not allowed to use ResourceClaim cl \(uid-cl\)"),
        (claim_of(drivers=["", "d"]), False, "ResourceClaim cl: DRA driver name is empty"),
        (ResourceClaim(metadata=ObjectMeta(name="x", uid="1")), False, "the API server answered with 'x'"),
        (
            ResourceClaim(metadata=ObjectMeta(name="cl", namespace="else", uid="1")),
            False,
            "ResourceClaim else/cl is not in the same namespace as Pod default/p",
        ),
    ],
)
def test_a_pod_may_use_a_claim_that_is_reserved_for_it(
    claim: ResourceClaim, generated: bool, said: str
) -> None:
    claimed = PodClaim("cl", "a", generated)
    if not said:
        check_claim(made(), claimed, claim)
        return
    with pytest.raises(Refused, match=said):
        check_claim(made(), claimed, claim)


def test_a_claim_without_an_allocation_is_refused() -> None:
    claim = claim_of()
    claim.status.allocation = None
    with pytest.raises(Refused, match=r"^ResourceClaim cl: not allocated$"):
        check_claim(made(), PodClaim("cl", "a"), claim)


def test_an_owner_that_is_no_controller_owns_nothing() -> None:
    claim = claim_of()
    claim.metadata.owner_references = [OwnerReference(kind="Pod", uid="u")]
    with pytest.raises(Refused, match="Pod is not owner"):
        check_claim(made(), PodClaim("cl", "a", generated=True), claim)


def test_a_container_gets_the_requests_that_it_names_and_those_of_its_extended_resources() -> None:
    mapping = [
        ContainerExtendedResourceRequest(container_name=c, resource_name=r, request_name=f"{c}-{r[-3:]}")
        for c in ("c", "other")
        for r in ("example.com/gpu", "example.com/nic")
    ]
    pod = made(
        PodResourceClaim(name="a", resource_claim_name="shared"),
        PodResourceClaim(name="unused", resource_claim_name="unused"),
        extended_resource_claim_status=ExtendedResourceClaimStatus(
            request_mappings=mapping, resource_claim_name="ext"
        ),
    )
    container = Container(
        name="c",
        image="i",
        resources=ResourceRequirements(
            requests={"example.com/gpu": Quantity.parse("1"), "cpu": Quantity.parse("1")},
            claims=[ResourceClaimRef(name="a", request="big"), ResourceClaimRef(name="a")],
        ),
    )
    assert list(container_requests(pod, container)) == [
        (PodClaim("shared", "a"), "big"),
        (PodClaim("shared", "a"), ""),
        (PodClaim("ext"), "c-gpu"),
    ]
    assert is_claimed(pod, "c", "example.com/gpu")
    assert not is_claimed(pod, "c", "cpu")
    assert not is_claimed(made(), "c", "example.com/gpu")


GOOD = PreparedDevice("pool", "dev", None, ("r",), ("example.com/gpu=0",))


@pytest.mark.parametrize(
    ("answers", "done", "fault"),
    [
        ({"1": ClaimAnswer((GOOD,)), "2": ClaimAnswer()}, {"1", "2"}, ""),
        ({"1": ClaimAnswer((GOOD,))}, {"1"}, "M skipped 1 ResourceClaims"),
        ({}, set(), "M skipped 2 ResourceClaims"),
        (
            {"1": ClaimAnswer(), "2": ClaimAnswer(error="no power")},
            {"1"},
            "M failed for ResourceClaim b: no power",
        ),
        (
            {"1": ClaimAnswer(), "2": ClaimAnswer(), "3": ClaimAnswer()},
            {"1", "2"},
            "M returned result for unknown claim UID 3",
        ),
    ],
)
def test_every_claim_has_an_answer_and_no_other(
    answers: dict[str, ClaimAnswer], done: set[str], fault: str
) -> None:
    checked = check_answers("M", {"1": "a", "2": "b"}, answers)
    assert checked.done.keys() == done
    assert checked.fault == fault


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (PreparedDevice("", "dev"), "a device without a name: pool '', device 'dev'"),
        (PreparedDevice("pool", ""), "a device without a name: pool 'pool', device ''"),
        (PreparedDevice("pool", "x" * 600), "a device with a name of more than 512 bytes"),
        *(
            (PreparedDevice("pool", "dev", cdi_ids=(id,)), "which is not vendor/class=name")
            for id in (
                "", "gpu0", "vendor/gpu", "vendor/gpu=", "/gpu=0", "vendor/gpu=../../x", "vendor/gpu=0\n",
                "vendor/gpu=a b", "vend or/gpu=0", "1vendor/gpu=0", "vendor/gpu=0=1", "vendor/gpu=\u00e9",
            )
        ),
    ],
)  # fmt: skip
def test_a_device_that_no_runtime_accepts_is_the_drivers_fault(device: PreparedDevice, said: str) -> None:
    checked = check_answers("M", {"1": "a"}, {"1": ClaimAnswer((device,))})
    assert not checked.done
    assert checked.fault.startswith("M failed for ResourceClaim a: the driver named ")
    assert said in checked.fault
    assert len(checked.fault) < 700


def test_cdi_names_may_have_what_the_specification_allows() -> None:
    ids = ("vendor.com/gpu=0", "k8s.gpu.nvidia.com/claim=ab-12_x.y:z", "a/b=0")
    checked = check_answers("M", {"1": "a"}, {"1": ClaimAnswer((PreparedDevice("p", "d", cdi_ids=ids),))})
    assert not checked.fault


def test_a_driver_that_names_thousands_of_devices_is_not_believed() -> None:
    checked = check_answers("M", {"1": "a"}, {"1": ClaimAnswer((GOOD,) * (MAX_CLAIM_DEVICES + 1))})
    assert f"more than {MAX_CLAIM_DEVICES} devices" in checked.fault


def test_health_is_unknown_without_a_recent_report() -> None:
    table = HealthTable()
    assert table.get("d", "pool", "a", 0).health == UNKNOWN
    a, b = (reported("pool", name, HEALTHY, "fine", 10) for name in "ab")
    assert table.update("d", [a, b], 100) == [("pool", "a"), ("pool", "b")]
    assert table.update("d", [a, b], 105) == []
    sick = reported("pool", "a", UNHEALTHY, "hot", 10)
    assert table.update("d", [sick], 110) == [("pool", "a")]
    assert table.next_expiry() == 115
    assert table.get("d", "pool", "a", 116).message == "hot"
    assert table.get("d", "pool", "b", 116).health == UNKNOWN
    assert table.expire(116) == [("d", ("pool", "b"))]
    assert table.forget("d") == [("pool", "a")]


def test_a_time_out_and_a_message_have_bounds() -> None:
    device = reported("pool", "a", HEALTHY, "x" * 2000, -5)
    assert device.timeout == 30
    assert len(device.message) == 1024
    assert device.message.endswith("x...")
    assert reported("pool", "a", HEALTHY, "", 1e18).timeout < 1e9
    for letter in "é", "語":
        message = reported("pool", "a", UNHEALTHY, letter * 1000, 0).message
        assert message.endswith(f"{letter}...")
        assert 1021 <= len(message.encode()) <= 1024, "the API server counts bytes"
