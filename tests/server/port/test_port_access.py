"""Which subresources a path needs, in their order (kubelet v1.36)."""

from __future__ import annotations

import pytest

from engine.server.port.access import Needs, RequestUser, needs, refusal


@pytest.mark.parametrize(
    ("path", "subresources"),
    [
        ("/pods", ("pods", "proxy")),
        ("/pods/", ("pods", "proxy")),
        ("/podsy", ("proxy",)),
        ("/runningpods/", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
        ("/healthz/syncloop", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/flagz", ("configz",)),
        ("/statusz", ("statusz",)),
        ("/checkpoint/ns/p/c", ("checkpoint",)),
        ("/stats", ("stats",)),
        ("/stats/summary", ("stats",)),
        ("/metrics", ("metrics",)),
        ("/metrics/cadvisor", ("metrics",)),
        ("/metricsx", ("proxy",)),
        ("/logs/", ("log",)),
        ("/exec/ns/p/c", ("proxy",)),
        ("/containerLogs/ns/p/c", ("proxy",)),
        ("//metrics", ("proxy",)),
        ("/", ("proxy",)),
    ],
)
def test_subresources_of_a_path(path: str, subresources: tuple[str, ...]) -> None:
    assert needs("GET", path).subresources == subresources


@pytest.mark.parametrize(
    ("method", "verb"),
    [
        ("GET", "get"),
        ("POST", "create"),
        ("PUT", "update"),
        ("PATCH", "patch"),
        ("DELETE", "delete"),
        ("HEAD", ""),
    ],
)
def test_verbs(method: str, verb: str) -> None:
    assert needs(method, "/").verb == verb


def test_a_refusal_has_the_kubelets_message() -> None:
    message = refusal(RequestUser("U"), Needs("get", ("pods", "proxy")))
    assert message == "Forbidden (user=U, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
