"""Run a whole node for a test, within a second and without containers or root."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engine.api.config import KubeletConfiguration
from engine.api.documents import load_config
from engine.api.errors import NotFound, Refused, Unavailable
from engine.api.events import Event
from engine.api.pod import Pod
from engine.api.struct import to_builtins
from engine.host.mounts import unmount_below
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.runtime.hollow import HollowRuntime
from engine.testing.loop_thread import LoopThread, Synchronous

if TYPE_CHECKING:
    from engine.testing.threaded_server import ThreadedApiServer

Document = Mapping[str, Any]
SECONDS = 30.0
POLL_SECONDS = 0.02
DEFAULTS: Document = {
    "resolvConf": "",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100,
    "enableServer": False,
}
"""What keeps the machine out of a test: neither its cgroups, its memory and disk, nor its ports."""
FINAL_PHASES = ("Failed", "Succeeded")
MOUNT_FAILURES = ("FailedMount", "FailedMapVolume")
MOUNT_POLLS = round(1.5 / POLL_SECONDS)
"""The agent mounts again after a second: a fault that a test planned for one call is over by then."""
CSI_DRIVER: Document = {
    "attachRequired": False,
    "podInfoOnMount": False,
    "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "requiresRepublish": False,
}
"""The defaults of an API server, but for attachments, which need a controller."""


class HollowNode:
    """Run a node agent on the hollow runtime, in a thread of its own. A context manager.

    The agent is the real one, the containers are states: they run, end and fail as the test says, also by
    annotations (`engine.runtime.hollow`). `config` has fields of a KubeletConfiguration. With `server`, the
    node joins its cluster. Methods wait and need no event loop. All files are in a temporary directory, which
    `close` removes.
    """

    def __init__(
        self, name: str = "node", config: Document | None = None, *, server: ThreadedApiServer | None = None
    ) -> None:
        self.name = name
        self._server = server
        with ExitStack() as stack:
            # Short: the sockets below it take at most 107 characters.
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kn-")))
            stack.callback(unmount_below, self.directory)
            self._manifests = self.directory / "manifests"
            self._manifests.mkdir()
            self._config = self._read_config(config or {})
            self._thread = stack.enter_context(LoopThread())
            self._stack = stack.pop_all()
        self._runtime = HollowRuntime(self.directory / "cri.sock")
        self._names = itertools.count()
        self._node: Node | None = None

    def __enter__(self) -> Self:
        try:
            self._thread.call(self._runtime.start)
            self._stack.callback(self._thread.call, self._runtime.stop)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Life

    def start(self) -> None:
        """Start the agent, again after `stop`; pods that run are adopted."""
        kubeconfig = self._server.kubeconfig(f"system:node:{self.name}") if self._server else None
        node = Node(
            config=self._config,
            runtime_endpoint=str(self.directory / "cri.sock"),
            root=self.root,
            name=self.name,
            options=NodeOptions(kubeconfig=kubeconfig),
        )
        self._thread.call(node.start)
        self._node = node

    def stop(self) -> None:
        """Stop the agent; pods keep running."""
        if self._node is not None:
            node, self._node = self._node, None
            self._thread.call(node.stop)

    def close(self) -> None:
        """End pods, plugins, agent and runtime, and remove the files."""
        with self._stack:
            if self._node is not None:
                self._thread.call(self._node.remove_all_pods)
            self.stop()

    @property
    def root(self) -> Path:
        """Return the agent's root directory, a kubelet's `/var/lib/kubelet`."""
        return self.directory / "root"

    @property
    def runtime(self) -> Any:
        """Return the hollow runtime, whose methods need no `await`."""
        return Synchronous(self._thread, self._runtime)

    @property
    def node(self) -> Any:
        """Return the agent, an `engine.Node` whose methods need no `await`."""
        return Synchronous(self._thread, self._running())

    # Pods

    def run(self, pod: Document, phase: str = "Running", timeout: float = SECONDS) -> dict[str, Any]:
        """Give a pod to the node and return it as a document when it is in `phase`.

        A pod with init containers or a readiness probe may be Running before it is ready: use `wait_until`.
        Raise `Refused` with the cause as soon as the pod cannot get there by itself: the node refused its
        manifest, it is in another final phase, or a volume is still not mounted after the first retry. Raise
        `Unavailable` after `timeout` seconds, with the pod's status and events.
        """
        begun = time.time()
        name = self.apply(pod)
        mounts_left = MOUNT_POLLS

        def reached() -> bool:
            nonlocal mounts_left
            now = (self.status(name) or {}).get("phase")
            if now == phase:
                return True
            cause = self._refusal(name, now, begun)
            if not cause and (unmounted := self._mount_failure(name, begun)):
                mounts_left -= 1
                cause = unmounted if mounts_left < 0 else ""
            if cause:
                raise Refused(f"will not be {phase}: {cause}", subject=f"pod {name}")
            return False

        self.wait_until(reached, timeout, about=name)
        return self.pod(name)

    def apply(self, pod: Document) -> str:
        """Give a pod to the node, or change it, and return its `namespace/name` without waiting.

        Without an API server it is a static pod, whose name ends with the node's.
        """
        metadata = {"namespace": "default", **pod.get("metadata", {})}
        usual = {"image": "hollow", "imagePullPolicy": "IfNotPresent"}
        spec = {"terminationGracePeriodSeconds": 1, **pod["spec"]}
        spec["containers"] = [{**usual, **container} for container in spec["containers"]]
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        if self._server is not None:
            spec["nodeName"] = self.name
            self._server.create(f"/api/v1/namespaces/{metadata['namespace']}/pods", whole)
            return f"{metadata['namespace']}/{metadata['name']}"
        path = self._manifest(metadata["namespace"], metadata["name"])
        temporary = self._manifests / f".{next(self._names)}"
        temporary.write_text(json.dumps(whole))
        temporary.replace(path)
        return f"{metadata['namespace']}/{metadata['name']}-{self.name}"

    def delete(self, pod: str, timeout: float = SECONDS) -> None:
        """Delete a pod by `namespace/name` or name, and wait until it is gone."""
        namespace, name = self._full_name(pod).split("/")
        if self._server is not None:
            self._server.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace=1)
        else:
            self._manifest(namespace, name.removesuffix(f"-{self.name}")).unlink()
        self.wait_until(lambda: self._find(pod) is None, timeout, about=pod)

    def pod(self, pod: str) -> dict[str, Any]:
        """Return a pod as a document, as `kubectl get -o json` prints it. Raise `NotFound`."""
        found = self._find(pod)
        if found is None:
            raise NotFound(f"the node has no pod {pod}", subject=f"node {self.name}")
        document: dict[str, Any] = to_builtins(found)
        return document

    def status(self, pod: str) -> dict[str, Any] | None:
        """Return a pod's status, None without the pod."""
        found = self._find(pod)
        return to_builtins(found.status) if found is not None else None

    def end_container(
        self, pod: str, container: str | None = None, *, exit_code: int = 0, reason: str = ""
    ) -> None:
        """End a container as if its process had exited; the first of the pod without a name."""
        statuses = (self.status(pod) or {}).get("containerStatuses", [])
        found = next((each for each in statuses if container in (None, each["name"])), None)
        if found is None or not found.get("containerID"):
            raise NotFound(f"no container {container or ''} of it runs", subject=f"pod {pod}")
        id = found["containerID"].partition("://")[2]
        self._thread.call(self._runtime.end_container, id, exit_code=exit_code, reason=reason)

    def events(self, reason: str = "") -> list[Event]:
        """Return the agent's events, oldest first, with this reason if one is given."""
        found: list[Event] = self._thread.call(lambda: list(self._running().recorder))
        return [event for event in found if reason in ("", event.reason)]

    def wait_until(
        self, condition: Callable[[], object], timeout: float = SECONDS, *, about: str = ""
    ) -> None:
        """Wait until `condition` is true; it is asked often. Raise `Unavailable` after `timeout` seconds.

        The time in which a busy machine does not run the test does not count.
        """
        for _ in range(max(1, round(timeout / POLL_SECONDS))):
            if condition():
                return
            self._thread.call(asyncio.sleep, POLL_SECONDS)
        raise Unavailable(
            f"still not as awaited after {timeout:g} s. {self._describe(about)}",
            subject=f"pod {about}" if about else self.name,
        )

    # Plugins

    def device_plugin(self, resource: str, count: int = 1, **options: Any) -> Any:
        """Start a device plugin with `count` devices, register it, and return it when the node offers them.

        It is a `SampleDevicePlugin`, whose methods need no `await`; `options` are its own.
        """
        from engine.testing.device_plugin import SampleDevicePlugin

        directory = self.root / "device-plugins"
        socket = directory / f"sample-{next(self._names)}.sock"
        plugin = self._thread.call(lambda: SampleDevicePlugin(resource, socket, count=count, **options))
        self._thread.call(plugin.start)
        self._stack.callback(self._thread.call, plugin.stop)
        self._thread.call(plugin.follow, directory)
        self.wait_until(lambda: resource in self.allocatable(), about="")
        return Synchronous(self._thread, plugin)

    def csi_driver(
        self, name: str = "sample.csi.example.com", spec: Document | None = None, **options: Any
    ) -> Any:
        """Start a CSI driver and return it when the node has accepted its registration; needs root.

        Its CSIDriver object, with these fields of a spec, is created in the node's cluster. The result is a
        `SampleCsiDriver`, whose methods need no `await`; `options` are its own.
        """
        from engine.testing.csi_driver import SampleCsiDriver

        if self._server is not None:
            known = {"metadata": {"name": name}, "spec": {**CSI_DRIVER, **(spec or {})}}
            self._server.create("/apis/storage.k8s.io/v1/csidrivers", known)
        directory = self.directory / f"csi-{next(self._names)}"
        driver = self._thread.call(
            lambda: SampleCsiDriver(directory, self.root / "plugins_registry", name, **options)
        )
        self._thread.call(driver.start)
        self._stack.callback(self._thread.call, driver.stop)
        self.wait_until(lambda: any(each.plugin_registered for each in driver.status))
        return Synchronous(self._thread, driver)

    def allocatable(self) -> dict[str, str]:
        """Return what pods may use, as in the Node's status."""
        document: dict[str, Any] = to_builtins(self._thread.call(self._running().node_object))
        return {name: str(amount) for name, amount in document["status"]["allocatable"].items()}

    # Helpers

    def _read_config(self, fields: Document) -> KubeletConfiguration:
        paths = {"staticPodPath": str(self._manifests), "podLogsDir": str(self.directory / "logs")}
        kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
        path = self.directory / "config.json"
        path.write_text(json.dumps({**kind, **DEFAULTS, **paths, **fields}))
        return load_config([path])[0]

    def _running(self) -> Node:
        if self._node is None:
            raise Unavailable("its agent is stopped", subject=f"node {self.name}")
        return self._node

    def _manifest(self, namespace: str, name: str) -> Path:
        return self._manifests / f"{namespace}.{name}.json"

    def _full_name(self, pod: str) -> str:
        whole = pod if "/" in pod else f"default/{pod}"
        static = self._server is None and not whole.endswith(f"-{self.name}")
        return f"{whole}-{self.name}" if static else whole

    def _find(self, pod: str) -> Pod | None:
        wanted = self._full_name(pod)
        pods: list[Pod] = self._thread.call(self._running().pods)
        return next((each for each in pods if each.full_name == wanted), None)

    def _refusal(self, pod: str, phase: str | None, begun: float) -> str:
        """Return why a pod has ended or its manifest, applied at `begun`, was refused; or nothing."""
        if phase in FINAL_PHASES:
            return f"it is {phase}. {self._describe(pod)}"
        namespace, name = pod.split("/")
        manifest = str(self._manifest(namespace, name.removesuffix(f"-{self.name}")))
        refused = (event.message for event in self.events("FailedManifest") if event.at >= begun)
        return next((message for message in refused if message.startswith(manifest)), "")

    def _mount_failure(self, pod: str, begun: float) -> str:
        """Return why a volume of the pod could not be mounted since `begun`, or nothing."""
        events = [event for event in self.events() if event.pod == pod and event.at >= begun]
        return next((event.message for event in events if event.reason in MOUNT_FAILURES), "")

    def _describe(self, pod: str) -> str:
        status = self.status(pod) if pod else None
        name = self._full_name(pod) if pod else ""
        events = [f"{event.reason}: {event.message}" for event in self.events() if event.pod == name]
        return f"Status: {json.dumps(status)}. Last events: {'; '.join(events[-5:]) or 'none'}"
