"""Sends spans to a collector by OTLP over gRPC, as a kubelet does (KubeletTracing).

Import it only if the configuration has `tracing`: it loads OpenTelemetry and grpcio, which the extra
`tracing` installs. Spans are sent in the background. At most `MOST_SPANS` wait, so that a collector that is
slow or gone loses spans and costs nothing else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.api.config import TracingConfiguration
from engine.host.tracing import Fields

SERVICE: Final = "kubelet"
SCOPE: Final = "k8s.io/kubernetes/pkg/kubelet"
DEFAULT_ENDPOINT: Final = "localhost:4317"
MOST_SPANS: Final = 2048
EXPORT_SECONDS: Final = 10
STOP_SECONDS: Final = 5.0
_MILLION: Final = 1_000_000


class OtlpTracing:
    """Send the spans of one node; implements `engine.host.tracing.Tracing`."""

    def __init__(self, config: TracingConfiguration, node: str) -> None:
        rate = config.sampling_rate_per_million
        # Without a rate, only traces that a caller has begun are sampled, as component-base does.
        root = ALWAYS_OFF if rate is None else TraceIdRatioBased(rate / _MILLION)
        resource = Resource.create({"service.name": SERVICE, "host.name": node})
        endpoint = (config.endpoint or DEFAULT_ENDPOINT).removeprefix("dns://").lstrip("/")
        if (config.endpoint or "").startswith("unix"):
            endpoint = config.endpoint or ""
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=EXPORT_SECONDS)
        self._provider = TracerProvider(sampler=ParentBased(root), resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MOST_SPANS))
        self._tracer = self._provider.get_tracer(SCOPE)
        self._propagator = TraceContextTextMapPropagator()

    def span(self, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
        return self._tracer.start_as_current_span(name, attributes=attributes)

    @contextmanager
    def call(self, service: str, method: str) -> Iterator[Fields]:
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        name = f"{service}/{method}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            yield [(key.encode(), value.encode()) for key, value in carrier.items()]

    async def stop(self) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # nobody waits any longer, and the loop is closed
                loop.call_soon_threadsafe(done.set)

        # A daemon thread, so that a collector that does not answer cannot delay the end of the process.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await done.wait()
        except TimeoutError:
            return
