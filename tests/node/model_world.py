"""A whole node in a world of its own: one thread, a clock that only moves when nothing else can, a runtime
and a device plugin that are called without sockets, and agents that can be dropped between any two steps.

What is real: `Node` with all of its components, manifests and kept files on disk, the hollow runtime's rules.
What is not: gRPC, threads (their work is done at once) and time. Nothing here depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine.admission.manager import PREEMPTING
from engine.api.config import KubeletConfiguration
from engine.api.errors import KubengineError, NotFound, Refused, Unavailable
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cri.client import RuntimeClient, Unimplemented
from engine.devices.checkpoint import decode
from engine.devices.manager import DeviceManager
from engine.host.inotify import InotifyWatch
from engine.node import Node
from engine.node.pod.record_names import ACCEPTED
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.objects.records import EXITED, NOT_READY, RUNNING, RuntimeContainer
from engine.runtime.server import snake_case
from engine.wire import cri_v1_pb2 as cri
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from tests import records

GPU = "example.com/gpu"
CPUS, MEMORY = 4, 8 << 30
EPOCH = 1_750_000_000.0
STOP_SECONDS = 1.5
SEPARATE_STEPS = 40_000
"""Limit of steps without a timer; more mean that a task spins."""

FACTS = "model/facts"
"""Annotation of a pod with what its manifest requests, which the world checks."""


class StepLoop(asyncio.SelectorEventLoop):
    """Run an event loop one step at a time. `clock` outlives it; work for threads runs at once."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        super().__init__()
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self.clock[0]

    def run_in_executor(self, _executor: Any, work: Any, *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def step(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()

    def next_time(self) -> float | None:
        """Return None if something can go on now, else when the next timer is due (infinity without one)."""
        if self._ready:  # type: ignore[attr-defined]
            return None
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return min((handle.when() for handle in scheduled if not handle.cancelled()), default=float("inf"))


class DirectRuntime(RuntimeClient):
    """Call the runtime without a socket. A call suspends before and after its effect, and fails while the
    runtime is down."""

    world: World

    async def close(self) -> None: ...

    async def _call(
        self,
        service: str,
        name: str,
        request: Any,
        read: Callable[[bytes], Any],
        timeout: float | None = None,
    ) -> Any:
        runtime = self.world.runtime
        target = runtime.service if service.endswith("RuntimeService") else self.world.image_service
        subject = f"CRI {name}"
        async with asyncio.timeout(timeout or self._timeout):
            await asyncio.sleep(STOP_SECONDS if name == "StopContainer" else 0)
            self._check(subject)
            self.world.check_call(request)
            try:
                result = await getattr(target, snake_case(name))(
                    type(request).FromString(request.SerializeToString())
                )
            except KubengineError as error:
                kinds = {"NOT_FOUND": NotFound, "UNIMPLEMENTED": Unimplemented, "UNAVAILABLE": Unavailable}
                raise kinds.get(error.grpc_status, Refused)(str(error), subject=subject) from None
            data: bytes = result if isinstance(result, bytes) else result.SerializeToString()
            await asyncio.sleep(0)
            self._check(subject)
        return self._made(name, read, data)

    async def events(self) -> AsyncIterator[cri.ContainerEventResponse]:
        self._check("events")
        async for event in self.world.runtime.service.get_container_events(cri.GetEventsRequest()):
            yield cri.ContainerEventResponse.FromString(event)

    def _check(self, subject: str) -> None:
        if not self.world.runtime_answers:
            raise Unavailable("the runtime does not answer", subject=subject)


class DirectEndpoint:
    """Serve the plugin of the world to the device manager without a socket."""

    world: World

    def __init__(self, resource: str, path: Path, _deadlines: object) -> None:
        self.resource = resource
        self.path = path
        self.number = next(self.world.endpoint_numbers)
        self.options = wire.DevicePluginOptions()
        self.watching: asyncio.Task[None] | None = None
        self._lists: asyncio.Queue[int | None] = asyncio.Queue()

    async def connect(self) -> None:
        await asyncio.sleep(0)
        self._check()
        self.world.listeners.append(self._lists)

    async def devices(self) -> AsyncIterator[bytes]:
        count = self.world.devices
        while count is not None:
            devices = [wire.Device(ID=f"gpu-{i}", health="Healthy") for i in range(count)]
            yield wire.ListAndWatchResponse(devices=devices).SerializeToString()
            count = await self._lists.get()

    async def allocate(self, containers: Any) -> list[wire.ContainerAllocateResponse]:
        await asyncio.sleep(0.01)
        self._check()
        return [wire.ContainerAllocateResponse(envs={"GPUS": ",".join(sorted(ids))}) for ids in containers]

    async def close(self) -> None:
        if self.watching is not None and self.watching is not asyncio.current_task():
            self.watching.cancel()
            await asyncio.gather(self.watching, return_exceptions=True)

    def _check(self) -> None:
        if self.world.devices is None:
            raise Unavailable("no plugin", subject=self.resource)


def _claimed(manager: DeviceManager) -> None:
    manager.plugin_dir.mkdir(parents=True, exist_ok=True)


async def _served() -> None:
    """Replace the start and stop of servers, to which nothing connects here."""


class World:
    """Hold manifests, a runtime, a plugin (`devices`: their number, None without it) and at most one agent.

    `faults` collects what must never happen: a device in two running containers, more on the node than fits,
    a running container whose devices are not in the checkpoint, a pod that runs again after its end,
    and a container that is removed while it runs.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kw-"))
        self.manifests = self.directory / "manifests"
        self.manifests.mkdir()
        self.clock = [0.0]
        self.node: Node | None = None
        self.loop: StepLoop | None = None
        self.starting: asyncio.Task[None] | None = None
        self.devices: int | None = None
        self.listeners: list[asyncio.Queue[int | None]] = []
        self.endpoint_numbers = itertools.count(1)
        self.runtime_answers = True
        self.faults: list[str] = []
        self.most = 0
        self.tries = 0
        self._dead: list[tuple[StepLoop, Node]] = []
        self._watches: list[InotifyWatch] = []
        self._ended: set[str] = set()
        self._patches = contextlib.ExitStack()
        capacity = {
            "cpu": Quantity.from_value(CPUS),
            "memory": Quantity.from_value(MEMORY),
            "ephemeral-storage": Quantity.from_value(1 << 40),
            "pods": Quantity.from_value(110),
        }
        for target, value in {
            "engine.node.nodeinfo.machine.capacity": lambda *_: capacity,
            "engine.node.node.RuntimeClient": type("Direct", (DirectRuntime,), {"world": self}),
            "engine.devices.manager.Endpoint": type("Direct", (DirectEndpoint,), {"world": self}),
            "engine.devices.manager.DeviceManager.claim": _claimed,
            "engine.devices.registration.RegistrationServer.start": lambda _: _served(),
            "engine.devices.registration.RegistrationServer.stop": lambda _: _served(),
            "engine.devices.pod_resources.PodResourcesServer.start": lambda _: _served(),
            "engine.devices.pod_resources.PodResourcesServer.stop": lambda _: _served(),
            "engine.host.inotify.InotifyWatch.__init__": self._watching(InotifyWatch.__init__),
            "time.time_ns": self._time_ns,
        }.items():
            self._patches.enter_context(patch(target, value))
        self.runtime = HollowRuntime(self.directory / "cri.sock")
        self.image_service = ImageService(self.runtime.backend.images)
        start = self.runtime.backend.start_container

        async def checked(container: RuntimeContainer) -> None:
            await start(container)
            self._check_start(container)

        self.runtime.backend.start_container = checked  # type: ignore[method-assign]
        with contextlib.closing(StepLoop(self.clock)) as loop:
            loop.run_until_complete(self.runtime.service.start())

    def _watching(self, make: Any) -> Any:
        def watched(watch: InotifyWatch, on_event: Any) -> None:
            make(watch, on_event)
            self._watches.append(watch)

        return watched

    def _time_ns(self) -> int:
        """Return the time in ns, and advance the clock by 1 µs, so that no two times are equal."""
        self.clock[0] += 1e-6
        return int((EPOCH + self.clock[0]) * 1e9)

    # Manifests

    def write(self, name: str, **facts: Any) -> None:
        """Write a pod's manifest. `facts`: cpu (milli), memory (bytes), gpus, port (0: none), never
        (restarts), critical."""
        self.tries += 1
        amounts = {"cpu": f"{facts['cpu']}m", "memory": str(facts["memory"])}
        if facts["gpus"]:
            amounts[GPU] = str(facts["gpus"])
        container: dict[str, Any] = {
            "name": "c",
            "image": f"busybox:{self.tries}",
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": amounts, "limits": amounts},
        }
        if facts["port"]:
            container["ports"] = [{"containerPort": 80, "hostPort": facts["port"]}]
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": 5, "containers": [container]}
        if facts["never"]:
            spec["restartPolicy"] = "Never"
        spec["priority"] = 0
        if facts["critical"]:
            spec["priorityClassName"] = "system-node-critical"
            spec["priority"] = 2_000_001_000
        metadata = {"name": name, "annotations": {FACTS: json.dumps(facts)}}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        path = self.manifests / f"{name}.json"
        unfinished = path.with_name(f".{name}")
        unfinished.write_text(json.dumps(document))
        unfinished.replace(path)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.manifests.glob("[a-z]*.json"))

    def delete(self, name: str) -> None:
        (self.manifests / f"{name}.json").unlink()

    def remove_accepted_records(self) -> None:
        """Remove the records of accepted pods, as if a kubelet had left the pods."""
        records.remove(self.directory / "root", ACCEPTED)

    # Agents

    def start_agent(self) -> None:
        self.loop = StepLoop(self.clock)
        config = KubeletConfiguration(
            static_pod_path=str(self.manifests),
            pod_logs_dir=str(self.directory / "logs"),
            resolv_conf="",
            cgroups_per_qos=False,
            enforce_node_allocatable=[],
            eviction_hard={"memory.available": "0%"},
            image_gc_high_threshold_percent=100,
        )
        self.node = Node(
            config=config,
            kubengine_config=KubengineConfiguration(),
            runtime_endpoint="/model",
            root=self.directory / "root",
            name="n1",
            clock=lambda: EPOCH + self.clock[0],
        )
        self.starting = self.loop.create_task(self._start(self.node))

    async def _start(self, node: Node) -> None:
        await node.start()
        if self.devices is not None:
            await self._register(node)

    async def _register(self, node: Node) -> None:
        with contextlib.suppress(Unavailable):
            await node.components["devices"].connect(GPU, self.directory / "gpu.sock")  # type: ignore[attr-defined]

    def agent_dies(self) -> None:
        """Kill the agent wherever it is; the kernel releases its lock and its watches."""
        if self.node is None or self.loop is None:
            return
        if self.node._lock is not None:
            os.close(self.node._lock)
            self.node._lock = None
        self._remember_preempted()
        for watch in self._watches:
            self.loop.remove_reader(watch._fd)
            os.close(watch._fd)
            watch._fd = os.open(os.devnull, os.O_RDONLY)  # for its late end
        self._watches.clear()
        self._dead.append((self.loop, self.node))
        self.node = self.loop = self.starting = None
        self.runtime.service._events._listeners.clear()
        self.listeners.clear()

    # Plugin and runtime

    def plugin_comes(self, count: int) -> None:
        self.plugin_dies()
        self.devices = count
        if self.node is not None and self.loop is not None and "devices" in self.node.components:
            self.loop.create_task(self._register(self.node))

    def plugin_dies(self) -> None:
        self.devices = None
        for lists in self.listeners:
            lists.put_nowait(None)
        self.listeners.clear()

    def plugin_lists(self, count: int) -> None:
        """Let the registered plugin list `count` devices from now on."""
        self.devices = count
        for lists in self.listeners:
            lists.put_nowait(count)

    def machine_restarts(self) -> None:
        """End all containers and sandboxes, as a restart of the machine does, without an event."""
        self.agent_dies()
        self.plugin_dies()
        for container in self.running():
            self.ends(container, 137)
        for sandbox in self.runtime.service.records.sandboxes.values():
            sandbox.state, sandbox.wire = NOT_READY, None

    def runtime_dies(self) -> None:
        """Kill the runtime: its containers keep running, and its answers are lost."""
        self.runtime_answers = False
        self.runtime.service._events.close()

    def running(self) -> list[RuntimeContainer]:
        records = self.runtime.service.records.containers.values()
        return sorted((c for c in records if c.state == RUNNING), key=lambda c: c.created_at)

    def ends(self, container: RuntimeContainer, code: int) -> None:
        self.runtime.end_container(container.id, exit_code=code)

    # Time

    def steps(self, count: int) -> None:
        """Run at most `count` steps of the loop without letting time pass."""
        for _ in range(count):
            if self.loop is None:
                return
            self.loop.step()

    def pass_time(self, seconds: float) -> None:
        """Run all that can run, and all timers that are due within `seconds`."""
        until = self.clock[0] + seconds
        budget = SEPARATE_STEPS
        while self.loop is not None:
            self.loop.step()
            budget -= 1
            assert budget, "a task spins"
            due = self.loop.next_time()
            if due is None:
                continue
            self.loop.step()  # read the events of the kernel, if it has any
            due = self.loop.next_time()
            if due is None:
                continue
            if due > until:
                break
            self.clock[0] = max(self.clock[0], due)
        self.clock[0] = max(self.clock[0], until)

    # What must never happen

    def _check_start(self, started: RuntimeContainer) -> None:
        running = [*self.running(), started]
        held = [id for container in running for id in _gpus(container)]
        if len(held) != len(set(held)):
            self.faults.append(f"device in two containers: {sorted(held)}")
        self.most = max(self.most, len(held))
        facts = [_facts(container) for container in running]
        for amount, limit in (("cpu", 1000 * CPUS), ("memory", MEMORY)):
            if sum(each[amount] for each in facts) > limit:
                self.faults.append(f"too much {amount}: {[each[amount] for each in facts]}")
        ports = [each["port"] for each in facts if each["port"]]
        if len(ports) != len(set(ports)):
            self.faults.append(f"port of two pods: {ports}")
        names = [container.sandbox.config.metadata.name for container in running]
        if len(names) != len(set(names)):
            self.faults.append(f"two pods of one name: {names}")
        if len(_gpus(started)) != _facts(started)["gpus"]:
            self.faults.append(f"it requests {_facts(started)['gpus']} devices, has {_gpus(started)}")
        self._check_kept([started])
        uid, name = started.sandbox.config.metadata.uid, started.sandbox.config.metadata.name
        for earlier in self.runtime.service.records.containers.values():
            same = earlier.sandbox.config.metadata.uid == uid
            if same and earlier.state == EXITED and earlier.started_at and _facts(started)["never"]:
                self.faults.append(f"{name} had ended and runs again")
        if uid in self._ended:
            self.faults.append(f"{name} was ended for good and runs again")

    def check_call(self, request: Any) -> None:
        """Record a fault if a request removes a container that still runs."""
        if isinstance(request, cri.RemoveContainerRequest):
            container = self.runtime.service.records.containers.get(request.container_id)
            if container is not None and container.state == RUNNING:
                self.faults.append(f"{container.sandbox.config.metadata.name} was removed while it ran")

    def check(self) -> None:
        """Raise AssertionError if anything that must never happen has happened so far."""
        self._check_kept(self.running())
        self._remember_preempted()
        assert not self.faults, self.faults

    def _check_kept(self, containers: list[RuntimeContainer]) -> None:
        path = self.directory / "root/device-plugins/kubelet_internal_checkpoint"
        entries = decode(path.read_bytes()).pod_device_entries or () if path.exists() else ()
        kept: dict[str, set[str]] = {}
        for entry in entries:
            kept.setdefault(entry.pod_uid, set()).update(entry.devices)
        for container in containers:
            uid = container.sandbox.config.metadata.uid
            if not set(_gpus(container)) <= kept.get(uid, set()):
                self.faults.append(f"lost from the checkpoint: {uid}: {_gpus(container)}, it has {kept}")

    def _remember_preempted(self) -> None:
        """Remember the pods that the node has preempted; they must never run again."""
        pods = self.node.pods() if self.node is not None else ()
        self._ended |= {pod.uid for pod in pods if pod.status.reason == PREEMPTING}

    def check_settled(self) -> None:
        """Check a world in which nothing is missing or awaited: pods run, have ended or are rejected."""
        assert self.node is not None
        assert self.starting is not None
        self.starting.result()
        shown = {pod.metadata.name: pod for pod in self.node.pods()}
        assert sorted(shown) == [f"{name}-n1" for name in self.names()], "wanted and shown"
        for pod in shown.values():
            assert pod.status.phase in ("Running", "Succeeded", "Failed"), (
                pod.metadata.name,
                pod.status.phase,
                pod.status,
            )
        for pod in shown.values():
            if pod.status.reason and pod.status.reason != PREEMPTING:
                self._check_rejected(pod)
        runs = {container.sandbox.config.metadata.uid for container in self.running()}
        assert runs == {pod.uid for pod in shown.values() if pod.status.phase == "Running"}

    def _check_rejected(self, pod: Pod) -> None:
        """Check that a rejected pod does not fit beside those that run."""
        wanted = json.loads(pod.metadata.annotations[FACTS])
        facts = [_facts(container) for container in self.running()]
        room = {"cpu": 1000 * CPUS, "memory": MEMORY, "gpus": self.devices or 0}
        fits = all(sum(each[name] for each in [*facts, wanted]) <= most for name, most in room.items())
        port_free = not wanted["port"] or wanted["port"] not in [each["port"] for each in facts]
        assert not (fits and port_free), f"{pod.metadata.name} fits and was rejected: {pod.status.reason}"

    def close(self) -> None:
        self.agent_dies()
        for loop, node in self._dead:
            _bury(loop, node)
        self._patches.close()
        shutil.rmtree(self.directory)


def _bury(loop: StepLoop, node: Node) -> None:
    """Release the resources of an agent that died, in a world that is no longer used."""
    with contextlib.suppress(BaseException):
        loop.run_until_complete(asyncio.wait_for(node.stop(), 60))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    for _ in range(20):
        loop.step()
    loop.close()


def _facts(container: RuntimeContainer) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(container.sandbox.config.annotations[FACTS])
    return facts


def _gpus(container: RuntimeContainer) -> list[str]:
    devices = {e.key: e.value.decode() for e in container.config.envs}.get("GPUS", "")
    return devices.split(",") if devices else []


@contextlib.contextmanager
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()
