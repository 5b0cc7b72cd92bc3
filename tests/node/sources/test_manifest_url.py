"""Static pods from a URL: with its headers, a list or one, kept while it cannot be read."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node_rig import Rig, container
from tests.waiting import eventually


class Manifests(http.server.ThreadingHTTPServer):
    """Answer with `body` and `status`; `seen` holds the headers of the last request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body, self.status = b"", 200
        self.requests = 0
        self.seen: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}/pods"

    def serve(self, *pods: dict[str, Any]) -> None:
        value = pods[0] if len(pods) == 1 else {"kind": "PodList", "apiVersion": "v1", "items": list(pods)}
        self.body = json.dumps(value).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Manifests

    def do_GET(self) -> None:
        self.server.seen = dict(self.headers)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)
        self.server.requests += 1

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def manifests() -> Iterator[Manifests]:
    with Manifests() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pod(name: str) -> dict[str, Any]:
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container()]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def served(rig: Rig, hollow: Any, manifests: Manifests) -> Rig:
    hollow.images.add("busybox:1")
    rig.config.static_pod_url = manifests.url
    rig.config.static_pod_url_header = {"X-Node": ["n1"]}
    rig.config.http_check_frequency = type(rig.config.http_check_frequency)(0.05)
    return rig


async def test_pods_follow_the_url_and_stay_while_it_fails(served: Rig, manifests: Manifests):
    rig = served
    manifests.serve(pod("one"))
    rig.write("of-a-file", {"containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.phase("one") == "Running" and rig.phase("of-a-file") == "Running")
    assert manifests.seen["X-Node"] == "n1"
    one = rig.pod("one")
    assert one is not None
    assert one.metadata.name == "one-n1"
    assert one.annotations["kubernetes.io/config.source"] == "http"
    assert not one.spec.tolerations
    manifests.status = 503
    before = manifests.requests
    await eventually(lambda: manifests.requests > before + 3)
    assert rig.phase("one") == "Running"
    faults = [event.message for event in rig.node.recorder if event.reason == "FailedManifest"]
    assert faults == [f"{manifests.url}: 503 Service Unavailable"]
    manifests.status = 200
    manifests.serve(pod("one"), pod("two"))
    await eventually(lambda: rig.phase("two") == "Running")
    again = rig.pod("one")
    assert again is not None
    assert again.uid == one.uid
    manifests.serve(pod("two"))
    await eventually(lambda: rig.pod("one") is None)
    assert rig.phase("two") == "Running"
    assert rig.phase("of-a-file") == "Running"


async def test_a_pod_of_before_stays_until_the_url_was_read(served: Rig, manifests: Manifests):
    rig = served
    manifests.serve(pod("one"))
    await rig.start()
    await eventually(lambda: rig.phase("one") == "Running")
    uid = rig.pod("one").uid  # type: ignore[union-attr]
    await rig.stop()
    manifests.status = 500
    await rig.start()
    before = manifests.requests
    await eventually(lambda: manifests.requests > before + 3)
    assert not rig.node.running.pods.known
    manifests.status = 200
    await eventually(lambda: rig.phase("one") == "Running")
    assert rig.pod("one").uid == uid  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (
            json.dumps({"kind": "List", "items": [pod("a"), pod("a")]}).encode(),
            "several pods have the same name",
        ),
        (b"", "zero-length data received"),
        (b"{", "not valid"),
        (b'{"kind": "ConfigMap", "apiVersion": "v1"}', "expected a v1 Pod"),
        (b"x" * (11 << 20), "more than 10485760 bytes"),
    ],
)
async def test_a_document_that_is_no_pod_is_one_event(
    served: Rig, manifests: Manifests, body: bytes, fault: str
):
    rig = served
    manifests.body = body
    await rig.start()
    await eventually(lambda: manifests.requests > 3)
    faults = [event.message for event in rig.node.recorder if event.reason == "FailedManifest"]
    assert len(faults) == 1
    assert fault in faults[0]
    assert manifests.url in faults[0]
