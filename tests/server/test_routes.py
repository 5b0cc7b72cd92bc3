"""The answers of each path."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.api.config import KubeletConfiguration
from engine.api.documents import as_written, convert
from engine.api.duration import Duration
from engine.api.errors import Bug, InvalidInput, Refused, Unavailable
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec
from engine.api.status import PodStatus
from tests.server.served import WITHOUT_DEBUGGING, View


def pod(name: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=[Container(name="c", image="busybox")]),
        status=PodStatus(phase="Running", qos_class="BestEffort"),
    )


class Devices:
    def describe(self, resource: str = "") -> dict[str, Any]:
        return {"resource": resource}

    async def act(self, action: str, query: dict[str, str]) -> dict[str, Any]:
        failures = {
            "bad": InvalidInput("no such action", subject="devices"),
            "refused": Refused("not now"),
            "away": Unavailable("plugin gone"),
            "bug": Bug("broken"),
            "crash": ZeroDivisionError("x"),
        }
        if action in failures:
            raise failures[action]
        return {"did": action, **query}


class Probes:
    async def describe(self) -> list[int]:
        return [1]


async def test_pods_are_a_pod_list_with_status(serve: Any) -> None:
    served = await serve(View(known=[pod("a"), pod("b")]))
    answer = await served.get("/pods")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    listed = json.loads(answer.body)
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b"]
    assert listed["items"][0]["status"] == {"phase": "Running", "qosClass": "BestEffort"}
    assert "kind" not in listed["items"][0]


async def test_an_empty_node_and_thousands_of_pods_are_whole_json(serve: Any) -> None:
    view = View()
    served = await serve(view)
    assert json.loads((await served.get("/pods")).body)["items"] == []
    view.known = [pod(f"p{index}") for index in range(3000)]
    assert len(json.loads((await served.get("/pods/")).body)["items"]) == 3000


async def test_running_pods(serve: Any) -> None:
    served = await serve(View(known=[pod("a"), pod("b")]))
    answer = await served.ask("GET", "/runningpods/", unix=True)
    assert len(json.loads(answer.body)["items"]) == 1


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_the_read_only_port_has_no_debugging_handlers(serve: Any, method: str) -> None:
    served = await serve(View(components={"node": object()}))
    for path, expected in WITHOUT_DEBUGGING:
        answer = await served.ask(method, path)
        assert (answer.status, answer.body) == expected, path
        assert expected[0] != 307 or answer.headers["location"] == f"{path}/"
    assert (await served.get("/kubengine")).status == 200


async def test_configz_has_every_field_with_its_value(serve: Any) -> None:
    served = await serve(View())
    config = json.loads((await served.ask("GET", "/configz", unix=True)).body)["kubeletconfig"]
    assert config["maxPods"] == 110
    assert config["syncFrequency"] == "1m0s"
    assert config["imageGCHighThresholdPercent"] == 85
    assert "evictionHard" not in config


SAMPLES: dict[str, Any] = {
    "crashLoopBackOff": {"maxContainerRestartPeriod": "3m0s"},
    "memorySwap": {"swapBehavior": "LimitedSwap"},
    "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1Gi"}}],
    "shutdownGracePeriodByPodPriority": [{"priority": 7, "shutdownGracePeriodSeconds": 9}],
    "userNamespaces": {"idsPerPod": 131072},
    "registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
    "authentication": {
        "x509": {"clientCAFile": "/ca"},
        "webhook": {"enabled": False, "cacheTTL": "7s"},
        "anonymous": {"enabled": True},
    },
    "authorization": {
        "mode": "AlwaysAllow",
        "webhook": {"cacheAuthorizedTTL": "8s", "cacheUnauthorizedTTL": "9s"},
    },
    "featureGates": {"MemoryQoS": True},
    "tlsCurvePreferences": [29, 4588],
    "staticPodURLHeader": {"a": ["b", "c"]},
    "logging": {"format": "json", "verbosity": 3},
    "tracing": {"endpoint": "a:1", "samplingRatePerMillion": 5},
}


def _another(name: str, value: Any) -> Any:
    """Return a value of the same type that is not the default, or None if there is none."""
    match value:
        case _ if name in SAMPLES:
            return SAMPLES[name]
        case bool():
            return not value
        case Duration():
            return "11s"
        case int() | float():
            return value + 1 if value < 1 else value - 1
        case list():
            return ["a", "b"]
        case str():
            return f"x{value}"
    return None


async def test_configz_decodes_to_the_configuration_it_came_from(serve: Any) -> None:
    defaults = KubeletConfiguration(serialize_image_pulls=True)
    fields = msgspec.structs.fields(KubeletConfiguration)
    document = {each.encode_name: _another(each.encode_name, getattr(defaults, each.name)) for each in fields}
    for name, field in {each.encode_name: each for each in fields}.items():
        kind = str(field.type)
        if document[name] is None:
            empty = {"dict": {"a": "b"}, "list": ["a"], "int": 3, "bool": True}
            document[name] = next(value for word, value in empty.items() if word in kind)
    document |= {"apiVersion": defaults.api_version, "kind": defaults.kind}
    document["staticPodURLHeader"] = {"a": ["<masked>"]}  # which is what every value is shown as
    config = convert(document, KubeletConfiguration, "sample")
    for each in fields:
        if each.name not in ("api_version", "kind"):
            assert getattr(config, each.name) != getattr(KubeletConfiguration(), each.name), each.name
    view = View()
    served = await serve(view)
    view.config = config
    shown = json.loads((await served.ask("GET", "/configz", unix=True)).body)["kubeletconfig"]
    # Not by load_config: each field differs from its default here, and some of them exclude each other.
    assert as_written(shown, KubeletConfiguration, "/configz") == config


@pytest.mark.parametrize("listener", ["read-only port", "healthz port", "unix socket"])
async def test_healthz(serve: Any, listener: str) -> None:
    view = View()
    served = await serve(view)
    kwargs: dict[str, Any] = {
        "read-only port": {},
        "healthz port": {"port": view.config.healthz_port},
        "unix socket": {"unix": True},
    }[listener]
    healthy = await served.ask("GET", "/healthz", **kwargs)
    assert (healthy.status, healthy.body) == (200, b"ok")
    view.checks = [("ping", None), ("syncloop", "no turn for 3m0s")]
    sick = await served.ask("GET", "/healthz", **kwargs)
    assert sick.status == 500
    assert b"[-]syncloop failed: no turn for 3m0s" in sick.body
    assert b"[+]ping ok" in (await served.ask("GET", "/healthz?verbose", **kwargs)).body
    assert (await served.ask("GET", "/healthz/ping", **kwargs)).status == 200
    assert (await served.ask("GET", "/healthz/other", **kwargs)).status == 404


async def test_slis_count_health_checks_by_name(serve: Any) -> None:
    view = View()
    served = await serve(view)
    await served.get("/healthz")
    view.checks = [("ping", None), ("syncloop", "it hangs")]
    text = (await served.get("/metrics/slis")).body.decode()
    labels = 'name="syncloop",type="healthz"'
    assert f"kubernetes_healthcheck{{{labels}}} 0\n" in text
    assert f'kubernetes_healthchecks_total{{{labels},status="success"}} 1\n' in text
    assert f'kubernetes_healthchecks_total{{{labels},status="error"}} 1\n' in text
    assert 'kubernetes_healthcheck{name="ping",type="healthz"} 1\n' in text
    assert "kubernetes_healthcheck" not in (await served.get("/metrics")).body.decode()


async def test_the_healthz_port_serves_nothing_else(serve: Any) -> None:
    served = await serve(View(known=[pod("a")]))
    answer = await served.ask("GET", "/pods", port=served.view.config.healthz_port)
    assert answer.status == 404


async def test_metrics_read_back_with_the_client_library(serve: Any) -> None:
    view = View()
    registry = view.registry
    registry.counter("kubelet_evictions", "Pods evicted", ["eviction_signal"]).inc('mem"\\\n', by=2)
    registry.counter("kubelet_never_counted_total", "Faults")
    registry.gauge("kubelet_running_pods", "Pods that run").set(2.5)
    registry.histogram("kubelet_pod_start_duration_seconds", "Start", ["kind"], (0.1, 1.0)).observe(0.5, "x")
    registry.collected("gauge", "kubelet_working_pods", "Pods", ["phase"], lambda: [(("Running",), 7)])
    registry.counter("prober_probe_total", "Probes", ["result"]).inc("successful")
    served = await serve(view)
    answer = await served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["kubelet_evictions_total", (("eviction_signal", 'mem"\\\n'),)] == 2
    assert samples["kubelet_never_counted_total", ()] == 0
    assert samples["kubelet_running_pods", ()] == 2.5
    assert samples["kubelet_working_pods", (("phase", "Running"),)] == 7
    buckets = [
        samples["kubelet_pod_start_duration_seconds_bucket", (("kind", "x"), ("le", le))]
        for le in ("0.1", "1", "+Inf")
    ]
    assert buckets == [0, 1, 1]
    assert samples["kubelet_pod_start_duration_seconds_sum", (("kind", "x"),)] == 0.5
    assert samples["process_resident_memory_bytes", ()] > 1e6
    assert samples["process_start_time_seconds", ()] > 1.6e9
    assert not any(name.startswith("prober") for name, _ in samples)
    assert b'prober_probe_total{result="successful"} 1\n' in (await served.get("/metrics/probes")).body


@pytest.mark.parametrize(
    ("query", "short"),
    [("", False), ("=true", True), ("=1", False), ("=true&only_cpu_and_memory=true", False)],
)
async def test_a_summary_of_cpu_and_memory_is_asked_for_as_a_kubelet_understands_it(
    serve: Any, query: str, short: bool
) -> None:
    served = await serve(View(summary={"node": 1}))
    answer = await served.get("/stats/summary" + (f"?only_cpu_and_memory{query}" if query else ""))
    assert json.loads(answer.body) == ({"short": {"node": 1}} if short else {"node": 1})


async def test_metrics_show_the_use_of_claims(serve: Any) -> None:
    amounts = {"availableBytes": 70, "capacityBytes": 100, "usedBytes": 30}
    inodes = {"inodesFree": 7, "inodes": 10, "inodesUsed": 3}
    claim = {"name": "v", "pvcRef": {"name": "c", "namespace": "n"}, **amounts, **inodes}
    served = await serve(View(claims=[claim]))
    text = (await served.get("/metrics")).body.decode()
    labels = {"namespace": "n", "persistentvolumeclaim": "c"}
    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("kubelet_volume_stats_")
    }
    assert found == {
        "kubelet_volume_stats_available_bytes": (labels, 70),
        "kubelet_volume_stats_capacity_bytes": (labels, 100),
        "kubelet_volume_stats_used_bytes": (labels, 30),
        "kubelet_volume_stats_inodes_free": (labels, 7),
        "kubelet_volume_stats_inodes": (labels, 10),
        "kubelet_volume_stats_inodes_used": (labels, 3),
    }


async def test_resource_metrics_say_that_nothing_could_be_read(serve: Any) -> None:
    view = View()

    async def away(usage: Any) -> Any:
        raise Unavailable("the runtime is away")

    view.runtime_use = away  # type: ignore[method-assign]
    answer = await (await serve(view)).get("/metrics/resource")
    assert answer.status == 200
    assert answer.body.splitlines()[-1] == b"resource_scrape_error 1"


async def test_components_describe_themselves(serve: Any) -> None:
    served = await serve(View(components={"devices": Devices(), "probes": Probes(), "mute": object()}))
    assert json.loads((await served.get("/kubengine")).body) == {"components": ["devices", "probes"]}
    assert json.loads((await served.get("/kubengine/devices?resource=a%2Fb")).body) == {"resource": "a/b"}
    assert json.loads((await served.get("/kubengine/probes")).body) == [1]
    assert (await served.get("/kubengine/mute")).status == 404
    assert (await served.get("/kubengine/devices/x")).status == 404
    unknown = await served.get("/kubengine/images")
    assert unknown.status == 404
    assert b"devices, mute, probes" in unknown.body
    wrong = await served.get("/kubengine/devices?colour=red")
    assert wrong.status == 400
    assert b"devices: unknown query parameter colour; expected resource" in wrong.body
    wrong = await served.get("/kubengine/probes?a=1&self=2")
    assert wrong.status == 400
    assert b"probes: unknown query parameters a, self; none is expected" in wrong.body


async def test_only_the_unix_socket_accepts_commands(serve: Any) -> None:
    served = await serve(View(components={"devices": Devices()}))
    assert (await served.ask("POST", "/kubengine/devices/release")).status == 403
    done = await served.ask("POST", "/kubengine/devices/release?pod=p", unix=True)
    assert json.loads(done.body) == {"did": "release", "pod": "p"}
    statuses = [
        (await served.ask("POST", f"/kubengine/devices/{action}", unix=True)).status
        for action in ("bad", "refused", "away", "bug", "crash")
    ]
    assert statuses == [400, 409, 503, 500, 500]


async def test_unknown_pages_and_methods(serve: Any) -> None:
    served = await serve(View())
    assert (await served.ask("GET", "/exec/x", unix=True)).status == 404
    assert (await served.get("/nothing")).status == 404
    assert (await served.ask("DELETE", "/pods")).status == 405
    assert (await served.ask("HEAD", "/pods")).body == b""
