"""The least of a node that probes need: pods on a real runtime, restarted when a probe asks for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from engine.api.events import EventRecorder
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Container, Pod
from engine.metrics import Registry
from engine.probes import ProbeManager, ProbeResult, probe_specs
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods

LOOK_SECONDS = 0.1
_STATES = {cri.CONTAINER_RUNNING: "running", cri.CONTAINER_EXITED: "terminated"}


class ScenarioNode:
    """Runs pods of one shell script per container; `restarts` and `kill_seconds` are what tests look at."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods
        self.recorder = EventRecorder(time.time)
        self.results: list[ProbeResult] = []
        self.restarts: dict[str, int] = {}
        self.kill_seconds: list[float] = []
        self.containers: dict[str, str] = {}
        self.started_at: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self.manager = ProbeManager(
            section=ProbesSection(),
            recorder=self.recorder,
            registry=Registry(),
            clock=time.time,
            on_result=self.results.append,
            runtime=pods.client,
            jitter=lambda: 0.0,
        )

    async def start(self) -> None:
        await self.manager.start()

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.manager.stop()

    async def run(
        self, script: str, *, name: str = "p", sidecar: bool = False, grace: int = 1, **probes: Any
    ) -> None:
        """Start a pod whose container `app` (or sidecar) runs `script`; probes are as in a manifest."""
        container: dict[str, Any] = {"name": "app", "command": ["/bin/sh", "-c", script]}
        times = {type: probe.pop("ms") for type, probe in probes.items() if "ms" in probe}
        container |= {f"{type}Probe": {"periodSeconds": 1, **probe} for type, probe in probes.items()}
        spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": grace}
        if sidecar:
            container["restartPolicy"] = "Always"
            main = {"name": "main", "command": ["/bin/sleep", "1000"]}
            spec |= {"initContainers": [container], "containers": [main]}
        annotation = msgspec.json.encode({"app": times}).decode()
        pod = msgspec.convert(
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"uid-{name}",
                    "annotations": {"kubengine.dev/probes": annotation},
                },
                "spec": spec,
            },
            Pod,
        )
        self.manager.add_pod(pod)
        sandbox = await self.pods.pod()
        status = await self.pods.client.pod_sandbox_status(sandbox)
        self.manager.update_pod(pod.uid, pod_ip=status.status.network.ip, phase="Running")
        for container_spec in pod.all_containers:
            await self._start(pod, sandbox, container_spec)
            key = f"{name}/{container_spec.name}"
            self.restarts[key] = 0
            self._tasks[key] = asyncio.create_task(self._keep(pod, sandbox, container_spec))

    async def delete(self, name: str, grace: int) -> None:
        """Terminate a pod: liveness and startup end, the container gets its grace."""
        self._stopping.add(f"{name}/app")
        self.manager.stop_liveness_and_startup(f"uid-{name}")
        await self.pods.client.stop_container(self.containers[f"{name}/app"], grace)

    def messages(self, reason: str = "Unhealthy") -> list[str]:
        return [event.message for event in self.recorder if event.reason == reason]

    def first_event(self) -> float:
        """When the first probe did not succeed, in seconds after the container's start."""
        return next(iter(self.recorder)).at - self.started_at["p/app"]

    async def _start(self, pod: Pod, sandbox: str, container: Container) -> None:
        key = f"{pod.metadata.name}/{container.name}"
        self.containers[key] = await self.pods.start(
            sandbox, *(container.command or ()), name=f"{container.name}-{len(self.kill_seconds)}"
        )
        self.started_at[key] = time.time()

    async def _keep(self, pod: Pod, sandbox: str, container: Container) -> None:
        """Tell the manager what the runtime says, and restart the container when it ends or must."""
        key = f"{pod.metadata.name}/{container.name}"
        while True:
            id = self.containers[key]
            status = await self.pods.status(id)
            state = _STATES.get(status.state, "waiting")
            self.manager.update_container(
                pod.uid, container.name, container_id=id, state=state, started_at=status.started_at / 1e9
            )
            failed = self.manager.failed(pod.uid, container.name, id)
            if failed and key not in self._stopping:
                specs = (s for s in probe_specs(pod) if s.container == container.name and s.type == failed)
                grace = next(specs).grace_period_seconds
                began = time.monotonic()
                await self.pods.client.stop_container(
                    id, grace or pod.spec.termination_grace_period_seconds or 1
                )
                self.kill_seconds.append(time.monotonic() - began)
            elif state == "terminated" and key not in self._stopping:
                self.restarts[key] += 1
                await self._start(pod, sandbox, container)
            await asyncio.sleep(LOOK_SECONDS)
