"""A JupyterHub spawner for one large machine: users' servers are pods under a node agent in the hub.

    c.JupyterHub.spawner_class = "jupyterhub_spawner.KubengineSpawner"   # this file, on the hub's PYTHONPATH
    c.JupyterHub.hub_ip = "0.0.0.0"
    c.JupyterHub.hub_connect_ip = "192.0.2.7"   # the machine's; that of a bridge comes with the first pod
    c.KubengineSpawner.image = "quay.io/jupyter/base-notebook:latest"
    c.KubengineSpawner.home = "/srv/homes"
    c.Spawner.mem_limit, c.Spawner.mem_guarantee = "8G", "1G"
    c.Spawner.cpu_limit, c.Spawner.cpu_guarantee = 4, 0.5
    c.KubengineSpawner.extra_resources = {"nvidia.com/gpu": 1}
    c.KubengineSpawner.idle_seconds = 1800

It needs a CRI runtime such as containerd and root, but neither Kubernetes nor Docker. What it adds to a
spawner of processes:

- Limits and guarantees become cgroup values as on a node of Kubernetes; a server that does not fit is refused
  with the resource that is short, and devices come from device plugins.
- When the machine runs short of memory, disk or process ids, the user furthest above the guarantee is
  evicted. The hub logs the reason, and shows it to the user at the next start; the same holds for an
  out-of-memory kill.
- The memory of a server that has been idle for `idle_seconds` is reclaimed once: page cache, and with swap
  also its data. The server goes on.
- Servers survive a restart of the hub, which adopts them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.spawner import Spawner
from jupyterhub.utils import random_port
from traitlets import Dict, Integer, Unicode, default

from engine import KubeletConfiguration, Node, cgroup_tree, convert, to_document

Document = dict[str, Any]
NODE = "jupyterhub"
LONGEST_SLUG = 40
EVICTABLE = {"kubernetes.io/config.source": "api"}
"""Makes a manifest the pod of an API server: static pods are critical, and never evicted."""
CONTAINER = "server"
POLL_SECONDS = 0.1


class SpawnFailed(Exception):
    """Raised if the node cannot run a server; JupyterHub shows `jupyterhub_message` to the user."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.jupyterhub_message = f"Your server cannot run: {reason}"


class KubengineSpawner(Spawner):
    """Run a user's server as a pod of a node agent, which all spawners of a hub share."""

    runtime_endpoint = Unicode("unix:///run/containerd/containerd.sock", help="CRI endpoint").tag(config=True)
    root = Unicode("/var/lib/kubengine-jupyterhub", help="directory of the agent").tag(config=True)
    node_config = Dict(help="fields of a KubeletConfiguration").tag(config=True)
    image = Unicode("quay.io/jupyter/base-notebook:latest").tag(config=True)
    home = Unicode("", help="directory of the homes; without one, a home lasts as long as its server").tag(
        config=True
    )
    home_path = Unicode("/home/jovyan", help="where a container has its home").tag(config=True)
    home_size = Unicode("", help="the most that a home without `home` may hold, e.g. 10Gi").tag(config=True)
    uid = Integer(1000).tag(config=True)
    gid = Integer(100).tag(config=True)
    extra_resources = Dict(help="limits of devices and other resources").tag(config=True)
    pod_spec = Dict(help="further fields of the pod's spec; volumes are added").tag(config=True)
    container_spec = Dict(help="further fields of the container; volumeMounts are added").tag(config=True)
    idle_seconds = Integer(0, help="reclaim memory after this time without activity; 0: never").tag(
        config=True
    )

    _agent: ClassVar[asyncio.Task[Node] | None] = None
    ended = ""
    """Why the last server ended, when the user did not end it."""
    _reclaimed_at: float = 0.0

    @default("ip")
    def _every_address(self) -> str:
        return "0.0.0.0"

    @default("env_keep")
    def _nothing_of_the_hub(self) -> list[str]:
        return []  # the image has its own PATH

    # The protocol of spawners

    async def start(self) -> tuple[str, int]:
        """Start the server and return its address. Raise `SpawnFailed` if the node refuses it."""
        node = await self._node()
        await self._remove_pod(node)
        self.port = self.port or random_port()
        if self.home:
            await asyncio.to_thread(self._make_home)
        write_atomically(self._manifest, json.dumps(self._pod_manifest()))
        while True:
            if (pod := self._pod(node)) is not None:
                if reason := self._reason_of_end(node, pod):
                    await self._remove_pod(node)
                    raise SpawnFailed(reason)
                status = pod["status"]
                if status.get("phase") == "Running" and status.get("podIP"):
                    self.log.info("server of %s is at %s port %d", self._log_name, status["podIP"], self.port)
                    return status["podIP"], self.port
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self, now: bool = False) -> None:
        """End the server; it gets its grace period."""
        self.ended = ""
        await self._remove_pod(await self._node())

    async def poll(self) -> int | None:
        """Return None while the server runs, else its exit status; keep the reason of its end."""
        if not self._manifest.exists():
            return 0
        node = await self._node()
        pod = self._pod(node)
        if pod is None:
            return None  # the agent has just started, and has not read the manifest yet
        if reason := self._reason_of_end(node, pod):
            self.ended = reason
            self.log.warning("server of %s: %s", self._log_name, reason)
            await self._remove_pod(node)
            return exit_code(pod)
        await self._reclaim_if_idle(node, pod)
        return None

    async def progress(self) -> AsyncIterator[Document]:
        """Show why the last server ended, and each state of the new one."""
        if self.ended:
            yield {"progress": 5, "message": f"Your last server ended: {self.ended}"}
        node, shown = await self._node(), ""
        while self._spawn_pending:
            pod = self._pod(node)
            message = waiting_reason(pod) if pod is not None else ""
            if message and message != shown:
                yield {"progress": 50, "message": message}
                shown = message
            await asyncio.sleep(POLL_SECONDS)

    def get_state(self) -> Document:
        """Return what a restarted hub needs: the manifest has the rest."""
        return {**super().get_state(), "ended": self.ended}

    def load_state(self, state: Document) -> None:
        super().load_state(state)
        self.ended = state.get("ended", "")

    # The agent

    async def _node(self) -> Node:
        """Return the agent; the first spawner that needs it starts it, in the hub's event loop."""
        if KubengineSpawner._agent is None:
            KubengineSpawner._agent = asyncio.create_task(self._start_node())
        try:
            return await asyncio.shield(KubengineSpawner._agent)
        except BaseException:
            if KubengineSpawner._agent.done():
                KubengineSpawner._agent = None  # the next spawner tries again
            raise

    async def _start_node(self) -> Node:
        directory = Path(self.root)
        self._manifest.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # manifests have users' tokens
        given = {
            "podLogsDir": str(directory / "logs"),
            "enableServer": False,
            **self.node_config,
            "staticPodPath": str(self._manifest.parent),
        }
        node = Node(
            config=convert(given, KubeletConfiguration, "node_config"),
            runtime_endpoint=self.runtime_endpoint,
            root=directory / "node",
            name=NODE,
        )
        await node.start()
        return node

    @property
    def _pod_name(self) -> str:
        parts = (self.user.name, self.name) if self.name else (self.user.name,)
        return "--".join(["hub", *map(slug, parts)])

    @property
    def _manifest(self) -> Path:
        return Path(self.root) / "manifests" / f"{self._pod_name}.json"

    def _pod(self, node: Node) -> Document | None:
        found = next((pod for pod in node.pods() if pod.metadata.name == self._pod_name), None)
        return to_document(found) if found is not None else None

    def _reason_of_end(self, node: Node, pod: Document) -> str:
        """Return why a pod ended; empty if it has not.

        As with a kubelet, the status of an evicted pod has no reason if its process ends with exit status 0;
        the event has it.
        """
        ended, uid = reason_of_end(pod), pod["metadata"]["uid"]
        for event in node.recorder if ended else ():
            if event.pod_uid == uid and event.reason == "Evicted":
                return f"Evicted: {event.message}"
        return ended

    async def _remove_pod(self, node: Node) -> None:
        self._manifest.unlink(missing_ok=True)
        while True:
            if self._pod(node) is None:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _pod_manifest(self) -> Document:
        limits = {"memory": self.mem_limit, "cpu": self.cpu_limit, **self.extra_resources}
        requests = {"memory": self.mem_guarantee, "cpu": self.cpu_guarantee}
        container = {
            "imagePullPolicy": "IfNotPresent",
            "workingDir": self.home_path,
            **self.container_spec,
            "name": CONTAINER,
            "image": self.image,
            "command": [*self.cmd, *self.get_args()],
            "env": [{"name": name, "value": value} for name, value in self.get_env().items()],
            "resources": {"requests": amounts(requests), "limits": amounts(limits)},
            "volumeMounts": [
                *self.container_spec.get("volumeMounts", ()),
                {"name": "home", "mountPath": self.home_path},
            ],
        }
        home = (
            {"hostPath": {"path": str(self._home)}} if self.home else {"emptyDir": size_limit(self.home_size)}
        )
        return server_pod(self._pod_name, container, self.pod_spec, home, uid=self.uid, gid=self.gid)

    @property
    def _home(self) -> Path:
        return Path(self.home) / slug(self.user.name)

    def _make_home(self) -> None:
        if not self._home.exists():
            self._home.mkdir(mode=0o700, parents=True)
            os.chown(self._home, self.uid, self.gid)

    # Idle servers

    async def _reclaim_if_idle(self, node: Node, pod: Document) -> None:
        """Reclaim the memory of a server once each time that it becomes idle."""
        last = self.last_activity
        if not self.idle_seconds or not self.ready or last is None:
            return
        active = last.replace(tzinfo=UTC).timestamp()
        if time.time() - active < self.idle_seconds or self._reclaimed_at > active:
            return
        self._reclaimed_at = time.time()
        freed = await asyncio.to_thread(reclaim, memory_group(pod, node))
        self.log.info("server of %s is idle: %d MiB reclaimed", self._log_name, freed >> 20)


# Pure functions


def slug(name: str) -> str:
    """Return a user's name as part of a pod's name; a hash keeps names apart that need other characters."""
    text = re.sub("[^a-z0-9]+", "-", name).strip("-")[:LONGEST_SLUG].strip("-")
    return text if text == name else f"{text}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def amounts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return resources as quantities, without those that are not set."""
    return {name: str(amount) for name, amount in given.items() if amount}


def size_limit(size: str) -> dict[str, str]:
    """Return an emptyDir with this limit, if there is one."""
    return {"sizeLimit": size} if size else {}


def server_pod(
    name: str, container: Document, spec: Mapping[str, Any], home: Document, *, uid: int, gid: int
) -> Document:
    """Return the manifest of a user's server, which has no rights beyond those of its user."""
    container.setdefault(
        "securityContext", {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "jupyterhub"}, "annotations": EVICTABLE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 10,
            "securityContext": {"runAsUser": uid, "runAsGroup": gid, "fsGroup": gid},
            **spec,
            "containers": [container],
            "volumes": [*spec.get("volumes", ()), {"name": "home", **home}],
        },
    }


def reason_of_end(pod: Mapping[str, Any]) -> str:
    """Return why a pod ended: the eviction or refusal in the agent's words, or how its process ended."""
    status = pod["status"]
    if status.get("phase") not in ("Failed", "Succeeded"):
        return ""
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}"
    terminated = ended_container(pod)
    if terminated.get("reason") == "OOMKilled":
        limit = pod["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("memory")
        return f"OOMKilled: it used more memory than its limit of {limit} bytes"
    return f"its process ended with exit status {terminated.get('exitCode', 'unknown')}"


def exit_code(pod: Mapping[str, Any]) -> int:
    """Return the exit status of the server; 1 if it ended without one, as JupyterHub takes 0 for unknown."""
    return int(ended_container(pod).get("exitCode") or 1)


def ended_container(pod: Mapping[str, Any]) -> Document:
    statuses = pod["status"].get("containerStatuses") or [{}]
    ended: Document = statuses[0].get("state", {}).get("terminated") or {}
    return ended


def waiting_reason(pod: Mapping[str, Any]) -> str:
    """Return the reason for which the container of a pod does not run yet, for the user."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    waiting = statuses[0].get("state", {}).get("waiting") or {}
    return ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))


# Memory


def memory_group(pod: Document, node: Node) -> Path:
    """Return the directory of the pod's cgroup in the hierarchy of memory."""
    capacity = to_document(node.node_object())["status"]["capacity"]
    groups = cgroup_tree([pod], {name: capacity[name] for name in ("cpu", "memory")}, node.config)
    path = next(group.path for group in groups if group.kind == "pod")
    mount = Path("/sys/fs/cgroup")
    hierarchy = mount if (mount / "cgroup.controllers").exists() else mount / "memory"
    return hierarchy / path.lstrip("/")


def reclaim(group: Path) -> int:
    """Let the kernel reclaim the memory of a cgroup, and return how many bytes it freed.

    cgroup v2 has `memory.reclaim` from Linux 5.19 on, v1 `memory.force_empty`.
    """
    version = 2 if (group / "memory.current").exists() else 1
    usage = group / ("memory.current" if version == 2 else "memory.usage_in_bytes")
    before = int(usage.read_text())
    try:
        if version == 2:
            (group / "memory.reclaim").write_text(str(before))
        else:
            (group / "memory.force_empty").write_text("0")
    except BlockingIOError:
        pass  # not everything could be reclaimed
    except OSError as error:
        raise OSError(error.errno, f"{group}: cannot reclaim memory: {error.strerror}") from error
    return max(0, before - int(usage.read_text()))


def write_atomically(path: Path, content: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(content)
    temporary.replace(path)
