"""Makes images present according to their pull policies, with back-off after failures."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.events import NORMAL, WARNING, EventRecorder
from engine.api.pod import Container, Pod
from engine.api.token_bucket import TokenBucket
from engine.containers.backoff import Backoff
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.node.images.access import ImageAccess, fault_of_name
from engine.node.images.keyring import Credential
from engine.node.pod.life import Waiting
from engine.wire import cri_v1_pb2 as cri

PULLS_AT_ONCE = 10
PULL_DEADLINE_SECONDS = 600.0
_OF_IMAGES = (
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "InvalidImageName",
    "RegistryUnavailable", "SignatureValidationFailed",
)  # fmt: skip
_SAID_BY_RUNTIMES = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}
"""Messages for CRI error codes, with which a runtime's error begins (`k8s.io/cri-api/pkg/errors`)."""

PULL_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_SIZES: Final = tuple(
    megabytes << 20
    for megabytes in (
        *(0, 10, 100, 500, 1024, 5 * 1024, 10 * 1024, 20 * 1024, 30 * 1024, 40 * 1024, 60 * 1024, 100 * 1024),
    )
)
_SIZE_LABELS: Final = (
    *("0-10MB", "10MB-100MB", "100MB-500MB", "500MB-1GB", "1GB-5GB", "5GB-10GB", "10GB-20GB", "20GB-30GB"),
    *("30GB-40GB", "40GB-60GB", "60GB-100GB", "GT100GB"),
)

Lease = Callable[[str], AbstractAsyncContextManager[None]]


class StartRefused(KubengineError):
    """Raised if a container cannot start now, with the waiting state for its status, and the event."""

    def __init__(self, waiting: Waiting, *, event: str, text: str = "", kind: str = WARNING) -> None:
        self.waiting = waiting
        self.event, self.text, self.kind = event, text or waiting.message, kind
        super().__init__(f"{waiting.reason}: {waiting.message}")

    def report(self, recorder: EventRecorder, pod: Pod, container: str) -> None:
        """Emit the event, and for an image problem also the container's `Failed` event."""
        recorder.pod(pod, self.kind, self.event, self.text, container=container)
        if self.waiting.reason in _OF_IMAGES:
            recorder.pod(pod, WARNING, "Failed", f"Error: {self.waiting.reason}", container=container)


class WantedImage(msgspec.Struct, frozen=True):
    """Hold an image that a container needs: its own, or that of an image volume."""

    container: str
    image: str
    policy: str
    volume: str = ""

    @property
    def named(self) -> str:
        """Return the name for messages."""
        return f'image "{self.image}"' + (f' of volume "{self.volume}"' if self.volume else "")


class PresentImage(msgspec.Struct, frozen=True):
    """Hold an image in the runtime's store, and the user that it asks for."""

    reference: str
    uid: int | None
    username: str
    size: int


def wanted_images(pod: Pod, container: Container) -> list[WantedImage]:
    """Return a container's own image, then those of the image volumes that it mounts."""
    wanted = [WantedImage(container.name, container.image, container.image_pull_policy)]
    mounted = {mount.name for mount in container.volume_mounts or []}
    for volume in pod.spec.volumes or []:
        if volume.image is not None and volume.name in mounted:
            image = volume.image
            wanted.append(WantedImage(container.name, image.reference, image.pull_policy, volume.name))
    return wanted


def pulls_at_once(config: KubeletConfiguration) -> int:
    """Return the number of parallel pulls. Raises `InvalidInput` if `maxParallelImagePulls` contradicts
    `serializeImagePulls`.
    """
    most = config.max_parallel_image_pulls
    if most is not None and most < 1:
        raise InvalidInput(f"expected at least 1, got {most}", subject="maxParallelImagePulls")
    if not config.serialize_image_pulls:
        return most or PULLS_AT_ONCE
    if most is not None and most > 1:
        text = f"{most} at once needs serializeImagePulls: false"
        raise InvalidInput(text, subject="maxParallelImagePulls")
    return 1


class ImagePuller:
    """Pull images for one node, one at a time unless the configuration allows more.

    Callers hold `lease(image)` from before `find` or `pull` until the container is created, so that image GC
    does not remove the image in between.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        config: KubeletConfiguration,
        recorder: EventRecorder,
        clock: Callable[[], float],
        lease: Lease,
        access: ImageAccess,
        registry: Registry,
    ) -> None:
        self.lease = lease
        self._access, self._metrics = access, _PullMetrics(registry)
        self._runtime = runtime
        self._recorder = recorder
        self._clock = clock
        self._backoff = Backoff()
        self._failed_at: dict[str, float] = {}
        self._last_failure: dict[str, str] = {}
        self._slots = asyncio.Semaphore(pulls_at_once(config))
        qps = config.registry_pull_qps
        self._rate = TokenBucket(qps, config.registry_burst) if qps else None
        self._stopping = False

    async def stop(self) -> None:
        """Keep the intents of the pulls that the end of the agent interrupts from now on."""
        self._stopping = True

    async def find(self, pod: Pod, wanted: WantedImage) -> PresentImage | None:
        """Return the image if it is present and needs no pull, or None if it must be pulled.

        Raises `StartRefused` (InvalidImageName, ErrImageNeverPull, ImageInspectError).
        """
        fault = fault_of_name(wanted.image)
        if fault:
            name = f'"{wanted.image}"'
            text = f"Failed to apply default image tag {name}: couldn't parse image name {name}: {fault}"
            raise StartRefused(Waiting("InvalidImageName", text), event="InspectFailed")
        if wanted.policy == "Always":
            self._metrics.ensured(wanted.policy, present=None, pull=True)
            return None
        present: bool | None = None
        pull: bool | None = None
        try:
            there = await self._inspect(wanted)
            present = there is not None
            found = await self._if_usable(pod, wanted, there)
            pull = found is None if present or wanted.policy != "Never" else None
        finally:
            self._metrics.ensured(wanted.policy, present=present, pull=pull)
        if found is None and wanted.policy == "Never":
            text = f"Container {wanted.named} is not present with pull policy of Never"
            raise StartRefused(Waiting("ErrImageNeverPull", text), event="ErrImageNeverPull")
        if found is not None:
            self._report_present(pod, wanted)
        return found

    async def pull(
        self, pod: Pod, wanted: WantedImage, sandbox: cri.PodSandboxConfig | None = None
    ) -> PresentImage:
        """Pull the image when a slot is free, unless another pod has pulled it in the meantime.

        With policy Always it is pulled in any case. Raises `StartRefused` (ErrImagePull, ImagePullBackOff,
        ImageInspectError).
        """
        key = f"{pod.uid}/{wanted.image}"
        if self._remaining(key) > 0:
            text = f"Back-off pulling {wanted.named}"
            waiting = Waiting("ImagePullBackOff", f"{text}: {self._last_failure[key]}")
            raise StartRefused(waiting, event="BackOff", text=text, kind=NORMAL)
        self._recorder.pod(pod, NORMAL, "Pulling", f"Pulling {wanted.named}", container=wanted.container)
        waited_from = self._clock()
        async with self._slots:
            # Another pod may have pulled the image while this pod waited for a slot.
            found = await self._usable(pod, wanted) if wanted.policy != "Always" else None
            if found is not None:
                self._report_present(pod, wanted)
                return found
            began = self._clock()
            try:
                credential = await self._pull(pod, wanted.image, sandbox)
            except Refused as error:
                now = self._clock()
                self._failed_at[key] = now
                self._backoff.attempt(key, now, now)
                waiting = failed_pull(wanted.image, error.message)
                self._last_failure[key] = f"{waiting.reason}: {waiting.message}"
                text = f"Failed to pull {wanted.named}: {error.message}"
                raise StartRefused(waiting, event="Failed", text=text) from error
            # Measured before the inspection, which is not part of the pull's duration.
            pulled_at = self._clock()
            found = await self._inspect(wanted)
            # Recorded before the slot is released, so that the next waiting pod finds the credential's
            # record.
            if found is not None:
                await self._access.record_image_pulled(wanted.image, found.reference, credential)
        if found is None:
            text = f"{wanted.named} was pulled but the runtime does not have it"
            raise StartRefused(Waiting("ImageInspectError", text), event="InspectFailed")
        self._failed_at.pop(key, None)
        self._last_failure.pop(key, None)
        took, with_waiting = _milliseconds(pulled_at - began), _milliseconds(pulled_at - waited_from)
        size = f"Image size: {found.size} bytes"
        text = f"Successfully pulled {wanted.named} in {took} ({with_waiting} including waiting). {size}."
        self._recorder.pod(pod, NORMAL, "Pulled", text, container=wanted.container)
        self._metrics.pulled(pulled_at - waited_from, found.size)
        return found

    async def pull_for_node(self, image: str) -> None:
        """Pull an image for the node itself, with the node's credentials. Raises `KubengineError`."""
        fault = fault_of_name(image)
        if fault:
            raise InvalidInput(fault, subject=f"image {image!r}")
        async with self._slots:
            if await self._runtime.image_status(image) is not None:
                return
            credential = await self._pull(Pod(), image, None)
            found = await self._runtime.image_status(image)
            if found is None:
                raise Refused("it was pulled but the runtime does not have it", subject=f"image {image!r}")
            await self._access.record_image_pulled(image, found.id, credential)

    def retry_in(self, pod: Pod, container: Container) -> float:
        """Return the seconds until the pulls that a container needs may be tried again."""
        return max(self._remaining(f"{pod.uid}/{wanted.image}") for wanted in wanted_images(pod, container))

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._backoff.forget(f"{uid}/")
        for key in [key for key in self._failed_at if key.startswith(f"{uid}/")]:
            del self._failed_at[key], self._last_failure[key]

    def _report_present(self, pod: Pod, wanted: WantedImage) -> None:
        text = f"Container {wanted.named} already present on machine and can be accessed by the pod"
        self._recorder.pod(pod, NORMAL, "Pulled", text, container=wanted.container)

    async def _usable(self, pod: Pod, wanted: WantedImage) -> PresentImage | None:
        """Return the image if it exists and the pod may use it, and else None."""
        return await self._if_usable(pod, wanted, await self._inspect(wanted))

    async def _if_usable(
        self, pod: Pod, wanted: WantedImage, found: PresentImage | None
    ) -> PresentImage | None:
        if found is None or await self._access.may_use(pod, wanted.image, found.reference):
            return found
        return None

    async def _pull(self, pod: Pod, image: str, sandbox: cri.PodSandboxConfig | None) -> Credential | None:
        """Pull with each suitable credential in turn; return the one that worked, None if none was needed.

        Raises `Refused` with the errors of all attempts, or if `registryPullQPS` and `registryBurst` are
        exceeded.
        """
        if self._rate is not None and not self._rate.take(time.monotonic()):
            raise Refused("pull QPS exceeded")
        # Recorded before the pull: if the agent crashes, the image must not count as preloaded, which every
        # pod may use (KEP-2535).
        await self._access.record_pull_intent(image)
        try:
            credentials: Sequence[Credential | None] = await self._access.credentials(pod, image) or [None]
            refusals: list[Refused] = []
            for credential in credentials:
                try:
                    await self._runtime.pull_image(
                        image, sandbox, auth=_auth(credential), timeout=PULL_DEADLINE_SECONDS
                    )
                except Refused as error:
                    refusals.append(error)
                else:
                    return credential
        except BaseException as error:
            # The runtime may finish a pull that the end of the agent interrupts, as after a crash.
            if not (self._stopping and isinstance(error, asyncio.CancelledError)):
                await self._access.remove_pull_intent(image)
            raise
        # Remove the intent, or the image would count as pulled with unknown credentials.
        await self._access.remove_pull_intent(image)
        answers = [_answer(error) for error in refusals]
        raise Refused(answers[0] if len(answers) == 1 else f"[{', '.join(answers)}]")

    async def _inspect(self, wanted: WantedImage) -> PresentImage | None:
        try:
            found = await self._runtime.image_status(wanted.image)
        except Refused as error:
            text = f"Failed to inspect {wanted.named}: {error.message}"
            raise StartRefused(Waiting("ImageInspectError", text), event="InspectFailed") from error
        return _present(found) if found is not None else None

    def _remaining(self, key: str) -> float:
        failed_at = self._failed_at.get(key)
        return self._backoff.remaining(key, failed_at, self._clock()) if failed_at is not None else 0.0


def failed_pull(image: str, text: str) -> Waiting:
    """Return the waiting state after a failed pull (kubelet v1.36, evalCRIPullErr)."""
    for reason, why in _SAID_BY_RUNTIMES.items():
        if text.startswith(reason):
            return Waiting(reason, f"image pull failed for {image} because {why}{text.removeprefix(reason)}")
    return Waiting("ErrImagePull", text)


def _answer(error: Refused) -> str:
    """Return the error's text with the runtime's gRPC status, unless that is the uninformative Unknown."""
    unknown = error.status_text.startswith("rpc error: code = Unknown ")
    return error.message if unknown or not error.status_text else error.status_text


def _milliseconds(seconds: float) -> Duration:
    return Duration(int(seconds * 1000) / 1000)


def _auth(credential: Credential | None) -> cri.AuthConfig | None:
    if credential is None:
        return None
    return cri.AuthConfig(username=credential.username, password=credential.password)


def _present(image: cri.Image) -> PresentImage:
    uid = image.uid.value if image.HasField("uid") else None
    return PresentImage(image.id, uid, image.username, image.size)


def size_label(size: int) -> str:
    """Return the metric label for an image size in bytes."""
    return _SIZE_LABELS[max(bisect_right(_SIZES, size) - 1, 0)]


class _PullMetrics:
    """Count the pulls of one node, and the requests for images, under the kubelet's metric names."""

    def __init__(self, registry: Registry) -> None:
        self._pulls = registry.histogram(
            "kubelet_image_pull_duration_seconds",
            "Duration in seconds to pull an image, with the wait for other pulls.",
            ["image_size_in_bytes"],
            PULL_BUCKETS,
        )
        self._requests = registry.counter(
            "kubelet_image_manager_ensure_image_requests_total",
            "How often an image was made sure of for a container.",
            ["pull_policy", "present_locally", "pull_required"],
        )

    def pulled(self, seconds: float, size: int) -> None:
        """Record a successful pull of an image of `size` bytes."""
        self._pulls.observe(seconds, size_label(size))

    def ensured(self, policy: str, *, present: bool | None, pull: bool | None) -> None:
        """Count one request. `present` and `pull` are None if an error prevented the check."""
        self._requests.inc(policy.lower(), _known(present), _known(pull))


def _known(value: bool | None) -> str:
    return "unknown" if value is None else str(value).lower()
