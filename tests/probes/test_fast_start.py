"""Fast until ready: the period until a container has succeeded once, and what its failures count."""

from __future__ import annotations

import pytest

from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.api.status import ContainerStatus, PodStatus
from engine.probes.spec import check_section, probe_specs
from tests.probes.probed_pods import OK, http, pod_with, replying, serving
from tests.waiting import eventually

HOUR = {"periodMilliseconds": 3_600_000}
SOON = {**HOUR, "startPeriodMilliseconds": 10}


def early(rig) -> int:
    return rig.manager.describe()["loop"]["early_failures"]


async def test_a_container_is_started_and_ready_long_before_its_period(rig):
    """Its server comes up late: failures until then count for nothing, whatever the threshold."""
    async with serving(replying(OK)) as free:
        pass
    pod = pod_with(
        startup=http(free, ms=dict(SOON), failureThreshold=1),
        readiness=http(free, ms=dict(SOON), failureThreshold=1),
    )
    rig.run(pod)
    await eventually(lambda: early(rig) > 5)
    assert rig.manager.failed("u1", "app", "c1") == ""
    assert rig.messages("Unhealthy") == []
    async with serving(replying(OK), port=free):
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
    assert rig.seen("startup") == ["unknown", "success"]


async def test_then_the_period_is_the_declared_one_and_stays_so(rig):
    async with serving(replying(OK)) as port:
        rig.run(pod_with(readiness=http(port, ms=dict(SOON))))
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        await eventually(lambda: rig.probe("readiness")["next_seconds"] > 3000)
        begun = rig.manager.describe()["loop"]["begun"]
        worker = rig.manager._container("u1", "app").readiness
    for _ in range(3):  # nothing listens now
        failures = rig.probe("readiness")["outcomes"]["failure"]
        rig.manager._native.trigger(worker.key)
        await eventually(lambda before=failures: rig.probe("readiness")["outcomes"]["failure"] > before)
    assert not rig.manager.is_ready("u1", "app")
    assert rig.probe("readiness")["next_seconds"] > 3000, "unready is not starting"
    assert rig.manager.describe()["loop"]["begun"] == begun + 3


async def test_a_new_container_is_hurried_again(rig):
    async with serving(replying(OK)) as port:
        pod = pod_with(readiness=http(port, ms=dict(SOON)))
        for number in ("c1", "c2"):
            rig.run(pod, number)
            await eventually(lambda number=number: rig.manager.is_ready("u1", "app", number))


async def test_failures_count_once_a_period(rig):
    times = {"periodMilliseconds": 200, "startPeriodMilliseconds": 10}
    rig.run(pod_with(startup={"tcpSocket": {"port": 1}, "failureThreshold": 3, "ms": times}))
    await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "startup")
    assert rig.probe("startup")["outcomes"]["failure"] == 3
    assert early(rig) >= 3


async def test_a_restarted_agent_does_not_probe_ready_containers_faster(rig):
    pod = pod_with(readiness={"tcpSocket": {"port": 1}, "ms": dict(SOON)})
    rig.manager._jitter = lambda: 1.0
    known = ContainerStatus(
        name="app", container_id="c1", ready=True, started=True, restart_count=0, image="", image_id=""
    )
    rig.run(pod, restored=PodStatus(container_statuses=[known]))
    assert rig.manager.is_ready("u1", "app")
    assert rig.probe("readiness")["next_seconds"] > 3000


def test_the_configuration_speaks_for_pods_that_do_not():
    section = ProbesSection(start_period=Duration(0.1))
    probes = {
        "startup": {"exec": {"command": ["true"]}},
        "readiness": {"tcpSocket": {"port": 1}},
        "liveness": {"tcpSocket": {"port": 1}},
    }
    found = {spec.type: spec.start_period for spec in probe_specs(pod_with(**probes), section)}
    assert found == {"startup": 0.0, "readiness": 0.1, "liveness": 0.0}, "commands cost too much for it"
    asked = pod_with(readiness={"tcpSocket": {"port": 1}, "ms": {"startPeriodMilliseconds": 0}})
    assert probe_specs(asked, section)[0].start_period == 0.0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (ProbesSection(start_period=Duration(0.005)), r"probes\.startPeriod: is less than 10 ms"),
        (ProbesSection(network="host"), r"probes\.network: 'host' is not node or pod"),
    ],
)
def test_invalid_configurations_are_refused(section: ProbesSection, words: str):
    with pytest.raises(InvalidInput, match=words):
        check_section(section)
