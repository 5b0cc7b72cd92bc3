"""Ends one pod: records that it terminates, stops its containers, and removes what is left."""

from __future__ import annotations

import asyncio
import logging

from engine.api.errors import Refused
from engine.api.qos import is_static
from engine.cri.records import ContainerRecord
from engine.node.pod.state import PodState
from engine.node.pod.termination_record import TerminationRecord
from engine.node.sync.services import Services
from engine.node.sync.stopping import free_node, grace_seconds, remove_pod, stop_pod, stop_sooner

log = logging.getLogger("kubengine.pods")


class PodTermination:
    """Terminate a pod. `kept` tells whether its termination record says that it has ended for good;
    `left_volumes` is set when it has no volume left.
    """

    def __init__(self, hand: PodState, services: Services) -> None:
        self.kept = hand.life.final
        self._hand = hand
        self._services = services
        self._stopping = False
        self.left_volumes = asyncio.Event()
        self._hastening = services.context.tasks.passing("pod-shorten_grace")

    async def leave(self) -> None:
        """Leave the pod running, because the agent stops."""
        await self._hastening.stop()

    async def keep(self) -> None:
        """Record that the pod terminates or has terminated, for the next agent; a failed write is only
        logged.
        """
        life, pod = self._hand.life, self._hand.pod
        if not life.wanted:
            return
        if life.end is not None and life.end.until_restart and is_static(pod):
            return
        kept = TerminationRecord(life.end, pod.status if life.final else None)
        try:
            await asyncio.to_thread(self._services.records.terminations.write, pod.uid, kept)
            self.kept = life.final
        except (Refused, OSError) as error:
            log.error("pod %s: cannot record its termination: %s", pod.full_name, error)

    async def stop(self) -> None:
        """Stop the pod; return when the runtime lists nothing of it as running and its claims are unprepared.

        The cluster may give the devices to another pod as soon as this one has ended. Raises the first
        refusal.
        """
        pod, watch = self._hand.pod, self._services.runtime.watch
        record = await watch.reread_pod(pod.uid)
        self._stopping = True
        try:
            await stop_pod(pod, record, self._services, self._grace_of)
        finally:
            self._stopping = False
        if watch.pod(pod.uid).alive and (await watch.reread_pod(pod.uid)).alive:
            raise Refused("CRI lists it as running after its stop", subject=f"pod {pod.full_name}")
        await self._services.allocations.claims.unprepare(pod.uid)
        self._services.cgroups.remove_pod(pod.uid)

    async def leave_volumes(self) -> None:
        """Unmount and remove the volumes of an ended pod, which would occupy memory or disk. Raises
        `Refused`.
        """
        if not self.left_volumes.is_set():
            await self._services.volumes.manager.leave(self._hand.pod.uid)
            self.left_volumes.set()

    def _grace_of(self, container: ContainerRecord) -> int:
        given = self._hand.life.given_grace
        return given if given is not None else grace_seconds(self._hand.pod, container)

    def shorten_grace(self) -> None:
        """Stop again with a shorter grace period, if a stop with a longer one is under way."""
        pod, grace = self._hand.pod, self._hand.life.given_grace
        if self._stopping and grace is not None:
            running = self._services.runtime.watch.pod(pod.uid).may_run
            self._hastening.start(stop_sooner(running, self._services, grace), pod.full_name)

    async def free(self) -> None:
        """Remove the cgroup and the volumes; dead containers can wait. Raises `Refused`."""
        uid, services = self._hand.pod.uid, self._services
        record = await services.runtime.watch.reread_pod(uid)
        if record.alive:
            await self.stop()
        await free_node(uid, services)
        self.left_volumes.set()

    async def take_away(self) -> None:
        """Remove everything of the pod from the node. Raises `Refused` naming what could not be removed."""
        pod, services = self._hand.pod, self._services
        record = services.runtime.watch.pod(pod.uid)
        record.uid = pod.uid
        past = self._hand.past
        for container in record.containers:
            past[container.name] = max(past.get(container.name, 0), container.attempt + 1)
        await remove_pod(record, services, pod)
        services.starts.backoff.forget(f"{pod.uid}/")
        services.images.forget(pod.uid)
