"""Create the pods with which agents are measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from engine.api.errors import InvalidInput, Unavailable
from engine.bench.workspace import Workspace
from engine.wire import cri_v1_pb2 as cri
from engine.wire.cri_v1_pb2_grpc import ImageServiceStub, RuntimeServiceStub

IMAGE = "registry.invalid/kubengine/bench:1"
PREFIX = "bench-"
NAMESPACE = "bench"
DEFAULT_LOGS = Path("/var/log/pods")


@contextmanager
def runtime_service(endpoint: str) -> Iterator[Any]:
    """Yield the stub of a runtime's RuntimeService. A call that fails raises `Unavailable`."""
    with _channel(endpoint) as channel:
        yield RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def image_service(endpoint: str) -> Iterator[Any]:
    """Yield the stub of a runtime's ImageService. A call that fails raises `Unavailable`."""
    with _channel(endpoint) as channel:
        yield ImageServiceStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def _channel(endpoint: str) -> Iterator[grpc.Channel]:
    # A list of ten thousand containers is larger than gRPC's default limit.
    with grpc.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", 64 << 20)]) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise Unavailable(str(error.details()), subject=endpoint) from None


def expect_image(endpoint: str) -> None:
    """Raise `InvalidInput` if a runtime lacks the image of the bench's pods, which no registry provides."""
    asked = cri.ImageStatusRequest(image=cri.ImageSpec(image=IMAGE))
    with image_service(endpoint) as stub:
        found = stub.ImageStatus(asked, timeout=30).HasField("image")
    if not found:
        raise InvalidInput(
            f"has no image {IMAGE}; give one with /bin/sleep and /bin/true that name, such as "
            f"`ctr -n k8s.io images tag docker.io/library/busybox:latest {IMAGE}`",
            subject=endpoint,
        )


def pod(
    name: str, *, containers: int = 1, probes: Sequence[dict[str, Any]] = (), priority: int | None = None
) -> dict[str, Any]:
    """Return a manifest. `probes[i]` is a dict of probes for container i; later containers have none."""
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": f"c{index}",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sleep", "infinity"],
                "resources": {"requests": {"memory": "1Mi"}, "limits": {"memory": "64Mi"}},
                **(probes[index] if index < len(probes) else {}),
            }
            for index in range(containers)
        ],
    }
    if priority is not None:
        spec["priority"] = priority
    metadata = {"name": f"{PREFIX}{name}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def http_probe(port: int, path: str, *, period: int) -> dict[str, Any]:
    return {
        "httpGet": {"host": "127.0.0.1", "port": port, "path": path},
        "periodSeconds": period,
        "timeoutSeconds": 5,
    }


def tcp_probe(port: int, *, period: int) -> dict[str, Any]:
    return {"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": period, "timeoutSeconds": 5}


def exec_probe(*, period: int) -> dict[str, Any]:
    return {"exec": {"command": ["/bin/true"]}, "periodSeconds": period, "timeoutSeconds": 5}


def put(workspace: Workspace, pods: Sequence[dict[str, Any]]) -> None:
    """Write manifests so that no agent sees a partial file, all at (nearly) one moment."""
    names = []
    for each in pods:
        name = f"{each['metadata']['name']}.json"
        (workspace.staging / name).write_text(json.dumps(each))
        names.append(name)
    for name in names:
        (workspace.staging / name).replace(workspace.manifests / name)


def take(workspace: Workspace, names: Sequence[str]) -> None:
    """Remove manifests by pod name."""
    for name in names:
        (workspace.manifests / f"{PREFIX}{name}.json").unlink()


def sandboxes(endpoint: str) -> set[str]:
    """Return ids of the runtime's sandboxes of bench pods, from any run. Raise `Unavailable`."""
    with runtime_service(endpoint) as stub:
        items = stub.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=30).items
    return {
        each.id
        for each in items
        if each.metadata.name.startswith(PREFIX)
        and (each.metadata.namespace == NAMESPACE or each.metadata.namespace.startswith(f"{NAMESPACE}-"))
    }


def remove_sandboxes(endpoint: str, ids: Iterable[str]) -> None:
    """Remove sandboxes with their containers. Raise `Unavailable`."""
    with runtime_service(endpoint) as stub:
        for id in ids:
            stub.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=id), timeout=60)
            stub.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=id), timeout=60)


def remove_default_logs() -> None:
    """Remove logs that a kubelet without a configurable directory has left in the default one."""
    for directory in DEFAULT_LOGS.glob(f"{NAMESPACE}_{PREFIX}*"):
        shutil.rmtree(directory, ignore_errors=True)
