"""Makes sure that a container's image is there, as its pull policy asks, with back-off after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.api.config import KubeletConfiguration
from engine.api.errors import KubengineError, Refused
from engine.api.events import NORMAL, WARNING, EventRecorder
from engine.api.pod import Container, Pod
from engine.node.backoff import Backoff
from engine.node.status import Waiting
from engine.runtime.client import RuntimeClient
from engine.wire import cri_v1_pb2 as cri


class StartRefused(KubengineError):
    """A container that can't be started now; `waiting` is what its status says."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        super().__init__(f"{waiting.reason}: {waiting.message}")


@dataclass(frozen=True, slots=True)
class PresentImage:
    """An image in the runtime's store and the user that it asks for."""

    reference: str
    uid: int | None
    username: str


class ImagePuller:
    """One per node; pulls one at a time unless the configuration allows more."""

    def __init__(
        self,
        runtime: RuntimeClient,
        config: KubeletConfiguration,
        recorder: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._clock = clock
        self._backoff = Backoff()
        self._failed_at: dict[str, float] = {}
        at_once = 1 if config.serialize_image_pulls else config.max_parallel_image_pulls or 10
        self._slots = asyncio.Semaphore(at_once)

    async def ensure(self, pod: Pod, container: Container) -> PresentImage:
        """Raises `StartRefused` (ErrImageNeverPull, ErrImagePull, ImagePullBackOff, ImageInspectError)."""
        image = container.image
        policy = container.image_pull_policy
        try:
            found = await self._runtime.image_status(image)
        except Refused as error:
            raise self._refuse(pod, container, "ImageInspectError", "Failed", str(error)) from error
        if found is not None and policy != "Always":
            return _present(found)
        if policy == "Never":
            text = f'Container image "{image}" is not present with pull policy of Never'
            raise self._refuse(pod, container, "ErrImageNeverPull", "ErrImageNeverPull", text)
        return await self._pull(pod, container)

    async def _pull(self, pod: Pod, container: Container) -> PresentImage:
        image = container.image
        key = f"{pod.uid}/{image}"
        failed_at = self._failed_at.get(key)
        if failed_at is not None and self._backoff.remaining(key, failed_at, self._clock()) > 0:
            text = f'Back-off pulling image "{image}"'
            raise self._refuse(pod, container, "ImagePullBackOff", "BackOff", text, NORMAL)
        async with self._slots:
            self._recorder.pod(pod, NORMAL, "Pulling", f'Pulling image "{image}"', container=container.name)
            began = self._clock()
            try:
                await self._runtime.pull_image(image)
                found = await self._runtime.image_status(image)
            except Refused as error:
                now = self._clock()
                self._failed_at[key] = now
                self._backoff.attempt(key, now, now)
                text = f'failed to pull image "{image}": {error.message}'
                raise self._refuse(pod, container, "ErrImagePull", "Failed", text) from error
        if found is None:
            text = f'image "{image}" was pulled but the runtime does not have it'
            raise self._refuse(pod, container, "ImageInspectError", "Failed", text)
        self._failed_at.pop(key, None)
        text = f'Successfully pulled image "{image}" in {self._clock() - began:.3f}s'
        self._recorder.pod(pod, NORMAL, "Pulled", text, container=container.name)
        return _present(found)

    def retry_in(self, pod: Pod, container: Container) -> float:
        """Seconds until a pull may be tried again."""
        key = f"{pod.uid}/{container.image}"
        failed_at = self._failed_at.get(key)
        return self._backoff.remaining(key, failed_at, self._clock()) if failed_at is not None else 0.0

    def forget(self, uid: str) -> None:
        """A pod has gone."""
        self._backoff.forget(f"{uid}/")
        for key in [key for key in self._failed_at if key.startswith(f"{uid}/")]:
            del self._failed_at[key]

    def _refuse(
        self, pod: Pod, container: Container, reason: str, event: str, text: str, kind: str = WARNING
    ) -> StartRefused:
        self._recorder.pod(pod, kind, event, text, container=container.name)
        return StartRefused(Waiting(reason, text))


def _present(image: cri.Image) -> PresentImage:
    uid = image.uid.value if image.HasField("uid") else None
    return PresentImage(image.id, uid, image.username)
