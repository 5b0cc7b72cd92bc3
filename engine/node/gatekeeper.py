"""Takes a pod in or turns it away: pressure, what the host has, devices, the predicates with preemption."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from engine.admission.manager import Admission
from engine.api.errors import InvalidInput, KubengineError
from engine.api.lifecycle import AdmissionRejected
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.quantity import BINARY_SI, Quantity
from engine.api.resources import CPU, MEMORY
from engine.devices.manager import DeviceManager
from engine.eviction.manager import EvictionManager
from engine.node.host_support import HostSupport


class Gatekeeper:
    """`runs(uid)`: an earlier agent left the pod running, so it is here already and is not judged again.
    `node()` is the node as it is now."""

    def __init__(
        self,
        *,
        eviction: EvictionManager,
        devices: DeviceManager,
        admission: Admission,
        support: HostSupport,
        node: Callable[[], Node],
        runs: Callable[[str], bool],
    ) -> None:
        self._eviction = eviction
        self._devices = devices
        self._admission = admission
        self._support = support
        self._node = node
        self._runs = runs

    async def ready_to_judge(self, pod: Pod) -> None:
        """Returns when the pod may be admitted: waits, if configured, for device plugins that come back."""
        await self._devices.await_plugins(pod)

    async def admit(self, pod: Pod) -> None:
        """Raises `AdmissionRejected`; nothing is held then."""
        if self._runs(pod.uid):
            self._admission.add(pod)
            return
        self._eviction.admit(pod)
        self._support.check(pod)
        await self._devices.allocate(pod)
        try:
            node = self._node()
            node.status.allocatable = self._devices.sanitize_allocatable(pod, node.allocatable)
            self._admission.set_node(node)
            await self._admission.admit(pod)
        except (AdmissionRejected, KubengineError):
            self._devices.pod_removed(pod.uid)
            raise

    def used_beside(self, uid: str) -> dict[str, Quantity]:
        """Summed requests of cpu and memory of all pods on the node but one."""
        used = self._admission.admitted.used_beside(uid)
        return {
            CPU: Quantity.from_milli(used.get(CPU, 0)),
            MEMORY: Quantity.from_value(used.get(MEMORY, 0), BINARY_SI),
        }

    def resized(self, pod: Pod) -> None:
        """The pod holds other amounts from now on; amounts that cannot be summed leave the old ones."""
        if pod.uid in self._admission.admitted:
            with contextlib.suppress(InvalidInput):
                self._admission.add(pod)

    def apps_run(self, pod: Pod) -> None:
        """Every app container runs: what only init containers held may go back to the node."""
        slimmed = self._devices.app_containers_started(pod)
        if slimmed is not None:
            self._admission.add(slimmed)

    def released(self, pod: Pod) -> None:
        """The pod holds nothing any more."""
        self._admission.remove(pod.uid)
        self._devices.pod_removed(pod.uid)
