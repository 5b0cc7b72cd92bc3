"""Ends one pod: keeps that it ends, stops what runs of it, takes away what is left."""

from __future__ import annotations

import asyncio
import logging

from engine.api.errors import Refused
from engine.cri.records import ContainerRecord
from engine.node.pod.state import PodState
from engine.node.pod.termination_record import TerminationRecord
from engine.node.sync.services import Services
from engine.node.sync.stopping import free_node, grace_seconds, remove_pod, stop_pod, stop_sooner

log = logging.getLogger("kubengine.pods")


class PodTermination:
    """`kept`: what is on disk says that the pod has ended for good."""

    def __init__(self, hand: PodState, services: Services) -> None:
        self.kept = hand.life.final
        self._hand = hand
        self._services = services
        self._stopping = self._left_volumes = False
        self._hastening = services.tasks.passing("pod-shorten_grace")

    async def leave(self) -> None:
        """The agent goes, the pod stays."""
        await self._hastening.stop()

    async def keep(self) -> None:
        """That the pod ends, or has ended, for an agent that comes back. Not worth to stop for."""
        life, pod = self._hand.life, self._hand.pod
        if not life.wanted:
            return
        kept = TerminationRecord(life.end, pod.status if life.final else None)
        try:
            await asyncio.to_thread(self._services.ends.write, pod.uid, kept)
            self.kept = life.final
        except (Refused, OSError) as error:
            log.error("pod %s: its end is not kept: %s", pod.full_name, error)

    async def stop(self) -> None:
        """Returns when nothing of the pod runs, as the runtime lists it. Raises its first refusal."""
        pod, watch = self._hand.pod, self._services.watch
        record = await watch.reread_pod(pod.uid)
        self._stopping = True
        try:
            await stop_pod(pod, record, self._services, self._grace_of)
        finally:
            self._stopping = False
        if watch.pod(pod.uid).alive and (await watch.reread_pod(pod.uid)).alive:
            raise Refused("CRI lists it as running after its stop", subject=f"pod {pod.full_name}")
        self._services.cgroups.remove_pod(pod.uid)

    async def leave_volumes(self) -> None:
        """A pod that has ended keeps no volume, neither memory nor disk. Raises `Refused`."""
        if not self._left_volumes:
            await self._services.volume_keeper.leave(self._hand.pod.uid)
            self._left_volumes = True

    def _grace_of(self, container: ContainerRecord) -> int:
        given = self._hand.life.given_grace
        return given if given is not None else grace_seconds(self._hand.pod, container)

    def shorten_grace(self) -> None:
        """Ask the runtime again, where it has been asked to stop the pod and was given longer."""
        pod, grace = self._hand.pod, self._hand.life.given_grace
        if self._stopping and grace is not None:
            running = self._services.watch.pod(pod.uid).may_run
            self._hastening.start(stop_sooner(running, self._services, grace), pod.full_name)

    async def free(self) -> None:
        """Gives back cgroup and volumes; what is dead in the runtime can wait. Raises `Refused`."""
        uid, services = self._hand.pod.uid, self._services
        record = await services.watch.reread_pod(uid)
        if record.alive:
            await self.stop()
        await free_node(uid, services)

    async def take_away(self) -> None:
        """Leaves nothing of the pod on the node. Raises `Refused` naming what would not go."""
        pod, services = self._hand.pod, self._services
        record = services.watch.pod(pod.uid)
        record.uid = pod.uid
        past = self._hand.past
        for container in record.containers:
            past[container.name] = max(past.get(container.name, 0), container.attempt + 1)
        await remove_pod(record, services, pod)
        services.backoff.forget(f"{pod.uid}/")
        services.images.forget(pod.uid)
