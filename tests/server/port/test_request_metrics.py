"""Requests are counted by method, path and kind of server, under a bounded number of labels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.metrics import Histogram, Metric
from engine.server.http.request_metrics import path_label
from engine.server.port.server import SecurePort
from engine.testing.apiserver import Authority
from tests.ports import free_port
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.server.served import View
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/", "other"),
        ("/metrics", "metrics"),
        ("/metrics/", "metrics"),
        ("/metrics/cadvisor", "metrics/cadvisor"),
        ("/metrics/cadvisor/x", "metrics/cadvisor"),
        ("/metrics/made-up", "other"),
        ("/healthz/ping", "healthz"),
        ("/portForward/default/p", "portForward"),
        ("/stats/summary", "stats"),
        ("/../etc", "other"),
        ("metrics", "metrics"),
    ],
)
def test_a_path_has_the_label_of_a_kubelet(path: str, label: str) -> None:
    assert path_label(path) == label


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "authority")
    config = configured()
    config.authentication.webhook.enabled = False
    config.authentication.anonymous.enabled = False
    config.authorization.mode = "AlwaysAllow"
    view = SecuredView(config=config, logs=tmp_path)
    view.serving_certificate = Shown(authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, authority)
    await own.stop()


def counts(view: View, kind: str = "requests_total") -> dict[tuple[str, ...], float]:
    metric = view.registry.metrics[f"kubelet_http_{kind}"]
    assert isinstance(metric, Metric)
    return metric.values


async def test_requests_of_the_read_only_port(serve: Any) -> None:
    view = View()
    served = await serve(view)
    await served.get("/pods")
    await served.get("/pods")
    await served.get("/no/such/page")
    pods, other = ("GET", "pods", "readonly", "false"), ("GET", "other", "readonly", "false")
    assert counts(view) == {pods: 2, other: 1}
    await eventually(lambda: counts(view, "inflight_requests") == {pods: 0, other: 0})
    duration = view.registry.metrics["kubelet_http_requests_duration_seconds"]
    assert isinstance(duration, Histogram)
    assert {labels: sum(found) for labels, found in duration.counts.items()} == {pods: 2, other: 1}


async def test_requests_of_the_secure_port_count_whoever_asks(port: Secured) -> None:
    assert (await port.ask("GET", "/exec/default/p/c")).status == 401
    assert (await port.ask("BREW", "/pods")).status == 401
    view: Any = port.view
    assert counts(view) == {
        ("GET", "exec", "readwrite", "true"): 1,
        ("other", "pods", "readwrite", "false"): 1,
    }
