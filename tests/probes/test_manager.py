"""The manager and the native loop on real sockets: thresholds, gates, restarts, events, metrics."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Container
from engine.api.status import ContainerStatus, PodStatus
from engine.metrics import Registry
from engine.probes import probe_specs
from engine.probes.manager import ProbeManager
from engine.server.metrics_text import exposition
from tests.contexts import node_context
from tests.probes.probed_pods import OK, Rig, http, pod_with, replying, serving
from tests.waiting import eventually


async def test_readiness_follows_the_server(rig):
    answer = [OK]

    async def handler(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer[0])
        await writer.drain()

    async with serving(handler) as port:
        pod = pod_with(readiness=http(port, failureThreshold=2))
        rig.run(pod)
        assert not rig.manager.is_ready("u1", "app")
        await eventually(lambda: rig.manager.is_ready("u1", "app", "c1"))
        answer[0] = b"HTTP/1.1 503 Busy\r\nContent-Length: 6\r\n\r\nsecret"
        await eventually(lambda: not rig.manager.is_ready("u1", "app"))
        answer[0] = OK
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        assert rig.seen("readiness")[-3:] == ["success", "failure", "success"]
    assert rig.manager.failed("u1", "app", "c1") == ""
    assert "Readiness probe failed: HTTP probe failed with statuscode: 503" in rig.messages("Unhealthy")
    assert not any("secret" in message for message in rig.messages("Unhealthy"))


async def test_the_request_is_the_kubelets(rig):
    requests: list[bytes] = []
    async with serving(replying(OK, requests=requests)) as port:
        headers = [{"name": "Host", "value": "example.org"}, {"name": "X-Probe", "value": "a b"}]
        rig.run(pod_with(readiness=http(port, "health?full=1", get={"httpHeaders": headers})))
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
    line, *rest = requests[0].split(b"\r\n")
    assert line == b"GET /health?full=1 HTTP/1.1"
    assert sorted(rest) == sorted(
        [
            b"Host: example.org",
            b"User-Agent: kube-probe/1.36",
            b"Accept: */*",
            b"X-Probe: a b",
            b"Connection: close",
            b"",
            b"",
        ]
    )


async def test_liveness_failure_asks_for_a_restart_once_and_a_new_container_starts_over(rig):
    pod = pod_with(liveness={"tcpSocket": {"port": 1}, "failureThreshold": 3})
    rig.run(pod)
    await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
    asked = rig.probe("liveness")["outcomes"]["failure"]
    await asyncio.sleep(0.2)
    assert rig.probe("liveness")["outcomes"]["failure"] == asked == 3
    rig.manager.update_container("u1", "app", container_id="c1", state="terminated")
    async with serving(replying(OK)) as port:
        assert port != 1
        rig.running(pod, "c2")
        assert rig.manager.failed("u1", "app", "c2") == ""
        await eventually(lambda: rig.manager.failed("u1", "app", "c2") == "liveness")
    assert [rig.seen("liveness", id)[-1] for id in ("c1", "c2")] == ["failure", "failure"]
    assert "Liveness probe failed: dial tcp 127.0.0.1:1: connect: connection refused" in rig.messages(
        "Unhealthy"
    )


async def test_a_late_reader_receives_only_the_last_result(rig):
    rig.run(pod_with(liveness={"tcpSocket": {"port": 1}, "failureThreshold": 1}))
    time.sleep(0.3)  # noqa: ASYNC251
    await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
    assert rig.seen("liveness") == ["failure"]


async def test_startup_gates_the_others_and_readiness_follows_at_once(rig):
    started = [False]

    async def handler(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        good = started[0] or b"/startup" not in request
        writer.write(OK if good else b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving(handler) as port:
        pod = pod_with(
            startup=http(port, "/startup", failureThreshold=1000),
            liveness={"tcpSocket": {"port": 1}, "failureThreshold": 1},
            readiness=http(port, "/ready", ms={"periodMilliseconds": 60_000}),
        )
        rig.run(pod)
        await eventually(lambda: rig.probe("startup")["outcomes"]["failure"] > 3)
        assert not rig.manager.is_started("u1", "app")
        assert rig.probe("liveness")["outcomes"]["failure"] == 0
        started[0] = True
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        assert rig.manager.is_started("u1", "app", "c1")
        await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
    assert rig.seen("startup") == ["unknown", "success"]


async def test_failing_startup_asks_for_a_restart(rig):
    rig.run(pod_with(startup={"tcpSocket": {"port": 1}, "failureThreshold": 2}))
    await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "startup")


async def test_initial_delay_is_kept(rig):
    async with serving(replying(OK)) as port:
        rig.run(pod_with(readiness=http(port, ms={"initialDelayMilliseconds": 600})), ago=0)
        await asyncio.sleep(0.3)
        assert rig.probe("readiness")["outcomes"]["success"] == 0
        await eventually(lambda: rig.manager.is_ready("u1", "app"))


async def test_terminating_stops_liveness_and_not_readiness(rig):
    async with serving(replying(OK)) as port:
        pod = pod_with(readiness=http(port), liveness={"tcpSocket": {"port": 1}, "failureThreshold": 1000})
        rig.run(pod)
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        rig.manager.stop_liveness_and_startup("u1")
        await eventually(lambda: rig.probe("liveness")["ended"])
        before = rig.probe("liveness")["outcomes"]["failure"]
        await asyncio.sleep(0.2)
        assert rig.probe("liveness")["outcomes"]["failure"] == before
    await eventually(lambda: not rig.manager.is_ready("u1", "app"))


@pytest.mark.parametrize("failing", ["startup", "liveness"])
async def test_the_end_of_a_pod_ends_what_a_failed_probe_asked_for(rig, failing):
    async with serving(replying(OK)) as port:
        pod = pod_with(readiness=http(port), **{failing: {"tcpSocket": {"port": 1}, "failureThreshold": 1}})
        rig.run(pod)
        await eventually(lambda: rig.manager.failed("u1", "app", "c1") == failing)
        rig.manager.stop_liveness_and_startup("u1")
        assert rig.manager.failed("u1", "app", "c1") == ""
        assert rig.manager.is_started("u1", "app", "c1")
        await eventually(lambda: rig.manager.is_ready("u1", "app", "c1"))


async def test_sidecars_are_probed(rig):
    async with serving(replying(OK)) as port:
        pod = pod_with(sidecar=True, restart_policy="Never", readiness=http(port))
        rig.run(pod)
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        rig.manager.update_container("u1", "app", container_id="c1", state="terminated")
        rig.running(pod, "c2")
        await eventually(lambda: rig.manager.is_ready("u1", "app", "c2"))


_AGAIN = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}]
_ALL_AGAIN = [{**_AGAIN[0], "action": "RestartAllContainers"}]


@pytest.mark.parametrize(
    ("policy", "own", "others"),
    [
        ("Never", {"restartPolicy": "Always"}, {}),
        ("Never", {"restartPolicy": "OnFailure"}, {}),
        ("Never", {"restartPolicy": "Never", "restartPolicyRules": _AGAIN}, {}),
        ("Never", {}, {"restartPolicy": "Never", "restartPolicyRules": _ALL_AGAIN}),
    ],
    ids=["always", "on-failure", "rule", "rule-of-another"],
)
async def test_a_container_that_restarts_in_a_pod_that_does_not_is_probed_again(rig, policy, own, others):
    async with serving(replying(OK)) as port:
        pod = pod_with(restart_policy=policy, readiness=http(port))
        app = msgspec.convert({**msgspec.to_builtins(pod.spec.containers[0]), **own}, Container)
        other = msgspec.convert({"name": "other", "image": "x", **others}, Container)
        pod.spec.containers = [app, other]
        rig.run(pod)
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        rig.manager.update_container("u1", "app", container_id="c1", state="terminated")
        await eventually(lambda: rig.seen("readiness", "c1")[-1] == "failure")
        rig.running(pod, "c2")
        await eventually(lambda: rig.manager.is_ready("u1", "app", "c2"))


async def test_the_probes_of_a_container_that_never_restarts_end_with_it(rig):
    async with serving(replying(OK)) as port:
        rig.run(pod_with(restart_policy="Never", readiness=http(port)))
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        rig.manager.update_container("u1", "app", container_id="c1", state="terminated")
        await eventually(lambda: rig.probe("readiness")["ended"])


async def test_a_restarted_agent_keeps_ready_and_started(rig):
    requests: list[bytes] = []
    async with serving(replying(OK, requests=requests)) as port:
        pod = pod_with(
            readiness={"tcpSocket": {"port": 1}, "failureThreshold": 3, "ms": {"periodMilliseconds": 300}},
            startup=http(port, "/startup"),
        )
        status = msgspec.convert(
            {
                "name": "app",
                "containerID": "c1",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": "x",
                "imageID": "",
            },
            ContainerStatus,
        )
        rig.run(pod, restored=PodStatus(container_statuses=[status]))
        assert rig.manager.is_ready("u1", "app", "c1")
        await eventually(lambda: rig.seen("readiness"))
        assert rig.manager.is_ready("u1", "app", "c1")
        await eventually(lambda: not rig.manager.is_ready("u1", "app"))
        assert requests == []
        assert rig.manager.is_started("u1", "app")
        rig.running(pod, "c2")
        await eventually(lambda: requests and rig.manager.is_started("u1", "app", "c2"))
    assert rig.seen("readiness", "c1") == ["success", "failure"]


async def test_redirects(rig):
    """To the same host: followed, on another port too. To another: a warning, and success."""
    requests: list[bytes] = []
    async with (
        serving(replying(OK, requests=requests)) as there,
        serving(
            replying(
                f"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:{there}/x\r\nContent-Length:0\r\n\r\n".encode()
            )
        ) as here,
        serving(
            replying(b"HTTP/1.1 302 F\r\nLocation: http://0.0.0.0/\r\nContent-Length: 9\r\n\r\n<a>0.0.0.0")
        ) as foreign,
        serving(replying(b"HTTP/1.1 302 F\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")) as endless,
    ):
        rig.run(pod_with("near", readiness=http(here)))
        rig.run(pod_with("far", readiness=http(foreign)))
        rig.run(pod_with("round", readiness=http(endless)))
        await eventually(lambda: rig.manager.is_ready("near", "app") and rig.manager.is_ready("far", "app"))
        await eventually(lambda: any("stopped after 10 redirects" in m for m in rig.messages("Unhealthy")))
    assert requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
    warning = rig.messages("ProbeWarning")[0]
    assert warning.startswith("Readiness probe warning: Probe terminated redirects, Response body: <a>0.0.0")


async def test_ipv6(rig):
    async with serving(replying(OK), host="::1") as port:
        rig.run(pod_with(readiness=http(port)), ip="::1")
        await eventually(lambda: rig.manager.is_ready("u1", "app"))


async def test_ports_by_name_and_missing_ones(rig):
    pod = pod_with(readiness=http(0, get={"port": "web"}), liveness={"tcpSocket": {"port": "nowhere"}})
    async with serving(replying(OK)) as port:
        pod.spec.containers[0].ports[0].container_port = port
        rig.run(pod)
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        await eventually(lambda: rig.messages("Unhealthy"))
    assert "couldn't find port 'nowhere'" in rig.messages("Unhealthy")[0]
    assert rig.manager.failed("u1", "app", "c1") == ""


async def test_a_pod_without_an_address_is_not_failing(rig):
    pod = pod_with(liveness=http(80, failureThreshold=1))
    rig.run(pod, ip="")
    await eventually(lambda: rig.probe("liveness")["outcomes"]["error"] > 1)
    assert rig.manager.failed("u1", "app", "c1") == ""


async def test_metrics_are_the_kubelets_and_only_read_when_scraped(rig):
    async with serving(replying(OK)) as port:
        rig.run(pod_with(readiness=http(port), liveness={"tcpSocket": {"port": 1}, "failureThreshold": 1}))
        await eventually(lambda: rig.manager.is_ready("u1", "app") and rig.manager.failed("u1", "app", "c1"))
    text = "".join(exposition(rig.registry, prefix="prober_"))
    rest = 'container="app",pod="pod-u1",namespace="default"'
    assert f'prober_probe_total{{probe_type="Liveness",result="failed",{rest},pod_uid="u1"}} 1' in text
    assert f'prober_probe_total{{probe_type="Readiness",result="successful",{rest},pod_uid="u1"}}' in text
    assert f'prober_probe_duration_seconds_count{{probe_type="Readiness",{rest}}}' in text
    assert "kubengine_probe_lateness_seconds_bucket" in "".join(exposition(rig.registry))
    rig.manager.remove_pod("u1")
    assert 'pod="pod-u1"' not in "".join(exposition(rig.registry, prefix="prober_"))


@pytest.mark.parametrize(("metrics", "label"), [("pod", 'container=""'), ("none", None)])
async def test_metrics_can_be_aggregated_or_off(metrics, label):
    rig = Rig(ProbesSection(metrics=metrics))
    await rig.manager.start()
    async with serving(replying(OK)) as port:
        rig.run(pod_with(readiness=http(port)))
        await eventually(lambda: rig.manager.is_ready("u1", "app"))
        await rig.manager.stop()
    text = "".join(exposition(rig.registry, prefix="prober_"))
    assert (label in text) if label else not text


async def test_a_steady_stream_of_successes_never_enters_python(rig):
    """The native loop's only way into Python is the eventfd, so its count is the whole truth."""
    requests: list[bytes] = []
    async with serving(replying(OK, requests=requests)) as port:
        pods = [pod_with(f"u{n}", readiness=http(port, ms={"periodMilliseconds": 20})) for n in range(20)]
        for pod in pods:
            rig.run(pod)
        await eventually(lambda: all(rig.manager.is_ready(pod.uid, "app") for pod in pods))
        before = rig.manager.entries, rig.manager.describe()["loop"]["notifications"]
        already = len(requests)
        await eventually(lambda: len(requests) > already + 300)
        assert (rig.manager.entries, rig.manager.describe()["loop"]["notifications"]) == before


async def test_a_wrong_annotation_is_named_and_leaves_whole_seconds(rig):
    pod = pod_with(liveness={"tcpSocket": {"port": 1}, "periodSeconds": 7})
    for text, words in (
        ('{"app": {"liveness": {"periodMilliseconds": 1}}}', "periodMilliseconds: 1 is less than 10"),
        ('{"app": {"liveness": {"period": 1}}}', "unknown field `period`"),
        ('{"other": {}}', "no container 'other'"),
        ("[]", "Expected `object`"),
    ):
        pod.metadata.annotations["kubengine.dev/probes"] = text
        with pytest.raises(InvalidInput, match=r"kubengine\.dev/probes") as caught:
            probe_specs(pod, ProbesSection())
        assert words in str(caught.value)
    rig.run(pod)
    assert rig.messages("InvalidProbe")
    assert rig.probe("liveness")["period_seconds"] == 7


def test_sections_are_checked():
    for section in (ProbesSection(metrics="some"), ProbesSection(max_connections=0)):
        with pytest.raises(InvalidInput, match="probes"):
            ProbeManager(
                node_context(
                    probes=section,
                    recorder=EventRecorder(lambda: 0.0),
                    registry=Registry(),
                    clock=lambda: 0.0,
                ),
                on_result=lambda result: None,
            )


def test_defaults_are_whole_seconds_of_the_manifest():
    pod = pod_with(liveness={"grpc": {"port": 9000}, "periodSeconds": 3, "timeoutSeconds": 2})
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=None))
    (spec,) = probe_specs(pod, ProbesSection())
    assert (spec.period, spec.timeout, spec.initial_delay, spec.kind) == (3.0, 2.0, 0.0, "grpc")
