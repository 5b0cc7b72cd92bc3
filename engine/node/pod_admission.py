"""Takes a pod in or turns it away: pressure, the host's support, the predicates, devices, and room.

A pod is judged in one go, in its turn, against the pods that are to stay; it counts from there on. What
takes time comes after that and holds up nobody else: its devices, its victims, and pods that leave and
still hold what it needs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from engine.admission.manager import Admission
from engine.admission.verdict import Verdict
from engine.api.errors import InvalidInput
from engine.api.lifecycle import AdmissionRejected, TellWaiting
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.qos import qos_class
from engine.api.quantity import BINARY_SI, DECIMAL_SI, Quantity
from engine.api.resources import CPU, MEMORY, pod_requests
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cri.records import ContainerRecord, PodRecord
from engine.devices.manager import DeviceManager
from engine.eviction.manager import EvictionManager
from engine.metrics import Registry
from engine.node.nodeinfo.machine_faults import MachineWait
from engine.node.nodeinfo.node_resources import NodeResources
from engine.node.spec.host_support import HostSupport
from engine.probes.manager import ProbeManager

INVALID_ANNOTATION: Final = "InvalidCgroupAnnotation"

log = logging.getLogger("kubengine.pods")


class PodAdmission:
    """`node()` is the node as pods are judged by it now. Keeps what pods hold of it:
    `engine.node.sync.services.ResourceAccounting`."""

    def __init__(
        self,
        *,
        eviction: EvictionManager,
        devices: DeviceManager,
        admission: Admission,
        support: HostSupport,
        node: Callable[[], Node],
        resources: NodeResources,
        cgroups: NodeCgroups,
        probes: ProbeManager,
        registry: Registry,
    ) -> None:
        self._eviction = eviction
        self._devices = devices
        self._admission = admission
        self._support = support
        self._node = node
        self._resources = resources
        self._cgroups = cgroups
        self._probes = probes
        self._waits = registry.counter(
            "kubengine_admission_waits_total",
            "How often a pod had to wait for something that passes before it could start.",
            ["reason"],
        )

    async def ready_to_judge(self, pod: Pod, tell: TellWaiting) -> None:
        """Returns when the pod may be judged: waits, in bounds, for device plugins that come back."""
        await self._devices.await_plugins(pod, self._counted(tell))

    def wait_for_machine(self, tell: TellWaiting) -> MachineWait:
        """How long a pod bears with a machine that refuses what taking it in needs."""
        return MachineWait(self._admission.patience, self._counted(tell))

    def adopt(self, pod: Pod) -> None:
        """An earlier agent left the pod running: it holds what it has, and is not judged again."""
        try:
            self._admission.add(pod)
        except InvalidInput as error:
            log.error("pod %s runs and cannot be counted: %s", pod.full_name, error)

    def judge(self, pod: Pod) -> Verdict:
        """Decide, and count the pod. Raises `AdmissionRejected`; nothing is held then."""
        self._eviction.admit(pod)
        self._support.check(pod)
        self._check_annotations(pod)
        node = self._node()
        node.status.allocatable = self._devices.sanitize_allocatable(pod, node.allocatable)
        self._admission.set_node(node)
        return self._admission.reserve(pod)

    def _check_annotations(self, pod: Pod) -> None:
        try:
            self._cgroups.check_annotations(pod)
        except InvalidInput as error:
            raise AdmissionRejected(INVALID_ANNOTATION, str(error)) from error

    async def settle(self, pod: Pod, verdict: Verdict, tell: TellWaiting) -> None:
        """Returns when a judged pod may start; `tell` hears why it cannot yet. Raises `AdmissionRejected`;
        nothing is held then."""
        try:
            await self._devices.allocate(pod, self._counted(tell))
        except BaseException:
            self._admission.give_up(pod.uid, verdict)
            raise
        await self._admission.make_room(verdict)
        try:
            await self._admission.wait_for_room(pod, self._counted(tell))
        except AdmissionRejected:
            self._devices.pod_removed(pod.uid)
            raise

    def _counted(self, tell: TellWaiting) -> TellWaiting:
        async def counted(reason: str, message: str) -> None:
            self._waits.inc(reason)
            await tell(reason, message)

        return counted

    def allocatable(self) -> dict[str, Quantity]:
        """What the node can give, its devices included."""
        return self._resources.allocatable()

    def used_beside(self, uid: str) -> dict[str, Quantity]:
        """Summed requests of cpu and memory of all pods on the node but one."""
        used = self._admission.admitted.used_beside(uid)
        return {
            CPU: Quantity.from_milli(used.get(CPU, 0)),
            MEMORY: Quantity.from_value(used.get(MEMORY, 0), BINARY_SI),
        }

    def judged_by(self, pod: Pod) -> dict[str, Any]:
        """What an admission of the pod looks at: pressure, and what it and all others ask for of what there
        is."""
        admitted = self._admission.admitted
        requested = pod_requests(pod)
        used, allocatable = admitted.used_beside(pod.uid), admitted.node.allocatable
        return {
            "priority": pod.spec.priority,
            "qos": qos_class(pod),
            "requested": {name: str(amount) for name, amount in requested.items()},
            "used": {name: _quantity(name, used.get(name, 0)) for name in requested},
            "allocatable": {name: _quantity(name, allocatable.get(name, 0)) for name in requested},
            "pods": len(admitted) - (pod.uid in admitted),
            "podLimit": admitted.node.pod_limit,
            "pressure": self._eviction.under_pressure,
            **self._beyond(pod),
        }

    def _beyond(self, pod: Pod) -> dict[str, Any]:
        """What of the pod goes beyond a kubelet: its cgroups' annotations, its probes; where there is any."""
        has = {
            "cgroupAnnotations": self._cgroups.asked_of(pod),
            "cpuIdle": self._cgroups.idles(pod),
            "probes": self._probes.beyond(pod),
        }
        return {name: value for name, value in has.items() if value}

    def resized(self, pod: Pod) -> None:
        """The pod holds other amounts from now on; amounts that cannot be summed leave the old ones."""
        if pod.uid in self._admission.admitted:
            with contextlib.suppress(InvalidInput):
                self._admission.add(pod)

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """Once every app container runs, what only init containers held may go back to the node."""
        if not all(_runs(record.container(container.name)) for container in pod.spec.containers):
            return
        slimmed = self._devices.app_containers_started(pod)
        if slimmed is not None:
            self._admission.add(slimmed)

    def leaves(self, uid: str) -> None:
        """The pod is to end: nobody is judged by it any more, but what it holds is waited for."""
        self._admission.leave(uid)

    def released(self, pod: Pod) -> None:
        """The pod holds nothing any more."""
        self._admission.remove(pod.uid)
        self._devices.pod_removed(pod.uid)


def _quantity(resource: str, amount: int) -> str:
    """An amount of the tables as it is written in a manifest."""
    if resource == CPU:
        return str(Quantity.from_milli(amount))
    return str(Quantity.from_value(amount, BINARY_SI if resource == MEMORY else DECIMAL_SI))


def _runs(container: ContainerRecord | None) -> bool:
    return container is not None and container.running
