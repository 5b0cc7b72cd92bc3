"""A node sends its syncs and its calls to the runtime as spans to a real OTLP receiver."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

from engine.api.config import KubeletConfiguration, TracingConfiguration
from engine.api.documents import convert
from engine.api.documents.kubelet_validation import validate
from engine.api.errors import InvalidInput, Refused
from engine.cri.client import RuntimeClient
from engine.host.tracing import NO_TRACING
from engine.node.node import node_tracing
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually

EVERY = 1_000_000


class Receiver(services.TraceServiceServicer):
    """Receive spans by OTLP, and keep them and their resources' attributes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.port = 0

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            self.resources.append(
                {each.key: each.value.string_value for each in resource.resource.attributes}
            )
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return messages.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    server, receiver = grpc.aio.server(), Receiver()
    services.add_TraceServiceServicer_to_server(receiver, server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield receiver
    await server.stop(None)


def attributes(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


async def test_syncs_have_the_calls_of_the_runtime_below_them(rig: Rig, receiver: Receiver) -> None:
    endpoint = f"127.0.0.1:{receiver.port}"
    rig.config.tracing = TracingConfiguration(endpoint=endpoint, sampling_rate_per_million=EVERY)
    await rig.start()
    path = rig.write("web", {"containers": [container()], "terminationGracePeriodSeconds": 0})
    await eventually(lambda: rig.phase("web") == "Running")
    path.unlink()
    await eventually(lambda: rig.pod("web") is None)
    await rig.close()
    await eventually(lambda: receiver.named("syncTerminatedPod"))
    assert receiver.resources[0]["service.name"] == "kubelet"
    assert receiver.resources[0]["host.name"] == "n1"
    (sandbox,) = receiver.named("runtime.v1.RuntimeService/RunPodSandbox")
    (parent,) = [span for span in receiver.named("syncPod") if span.span_id == sandbox.parent_span_id]
    assert parent.trace_id == sandbox.trace_id
    found = attributes(parent)
    assert found.pop("k8s.pod.uid")
    assert found == {
        "k8s.pod": "default/web-n1",
        "k8s.pod.name": "web-n1",
        "k8s.namespace.name": "default",
        "k8s.pod.update_type": "create",
    }
    assert attributes(sandbox)["rpc.method"] == "RunPodSandbox"
    terminating = {span.span_id for span in receiver.named("syncTerminatingPod")}
    (stop,) = receiver.named("runtime.v1.RuntimeService/StopPodSandbox")[:1]
    assert stop.parent_span_id in terminating


async def test_the_runtime_receives_the_context_of_the_trace(
    hollow: HollowRuntime, receiver: Receiver
) -> None:
    tracing = node_tracing(
        KubeletConfiguration(
            tracing=TracingConfiguration(f"127.0.0.1:{receiver.port}", sampling_rate_per_million=EVERY)
        ),
        "n1",
    )
    sent: list[Any] = []
    client = RuntimeClient(str(hollow.socket), tracing=tracing)
    unary = client._channel.unary

    async def seen(method: str, message: bytes, timeout: float, more: Any) -> bytes:
        sent.append(dict(more))
        return await unary(method, message, timeout, more)

    client._channel.unary = seen  # type: ignore[method-assign]
    with pytest.raises(Refused):
        await client.remove_image("")
    await client.version()
    await client.close()
    await tracing.stop()
    await eventually(lambda: len(receiver.spans) == 2)
    failed, answered = receiver.spans
    assert answered.name == "runtime.v1.RuntimeService/Version"
    version, trace, span, flags = sent[1][b"traceparent"].decode().split("-")
    assert (version, trace, span) == ("00", answered.trace_id.hex(), answered.span_id.hex())
    assert int(flags, 16) & 1, "it is sampled"
    assert (failed.status.code, answered.status.code) == (2, 0)


async def test_without_a_rate_nothing_is_sampled(hollow: HollowRuntime, receiver: Receiver) -> None:
    config = KubeletConfiguration(tracing=TracingConfiguration(f"127.0.0.1:{receiver.port}"))
    tracing = node_tracing(config, "n1")
    client = RuntimeClient(str(hollow.socket), tracing=tracing)
    await client.version()
    await client.close()
    await tracing.stop()
    assert receiver.spans == []


async def test_a_collector_that_is_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.host import otlp

    monkeypatch.setattr(otlp, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(otlp, "EXPORT_SECONDS", 1)
    config = KubeletConfiguration(
        tracing=TracingConfiguration("unix:///nowhere.sock", sampling_rate_per_million=EVERY)
    )
    tracing = node_tracing(config, "n1")
    for _ in range(2 * otlp.MOST_SPANS):
        with tracing.span("syncPod", {}):
            pass
    await tracing.stop()
    await eventually(lambda: "last spans" not in {thread.name for thread in threading.enumerate()})


def test_spans_that_end_after_their_loop_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.host import otlp

    monkeypatch.setattr(otlp, "STOP_SECONDS", 0.05)
    config = KubeletConfiguration(tracing=TracingConfiguration(sampling_rate_per_million=EVERY))
    tracing = node_tracing(config, "n1")
    assert isinstance(tracing, otlp.OtlpTracing)
    go_on = threading.Event()
    shut_down = tracing._provider.shutdown
    monkeypatch.setattr(tracing._provider, "shutdown", lambda: (go_on.wait(), shut_down()))
    asyncio.run(tracing.stop())
    (thread,) = [each for each in threading.enumerate() if each.name == "last spans"]
    go_on.set()
    thread.join()


def test_without_the_libraries_a_warning_names_the_field_and_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "engine.host.otlp", raising=False)
    with caplog.at_level(logging.WARNING, "kubengine.tracing"):
        assert node_tracing(KubeletConfiguration(tracing=TracingConfiguration()), "n1") is NO_TRACING
    (record,) = caplog.records
    assert record.getMessage() == (
        "tracing: no spans are sent, because opentelemetry.sdk.trace is not installed; "
        "install it with: pip install 'kubengine[tracing]'"
    )


def test_a_node_without_tracing_loads_none_of_it() -> None:
    code = (
        "import sys; import engine.node.node; from engine.node.node import node_tracing; "
        "from engine.api.config import KubeletConfiguration; node_tracing(KubeletConfiguration(), 'n'); "
        "print([name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'grpc')])"
    )
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("tracing", "fault"),
    [
        ({"samplingRatePerMillion": -1}, "samplingRatePerMillion: Invalid value: -1: sampling rate must be"),
        ({"samplingRatePerMillion": EVERY + 1}, "must be less than or equal to one million"),
        (
            {"endpoint": "http://x:4317"},
            'tracing.endpoint: Invalid value: "http://x:4317": unsupported scheme',
        ),
        ({"endpoint": "dns://x:4317"}, ""),
        ({"endpoint": "unix:///run/otel.sock"}, ""),
        ({"endpoint": "x:4317", "samplingRatePerMillion": 0}, ""),
    ],
)
def test_each_field_is_checked_by_name(tracing: dict[str, Any], fault: str) -> None:
    config = convert({"tracing": tracing}, KubeletConfiguration, "f")
    if not fault:
        validate(config, "f")
        return
    with pytest.raises(InvalidInput, match="tracing") as refused:
        validate(config, "f")
    assert fault in str(refused.value)
