"""An interLink plugin: pods that a cluster sends to this machine run under a node agent in this process.

interLink's virtual kubelet forwards pods to a plugin over HTTP: POST /create, POST /delete, GET /status and
GET /getLogs. This plugin runs them as pods of an `engine.Node`, so they get cgroups, probes, restarts,
devices and eviction as on a node of the cluster, without a kubelet and without access to its API server.

Run it next to interLink's API server, as root or as a user with a runtime of their own:

    python examples/interlink_plugin.py --root /var/lib/interlink --runtime unix:///run/containerd/containerd.sock

Volumes from ConfigMaps, Secrets and tokens become directories below `--root` with the contents that interLink
sends; persistent volumes are refused. Delete and create are idempotent, as interLink repeats them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import copy
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from engine import InvalidInput, KubeletConfiguration, LogOptions, Node, Pod, to_document

log = logging.getLogger("interlink")
Document = dict[str, Any]
NODE = "interlink"
EVICTABLE = {"kubernetes.io/config.source": "api"}
"""Makes a manifest the pod of an API server: static pods are critical, and never evicted."""
KEPT_FIELDS = ("name", "namespace", "labels", "annotations")
CLUSTER_FIELDS = (
    "nodeName", "nodeSelector", "tolerations", "affinity", "schedulerName", "serviceAccount",
    "serviceAccountName", "imagePullSecrets", "preemptionPolicy", "priorityClassName",
    "topologySpreadConstraints",
)  # fmt: skip
"""What the cluster has decided on already, or what only an API server resolves."""
SENT = {"configMap": "configMaps", "secret": "secrets", "projected": "projectedvolumemaps"}
"""Kinds of volumes whose contents interLink sends, and under which key of a container it does."""


class InterLinkPlugin:
    """Run the pods that interLink sends. Every method may be called from any thread.

    `directory` holds manifests and volumes. A pod is known by its uid in the cluster; the agent gives the
    pod a uid of its own, which interLink gets as its job id.
    """

    def __init__(self, directory: Path, runtime_endpoint: str, **config: Any) -> None:
        self._manifests, self._volumes = directory / "manifests", directory / "volumes"
        for path in (self._manifests, self._volumes):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.node = Node(
            config=KubeletConfiguration(
                static_pod_path=str(self._manifests), pod_logs_dir=str(directory / "logs"), **config
            ),
            runtime_endpoint=runtime_endpoint,
            root=directory / "node",
            name=NODE,
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the agent; pods of an earlier run are adopted."""
        self._loop = asyncio.get_running_loop()
        await self.node.start()

    # The protocol

    def create(self, sent: Document) -> Document:
        """Run a pod. Raise `InvalidInput` for a pod that needs what interLink does not send."""
        pod = sent["pod"]
        uid = pod["metadata"]["uid"]
        manifest = local_pod(pod, self._volume_paths(uid, pod, sent.get("container") or []))
        write_atomically(self._manifests / f"{uid}.json", json.dumps(manifest))
        log.info("pod %s/%s accepted", manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        return {
            "PodUID": uid,
            "PodJID": f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}",
        }

    def delete(self, pod: Document) -> str:
        """End a pod; the agent gives it its grace period, and removes it."""
        uid = pod["metadata"]["uid"]
        (self._manifests / f"{uid}.json").unlink(missing_ok=True)
        shutil.rmtree(self._volumes / uid, ignore_errors=True)
        return f"pod {pod['metadata'].get('name', uid)} is deleted"

    def statuses(self, pods: list[Document]) -> list[Document]:
        """Return the containers' statuses of the pods that are known; interLink reports others as lost."""
        known = {(pod.metadata.namespace, pod.metadata.name): pod for pod in self._call(self._pods)}
        return [
            found
            for pod in pods
            if (found := self._status(pod, known.get(full_name(pod["metadata"])))) is not None
        ]

    def ping(self) -> Document:
        """Return what the virtual node may offer: the agent's allocatable resources."""
        allocatable = self._call(self._allocatable)
        return {"status": "ok", "resources": {name: allocatable[name] for name in ("cpu", "memory", "pods")}}

    def logs(self, wanted: Document) -> bytes:
        """Return a container's log as `kubectl logs` prints it. Raise `InvalidInput` without one."""
        options = wanted.get("Opts") or {}
        namespace, name = full_name({"namespace": wanted["Namespace"], "name": wanted["PodName"]})
        return b"".join(self._call(self._read_log, namespace, name, wanted["ContainerName"], options))

    # In the agent's loop

    def _call(self, function: Any, *arguments: Any) -> Any:
        assert self._loop is not None, "the agent has not been started"
        return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result(60)

    async def _pods(self) -> list[Pod]:
        return self.node.pods()

    async def _allocatable(self) -> dict[str, str]:
        status = self.node.node_object().status
        return {name: str(amount) for name, amount in (status.allocatable or {}).items()}

    async def _read_log(self, namespace: str, name: str, container: str, options: Document) -> list[bytes]:
        wanted = LogOptions(
            tail=options.get("Tail") or None,
            limit=options.get("Bytes") or None,
            timestamps=bool(options.get("Timestamps")),
            previous=bool(options.get("Previous")),
        )
        return [piece async for piece in await self.node.containers.logs(namespace, name, container, wanted)]

    # Documents

    def _status(self, pod: Document, found: Pod | None) -> Document | None:
        uid = pod["metadata"]["uid"]
        if found is None:
            if not (self._manifests / f"{uid}.json").exists():
                return None
            waiting = {"waiting": {"reason": "ContainerCreating"}}
            containers = [{"name": each["name"], "state": waiting} for each in pod["spec"]["containers"]]
            return self._answer(pod, "", containers, [])
        status = to_document(found)["status"]
        containers = status.get("containerStatuses", [])
        if status.get("reason"):  # rejected or evicted: tell each container why
            ended = {"exitCode": 1, "reason": status["reason"], "message": status.get("message", "")}
            names = [each["name"] for each in pod["spec"]["containers"]]
            containers = [{"name": name, "state": {"terminated": ended}} for name in names]
        return self._answer(pod, found.metadata.uid, containers, status.get("initContainerStatuses", []))

    def _answer(
        self, pod: Document, job: str, containers: list[Document], init_containers: list[Document]
    ) -> Document:
        metadata = pod["metadata"]
        return {
            "name": metadata["name"],
            "namespace": metadata.get("namespace", "default"),
            "UID": metadata["uid"],
            "JID": job,
            "containers": containers,
            "initContainers": init_containers,
        }

    def _volume_paths(self, uid: str, pod: Document, containers: list[Document]) -> dict[str, Path]:
        """Write the contents of volumes and return their directories by the volume's name."""
        contents: dict[tuple[str, str], Document] = {}
        for container in containers:
            for key in SENT.values():
                for sent in container.get(key) or ():
                    contents[key, sent["metadata"]["name"]] = sent
        paths = {}
        for volume in pod["spec"].get("volumes") or ():
            kind = next((kind for kind in SENT if kind in volume), None)
            if kind is not None:
                source = volume[kind] or {}
                name = source.get("name") or source.get("secretName") or volume["name"]
                path = paths[volume["name"]] = self._volumes / uid / volume["name"]
                path.mkdir(mode=0o755, parents=True, exist_ok=True)
                for file, data in files_of(contents.get((SENT[kind], name), {})):
                    write_atomically(path / file, data)
        return paths


# Pure functions over documents


def local_pod(pod: Document, volumes: Mapping[str, Path]) -> Document:
    """Return the manifest that runs a cluster's pod on a machine outside of it.

    `volumes` are the directories that take the place of volumes whose contents interLink has sent. Raise
    `InvalidInput` for a volume that this machine cannot provide.
    """
    metadata = {name: value for name, value in pod["metadata"].items() if name in KEPT_FIELDS}
    metadata.setdefault("namespace", "default")
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **EVICTABLE}
    spec = {name: value for name, value in copy.deepcopy(pod["spec"]).items() if name not in CLUSTER_FIELDS}
    spec["automountServiceAccountToken"] = False
    for position, volume in enumerate(spec.get("volumes") or ()):
        name = volume["name"]
        if name in volumes:
            spec["volumes"][position] = {
                "name": name,
                "hostPath": {"path": str(volumes[name]), "type": "Directory"},
            }
        elif not volume.keys() & {"emptyDir", "hostPath"}:
            kind = next(iter(volume.keys() - {"name"}), "unknown")
            raise InvalidInput(
                f"volume {name}: {kind} is not available outside of the cluster", subject=metadata["name"]
            )
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def full_name(metadata: Document) -> tuple[str, str]:
    """Return namespace and name under which the agent lists a pod."""
    return metadata.get("namespace") or "default", metadata["name"]


def files_of(sent: Document) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a ConfigMap or Secret, whose binary values are base64."""
    is_secret = sent.get("kind") == "Secret" or "type" in sent
    for name, value in (sent.get("data") or {}).items():
        yield name, base64.b64decode(value) if is_secret else value.encode()
    for name, value in (sent.get("stringData") or {}).items():
        yield name, value.encode()
    for name, value in (sent.get("binaryData") or {}).items():
        yield name, base64.b64decode(value)


def write_atomically(path: Path, content: str | bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)


# HTTP


class Handler(BaseHTTPRequestHandler):
    """Translate requests to calls of the server's `plugin`; 400 with the reason for a pod that is refused."""

    protocol_version = "HTTP/1.1"
    server: PluginServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        plugin = self.server.plugin
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            value = json.loads(body) if body.strip() else None
            match self.command, urlsplit(self.path).path:
                case "POST", "/create":
                    self._send(200, plugin.create(value))
                case "POST", "/delete":
                    self._send(200, plugin.delete(value))
                case "GET", "/status":
                    self._send(200, plugin.statuses(value) if value else plugin.ping())
                case "GET", "/getLogs":
                    self._send(200, plugin.logs(value))
                case _:
                    self._send(404, {"detail": f"no {self.command} {self.path} here"})
        except (InvalidInput, KeyError, ValueError) as error:
            self._send(400, {"detail": f"{type(error).__name__}: {error}"})
        except Exception as error:  # interLink tries again
            log.exception("%s %s", self.command, self.path)
            self._send(500, {"detail": str(error)})

    def _send(self, code: int, value: Any) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(value, bytes) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)


class PluginServer(ThreadingHTTPServer):
    """Serve a plugin on an address; 127.0.0.1 by default, as the protocol has no authentication."""

    daemon_threads = True

    def __init__(self, plugin: InterLinkPlugin, host: str = "127.0.0.1", port: int = 4000) -> None:
        self.plugin = plugin
        super().__init__((host, port), Handler)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--root", type=Path, required=True, help="directory of manifests, volumes and the agent"
    )
    parser.add_argument("--runtime", default="unix:///run/containerd/containerd.sock", help="CRI endpoint")
    parser.add_argument("--port", type=int, default=4000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    plugin = InterLinkPlugin(options.root, options.runtime)
    await plugin.start()
    server = PluginServer(plugin, port=options.port)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        await asyncio.Event().wait()
    finally:
        server.shutdown()
        await plugin.node.stop()  # pods go on; the next start adopts them


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
