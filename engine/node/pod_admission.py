"""Admits or rejects pods: pressure, host support, the predicates, devices, and free resources.

A pod is judged in one step, in its turn, against the pods that stay; from then on it counts. What takes time
follows and holds up no other pod: allocating devices, ending victims, and waiting for terminating pods that
still hold what the pod needs.

Source of the checks of the host: kubelet v1.36 (`lifecycle`: AppArmor and predicates; `apparmor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from engine.admission.sysctls import SysctlAllowlist
from engine.admission.verdict import Verdict
from engine.api.errors import InvalidInput, Refused
from engine.api.lifecycle import AdmissionRejected, ReportWaiting
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.qos import qos_class
from engine.api.quantity import BINARY_SI, DECIMAL_SI, Quantity
from engine.api.resources import CPU, MEMORY, pod_requests
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cri.records import PodRecord
from engine.dra.claims import without_claimed
from engine.dra.locator import ClaimLocator
from engine.metrics import Registry
from engine.node.managers import Managers
from engine.node.nodeinfo.description import NodeResources
from engine.node.runtime_view.runtime_health import RuntimeFeatures
from engine.node.spec.security import APPARMOR_ANNOTATION, app_armor_profile
from engine.node.sync.probing import has_probes

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"
INVALID_ANNOTATION: Final = "InvalidCgroupAnnotation"
APP_ARMOR: Final = "AppArmor"
UNSUPPORTED: Final = "UnsupportedPodFields"
GROUPS_POLICY: Final = "SupplementalGroupsPolicyNotSupported"
AWAITING_NODE: Final = "AwaitingNode"
POD_LEVEL_CLAIMS: Final = "claims are supported for containers, not for the pod as a whole"
RETRY_SECONDS = 5.0
"""Seconds until admission is tried again after the machine refused it."""

log = logging.getLogger("kubengine.pods")


def is_of_the_machine(error: BaseException | None) -> bool:
    """Tell whether the kernel refused an operation of the agent itself, for which the pod is not to blame."""
    while error is not None:
        if isinstance(error, OSError) or (isinstance(error, Refused) and error.errno is not None):
            return True
        error = error.__cause__
    return False


class MachineWait:
    """Wait for the machine for `patience` seconds from the first refusal on; `report` receives the reason."""

    def __init__(self, patience: float, report: ReportWaiting) -> None:
        self._patience = patience
        self._report = report
        self._reported = ""
        self._until: float | None = None

    async def wait_for_retry(self, rejected: AdmissionRejected) -> bool:
        """Return when admission may be tried again; False if the time is over."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._patience
        if now >= self._until:
            return False
        if rejected.message != self._reported:
            self._reported = rejected.message
            await self._report(AWAITING_NODE, rejected.message)
        await asyncio.sleep(min(RETRY_SECONDS, self._until - now))
        return True


class PodAdmission:
    """Admit pods and account for what they hold; implements `engine.node.sync.services.ResourceAccounting`.

    `node()` returns the node as admission sees it now, `shutting_down()` raises while the node takes no pod.
    """

    def __init__(
        self,
        managers: Managers,
        *,
        locator: ClaimLocator,
        support: HostSupport,
        node: Callable[[], Node],
        resources: NodeResources,
        cgroups: NodeCgroups,
        shutting_down: Callable[[], None],
        registry: Registry,
    ) -> None:
        self._shutting_down = shutting_down
        self._eviction = managers.eviction
        self._devices = managers.devices
        self._locator = locator
        self._admission = managers.admission
        self._support = support
        self._node = node
        self._resources = resources
        self._cgroups = cgroups
        self._probes = managers.probes
        self._waits = registry.counter(
            "kubengine_admission_waits_total",
            "Pods that had to wait for a transient condition before admission.",
            ["reason"],
        )

    async def ready_to_judge(self, pod: Pod, report: ReportWaiting) -> None:
        """Wait, for a limited time, for device plugins that come back; then the pod may be judged."""
        await self._devices.await_plugins(without_claimed(pod), self._counted(report))

    def wait_for_machine(self, report: ReportWaiting) -> MachineWait:
        """Return how long a pod tolerates a machine that refuses what admission needs."""
        return MachineWait(self._admission.patience, self._counted(report))

    def pods_known(self) -> None:
        """Release what state files list for pods that are not on the node; now every pod is known."""
        self._devices.collect()

    def adopt(self, pod: Pod) -> None:
        """Count a pod that an earlier agent left running, without judging it again."""
        try:
            self._admission.add(without_claimed(pod))
            self._devices.adopt(pod)
        except InvalidInput as error:
            log.error("the resources of running pod %s cannot be counted: %s", pod.full_name, error)

    def judge(self, pod: Pod) -> Verdict:
        """Decide, and count the pod. Raises `AdmissionRejected`, after which the pod holds nothing."""
        self._admission.arrives(pod)
        try:
            return self._decide(pod)
        except AdmissionRejected:
            # A pod that ran before a reboot still has what the state files list.
            self._devices.pod_removed(pod.uid)
            raise

    def _decide(self, pod: Pod) -> Verdict:
        # Questions about the whole node come first: a pod that they reject claims no devices or victims.
        self._shutting_down()
        self._eviction.admit(pod)
        self._support.check(pod)
        self._check_annotations(pod)
        pod = without_claimed(pod)
        node = self._node()
        node.status.allocatable = self._devices.sanitize_allocatable(pod, node.allocatable)
        self._admission.set_node(node)
        try:
            return self._admission.reserve(pod)
        except AdmissionRejected as error:
            # A kubelet allocates first, and counts such a pod as one whose allocation failed.
            self._devices.count_failure(pod, error.lacking)
            raise

    def _check_annotations(self, pod: Pod) -> None:
        try:
            self._cgroups.check_annotations(pod)
        except InvalidInput as error:
            raise AdmissionRejected(INVALID_ANNOTATION, str(error)) from error

    async def complete(self, pod: Pod, verdict: Verdict, report: ReportWaiting) -> None:
        """Return when an admitted pod may start; `report` receives the reasons for waiting.

        Raises `AdmissionRejected`, after which the pod holds nothing.
        """
        try:
            # Where claims have their devices matters only to a policy that aligns NUMA nodes.
            if self._devices.policy.name != "none":
                await self._locator.locate(pod)
            await self._devices.allocate(without_claimed(pod), self._counted(report))
        except BaseException as error:
            self._admission.give_up(pod.uid, verdict)
            if isinstance(error, AdmissionRejected):
                self._devices.pod_removed(pod.uid)
            places = self._locator.describe(pod.uid)
            self._locator.forget(pod.uid)
            if places and isinstance(error, AdmissionRejected) and error.reason == TOPOLOGY_AFFINITY:
                raise AdmissionRejected(error.reason, f"{error.message} ({places})") from error
            raise
        await self._admission.end_victims(verdict)
        try:
            await self._admission.wait_for_resources(pod, self._counted(report))
        except AdmissionRejected:
            self._devices.pod_removed(pod.uid)
            raise

    def _counted(self, report: ReportWaiting) -> ReportWaiting:
        async def counted(reason: str, message: str) -> None:
            self._waits.inc(reason)
            await report(reason, message)

        return counted

    def allocatable(self) -> dict[str, Quantity]:
        """Return what the node can allocate, including devices."""
        return self._resources.allocatable()

    def used_beside(self, uid: str) -> dict[str, Quantity]:
        """Return the summed CPU and memory requests of all pods on the node but one."""
        used = self._admission.admitted.used_beside(uid)
        return {
            CPU: Quantity.from_milli(used.get(CPU, 0)),
            MEMORY: Quantity.from_value(used.get(MEMORY, 0), BINARY_SI),
        }

    def judged_by(self, pod: Pod) -> dict[str, Any]:
        """Return the inputs of an admission decision: pressure, and the requests of this pod and
        all others.
        """
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
        """Return the settings of the pod that go beyond a kubelet: cgroup annotations and probes."""
        has = {
            "cgroupAnnotations": self._cgroups.asked_of(pod),
            "cpuIdle": self._cgroups.idles(pod),
            "probes": self._probes.beyond(pod) if has_probes(pod) else {},
        }
        return {name: value for name, value in has.items() if value}

    def resized(self, pod: Pod) -> None:
        """Account for the changed amounts of a resized pod; amounts that cannot be summed leave
        the old ones.
        """
        if pod.uid in self._admission.admitted:
            with contextlib.suppress(InvalidInput):
                self._admission.add(without_claimed(pod))

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """Release what only init containers held, once every app container runs."""
        for container in pod.spec.containers:
            newest = record.container(container.name)
            if newest is None or not newest.running:
                return
        slimmed = self._devices.app_containers_started(without_claimed(pod))
        if slimmed is not None:
            self._admission.add(slimmed)

    def terminating(self, uid: str) -> None:
        """Stop counting the pod in admission decisions, since it ends; others still wait for what
        it holds.
        """
        self._admission.terminating(uid)

    def released(self, pod: Pod) -> None:
        """Release everything that the pod holds."""
        self._admission.remove(pod.uid)
        self._devices.pod_removed(pod.uid)
        self._locator.forget(pod.uid)


def _quantity(resource: str, amount: int) -> str:
    """Convert an amount of the tables to a quantity as manifests spell it."""
    if resource == CPU:
        return str(Quantity.from_milli(amount))
    return str(Quantity.from_value(amount, BINARY_SI if resource == MEMORY else DECIMAL_SI))


def unsupported_fields(pod: Pod) -> Iterator[str]:
    """Return each unsupported field as `field: reason`."""
    resources = pod.spec.resources
    if resources is not None and resources.claims:
        yield f"spec.resources.claims: {POD_LEVEL_CLAIMS}"


def app_armor_enabled(root: Path = Path("/")) -> bool:
    """Tell whether the kernel enforces AppArmor profiles, by the same test as container runtimes."""
    in_container = os.environ.get("container")  # noqa: SIM112
    if in_container or not (root / "sys/kernel/security/apparmor").exists():
        return False
    switch = root / "sys/module/apparmor/parameters/enabled"
    return switch.exists() and switch.read_text().startswith("Y")


class HostSupport:
    """Check pods; `check` raises `AdmissionRejected` for the first unsupported feature."""

    def __init__(
        self, *, sysctls: SysctlAllowlist, app_armor: bool, features: Callable[[], RuntimeFeatures]
    ) -> None:
        self._sysctls = sysctls
        self._app_armor = app_armor
        self._features = features

    def check(self, pod: Pod) -> None:
        unsupported = "; ".join(unsupported_fields(pod))
        if unsupported:
            raise AdmissionRejected(UNSUPPORTED, unsupported)
        context = pod.spec.security_context
        if context is not None and context.sysctls:
            self._sysctls.check(pod)
        strict = context is not None and context.supplemental_groups_policy == "Strict"
        if strict and not self._features().supplemental_groups_policy:
            text = "SupplementalGroupsPolicy=Strict is not supported in this node"
            raise AdmissionRejected(GROUPS_POLICY, text)
        wrong = self._wrong_app_armor(pod)
        if wrong:
            raise AdmissionRejected(APP_ARMOR, f"Cannot enforce AppArmor: {wrong}")

    def _wrong_app_armor(self, pod: Pod) -> str:
        if not _asks_for_app_armor(pod):
            return ""
        if not self._app_armor:
            return "AppArmor is not enabled on the host"
        for container in pod.all_containers:
            profile = app_armor_profile(pod, container)
            if profile is None or profile.type != "Localhost":
                continue
            if not (profile.localhost_profile or "").strip():
                return f"invalid empty AppArmor profile name: {profile.localhost_profile!r}"
        return ""


def _asks_for_app_armor(pod: Pod) -> bool:
    fields = [
        context.app_armor_profile
        for context in (pod.spec.security_context, *(c.security_context for c in pod.all_containers))
        if context is not None and context.app_armor_profile is not None
    ]
    annotated = [value for key, value in pod.annotations.items() if key.startswith(APPARMOR_ANNOTATION)]
    return any(profile.type != "Unconfined" for profile in fields) or any(
        v != "unconfined" for v in annotated
    )
