"""Prepares and unprepares the claims of pods.

Decisions are in `claims`, `table` and `answers`; this file moves them between the pods, the drivers and the
state file. There is never more than one call for a claim under way, and a call that has begun is waited for
even if its pod is gone: otherwise an unprepare could overtake the prepare that it has to undo.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from engine.api.errors import KubengineError, Refused, Unavailable
from engine.api.objects.dynamic_resources import ResourceClaim
from engine.api.pod import Container, Pod
from engine.dra import checkpoint
from engine.dra.answers import batches, check_answers
from engine.dra.claims import (
    base_request,
    check_claim,
    container_claims,
    container_requests,
    has_claims,
    pod_claims,
)
from engine.dra.driver_calls import DraDriverFailed
from engine.dra.drivers import Connect, DraDrivers, SliceRemoval
from engine.dra.health import DeviceHealth, DeviceKey, HealthTable
from engine.dra.table import ClaimKey, ClaimState, ClaimTable, PreparedDevice
from engine.host.node_context import NodeContext
from engine.host.state_file import FaultPoint, StateFile, no_fault
from engine.host.stopping import stop_all
from engine.metrics import Registry

STATE_FILE: Final = "dra_manager_state"
HEALTH_FILE: Final = "dra_health_state"
RECONCILE_SECONDS: Final = 60.0
BUCKETS: Final = tuple(0.1 * 400 ** (i / 14) for i in range(15))

EXPIRY_SLACK: Final = 0.01

log = logging.getLogger("kubengine.dra")


class Claims(Protocol):
    """Read ResourceClaims of the cluster."""

    async def resource_claim(self, pod: Pod, name: str) -> ResourceClaim:
        """Read a claim in the pod's namespace. Raises `Refused` in the API server's words."""


class ClaimManager:
    """Manage the claims of the pods of one node.

    `may_run(pod uid)` tells whether something of a pod, known or not, runs or may run: its claims stay
    prepared. `ready()` tells whether all pods are known. `changed(pod uid)` is called when the health of a
    device that the pod uses changes.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        claims: Claims,
        slices: SliceRemoval,
        connect: Connect,
        may_run: Callable[[str], bool],
        ready: Callable[[], bool],
        changed: Callable[[str], None],
        fault: FaultPoint = no_fault,
    ) -> None:
        root, tasks = context.root, context.tasks
        self.table = ClaimTable()
        self._claims, self._may_run, self._ready, self._changed = claims, may_run, ready, changed
        self._clock, self._fault = context.steady, fault
        self._shows_messages = context.config.gate("ResourceHealthStatusMessage", True)
        self._health = HealthTable()
        self._file = StateFile(
            root / STATE_FILE,
            lambda: checkpoint.encode(self.table),
            name="dra-state",
            tasks=tasks,
            fault=fault,
        )
        self._health_file = StateFile(
            root / HEALTH_FILE, self._health.encode, name="dra-health-state", tasks=tasks
        )
        self.drivers = DraDrivers(connect, slices, self, tasks, came=self._driver_came)
        self._locks: WeakValueDictionary[ClaimKey, asyncio.Lock] = WeakValueDictionary()
        self._calls = tasks.passing("dra-claims")
        self._reconciler = tasks.task("dra-reconcile")
        self._soon = asyncio.Event()
        """Set to reconcile at once."""
        self.driver_connected: Callable[[str], None] = lambda driver: None
        """Called with the name of each driver that connects."""
        self._reported: dict[str, str] = {}
        """Why the claims of a pod that is gone are still prepared, by its uid."""
        self._expiry: asyncio.TimerHandle | None = None
        self._create_metrics(context.registry)

    def _create_metrics(self, registry: Registry) -> None:
        self._lasted = registry.histogram(
            "dra_operations_duration_seconds",
            "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a "
            "pod when the pod starts or stops, by operation (PrepareResources or UnprepareResources) and "
            "success.",
            ("operation_name", "is_error"),
            buckets=BUCKETS,
        )
        registry.collected(
            "gauge",
            "dra_resource_claims_in_use",
            "The number of ResourceClaims that are prepared on the node, by driver_name and across all "
            "drivers (<any>). A claim may use several drivers.",
            ("driver_name",),
            lambda: [((driver,), count) for driver, count in self.table.in_use().items()],
        )

    async def start(self) -> None:
        """Read what an earlier agent, or a kubelet, has prepared. Raises `Unavailable`."""
        for claim in self._file.read(checkpoint.decode, _log_lost_claims) or ():
            self.table.add(claim)
        self._health_file.read(self._health.restore, _log_lost_health)
        await self._file.start()
        await self._health_file.start()
        self._expire()
        self.drivers.start()
        self._reconciler.start(self._reconcile)

    async def stop(self) -> None:
        """Stop all calls and write the state files; claims stay prepared."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        await self._reconciler.stop()
        await self._calls.stop()
        await self.drivers.stop()
        await stop_all([self._file.stop, self._health_file.stop])

    # Pods

    def knows(self, pod: Pod) -> bool:
        """Tell whether this agent or one before it had every claim of the pod prepared."""
        return all(claim is not None and pod.uid in claim.pods for claim in self._recorded(pod))

    def _is_prepared(self, pod: Pod) -> bool:
        """Tell whether this agent had every claim of the pod prepared."""
        recorded = self._recorded(pod)
        return all(claim is not None and pod.uid in claim.pods and claim.is_prepared for claim in recorded)

    def _recorded(self, pod: Pod) -> list[ClaimState | None]:
        try:
            named = pod_claims(pod)
        except KubengineError:
            return [None]
        return [self.table.get((pod.metadata.namespace, claim.name)) for claim in named]

    async def prepare(self, pod: Pod) -> None:
        """Have every claim of the pod prepared; return at once if this agent has done so.

        Raises `Refused` in the kubelet's words. Nothing is kept of a failed attempt but what a driver may
        hold of it.
        """
        if not has_claims(pod) or self._is_prepared(pod):
            return
        with self._measured("PrepareResources"):
            claims = await self._fetch(pod)
            await self._to_its_end(lambda wanted: self._prepare(pod, claims, wanted))

    async def unprepare(self, pod_uid: str) -> None:
        """Unprepare the claims of a pod of which nothing runs. Raises `Refused` if a driver fails."""
        if self.table.of_pod(pod_uid) or self._locks.get(_of_pod(pod_uid)) is not None:
            with self._measured("UnprepareResources"):
                await self._to_its_end(lambda _: self._unprepare(pod_uid))
        self._reported.pop(pod_uid, None)

    @contextlib.contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        begun, failed = time.perf_counter(), "false"
        try:
            yield
        except KubengineError as error:
            failed = "true"
            words = operation.removesuffix("Resources").lower()
            raise Refused(f"{words} dynamic resources: {error}") from error
        finally:
            self._lasted.observe(time.perf_counter() - begun, operation, failed)

    async def _to_its_end(self, work: Callable[[Wanted], Coroutine[Any, Any, None]]) -> None:
        """Wait for work that continues if the caller is cancelled; the work can check if it is
        still `wanted`.
        """
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        async def carry_out() -> None:
            failure: Exception | None = Unavailable("the agent is stopping")
            try:
                await work(lambda: not done.cancelled())
                failure = None
            except Exception as error:
                failure = error
            finally:
                if not done.done():
                    done.set_result(failure)

        # A call that is under way cannot be taken back: its answer says what the driver holds, and must be
        # recorded even if nobody waits for it.
        self._calls.start(carry_out())
        try:
            failure = await asyncio.shield(done)
        except asyncio.CancelledError:
            done.cancel()
            raise
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def _locked(self, keys: Iterable[ClaimKey]) -> AsyncIterator[None]:
        """Hold the locks of these claims, always acquired in the same order."""
        async with AsyncExitStack() as stack:
            # One order for all, so that two pods that share two claims do not wait for each other for ever.
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    # Preparing

    async def _fetch(self, pod: Pod) -> list[ResourceClaim]:
        """Read and check the claims of a pod, each once. Raises `Refused`."""
        claims = {claim.name: claim for claim in pod_claims(pod)}
        found = []
        for named in claims.values():
            try:
                claim = await self._claims.resource_claim(pod, named.name)
            except Refused as error:
                raise Refused(f"fetch ResourceClaim {named.name}: {error.message}") from error
            check_claim(pod, named, claim)
            for result in claim.allocated:
                self.drivers.get(result.driver)
            found.append(claim)
        return found

    async def _prepare(self, pod: Pod, claims: Sequence[ResourceClaim], wanted: Wanted) -> None:
        keys = [(claim.metadata.namespace, claim.metadata.name) for claim in claims]
        # The pod's own lock first: a prepare that continues after its caller was cancelled must end before
        # the unprepare of the pod begins.
        async with self._locked([_of_pod(pod.uid)]), self._locked(keys):
            if not wanted():
                return
            # On disk before the drivers are called: an agent that dies in between must know what to
            # unprepare.
            attempts = self._enter(pod, claims)
            try:
                await self._file.flush()
            except Refused:
                self._forget_clean(
                    pod, attempts, {(a.claim.key, driver) for a in attempts for driver in a.fresh}
                )
                raise
            answers = await self._ask("NodePrepareResources", [(a.claim, a.asked) for a in attempts])
            self._fault("prepared")
            for asked in answers:
                if asked.done:
                    asked.claim.drivers[asked.driver] = asked.devices
                    asked.claim.prepared.add(asked.driver)
            fault = next((asked.fault for asked in answers if asked.fault), "")
            if fault:
                await self._roll_back(pod, attempts, answers)
            await self._file.flush()
        # The pod may have gone while its claims were prepared.
        self._soon.set()
        if fault:
            raise Refused(fault)

    def _enter(self, pod: Pod, claims: Sequence[ResourceClaim]) -> list[_Attempt]:
        """Record what drivers are about to be asked. Raises `Refused`, having recorded nothing."""
        attempts = []
        for claim in claims:
            meta = claim.metadata
            known = self.table.get((meta.namespace, meta.name))
            if known is not None and known.uid != meta.uid:
                text = f"old ResourceClaim with same name {meta.name} and different UID {known.uid}"
                raise Refused(f"{text} still exists (previous pod force-deleted?!)")
            state = known or ClaimState(meta.uid, meta.name, meta.namespace)
            drivers = {result.driver for result in claim.allocated}
            # Claims from a state file are recorded but not `prepared`: their drivers are asked again, since
            # they may have restarted with the agent (calls are idempotent).
            asked, entered = drivers - state.prepared, pod.uid not in state.pods
            attempts.append(_Attempt(state, asked, asked - state.drivers.keys(), entered))
        for attempt in attempts:
            for driver in attempt.asked:
                attempt.claim.drivers.setdefault(driver, ())
            self.table.add(attempt.claim)
            self.table.use(attempt.claim, pod.uid)
        return attempts

    async def _roll_back(self, pod: Pod, attempts: Sequence[_Attempt], answers: Sequence[_Asked]) -> None:
        """Unprepare what this attempt prepared: the pod may never start.

        What was prepared before stays, it may be in use. A driver that did not answer is not asked again now:
        what it may hold stays in the table, and it is asked when the pod ends or tries again.
        """
        again = {(asked.claim.key, asked.driver) for asked in answers if asked.answered}
        clean = {(asked.claim.key, asked.driver) for asked in answers if not asked.begun}
        taken_back = await self._ask(
            "NodeUnprepareResources",
            [(a.claim, {driver for driver in a.fresh if (a.claim.key, driver) in again}) for a in attempts],
        )
        for asked in taken_back:
            if asked.done:
                clean.add((asked.claim.key, asked.driver))
            else:
                log.warning("pod %s: a claim could not be rolled back: %s", pod.full_name, asked.fault)
        self._forget_clean(pod, attempts, clean)

    def _forget_clean(self, pod: Pod, attempts: Sequence[_Attempt], clean: Set[tuple[ClaimKey, str]]) -> None:
        """Remove from the table what no driver holds: the pairs of claim and driver in `clean`."""
        for attempt in attempts:
            claim = attempt.claim
            for driver in [driver for driver in attempt.fresh if (claim.key, driver) in clean]:
                claim.drivers.pop(driver, None)
                claim.prepared.discard(driver)
            if attempt.entered and len(claim.pods) > 1:
                self.table.release(claim, pod.uid)
            elif attempt.entered and not claim.drivers:
                self.table.remove(claim)

    async def _ask(self, method: str, wanted: Iterable[tuple[ClaimState, Collection[str]]]) -> list[_Asked]:
        """Call all drivers at once, each one time."""
        calls = batches(wanted)
        # One call per driver with all its claims, as in the kubelet.
        answers = await asyncio.gather(*(self._call(method, *call) for call in calls.items()))
        return [asked for answered in answers for asked in answered]

    async def _call(self, method: str, driver: str, claims: list[ClaimState]) -> list[_Asked]:
        asked = {claim.uid: claim.name for claim in claims}
        try:
            client = self.drivers.get(driver)
            call = client.prepare if method == "NodePrepareResources" else client.unprepare
            answers = check_answers(method, asked, await call(claims))
        except Refused as error:
            begun = not isinstance(error, DraDriverFailed) or error.begun
            fault = _named(driver, error.message)
            return [_Asked(claim, driver, fault=fault, begun=begun) for claim in claims]
        stray = answers.faults.get("", "")
        return [
            _Asked(
                claim,
                driver,
                answered=True,
                devices=answers.done.get(claim.uid, ()),
                fault=_named(driver, answers.faults.get(claim.uid, stray)),
            )
            for claim in claims
        ]

    # Unpreparing

    async def _unprepare(self, pod_uid: str) -> None:
        async with self._locked([_of_pod(pod_uid)]):
            keys = [claim.key for claim in self.table.of_pod(pod_uid)]
            if not keys:
                return
            async with self._locked(keys):
                faults = await self._unprepare_unshared(pod_uid)
                await self._file.flush()
        if faults:
            raise Refused(faults[0])

    async def _unprepare_unshared(self, pod_uid: str) -> list[str]:
        """Unprepare the claims that no other pod uses; return the faults."""
        claims = self.table.of_pod(pod_uid)
        last = [claim for claim in claims if len(claim.pods) == 1]
        for claim in claims:
            # Shared with another pod, so it stays prepared.
            if claim not in last:
                self.table.release(claim, pod_uid)
        answers = await self._ask("NodeUnprepareResources", [(claim, claim.drivers) for claim in last])
        self._fault("unprepared")
        for asked in answers:
            if asked.done:
                asked.claim.drivers.pop(asked.driver, None)
                asked.claim.prepared.discard(asked.driver)
        for claim in last:
            if not claim.drivers:
                self.table.remove(claim)
        return [asked.fault for asked in answers if asked.fault]

    async def _reconcile(self) -> None:
        """Unprepare the claims of pods that are gone, each minute: no worker remembers these pods."""
        while True:
            with contextlib.suppress(TimeoutError):
                # A node without claims never wakes up for this.
                async with asyncio.timeout(RECONCILE_SECONDS if len(self.table) else None):
                    await self._soon.wait()
            self._soon.clear()
            if self._ready():
                gone = [uid for uid in self.table.pods if not self._may_run(uid)]
                await asyncio.gather(*(self._reconcile_pod(uid) for uid in gone))

    async def _reconcile_pod(self, uid: str) -> None:
        try:
            await self.unprepare(uid)
        except Refused as error:
            if self._reported.get(uid) != str(error):
                self._reported[uid] = str(error)
                log.warning("the claims of pod %s, which no longer exists, remain prepared: %s", uid, error)

    def _driver_came(self, driver: str) -> None:
        self._soon.set()
        self.driver_connected(driver)

    def device_health(self, driver: str, device: PreparedDevice) -> DeviceHealth:
        """Return what the driver has reported of a device."""
        return self._health.get(driver, device.pool, device.device, self._clock())

    # What containers have

    def container_devices(self, pod: Pod, container: Container) -> list[str]:
        """Return the CDI ids for a container, each once. Raises `Refused` if a claim is not prepared."""
        ids: dict[str, None] = {}
        for claim, request in container_requests(pod, container):
            state = self.table.get((pod.metadata.namespace, claim.name))
            if state is None or pod.uid not in state.pods:
                raise Refused(f"ResourceClaim {claim.name} is not prepared for pod {pod.full_name}")
            for _, device in state.devices(base_request(request)):
                ids.update(dict.fromkeys(device.cdi_ids))
        return list(ids)

    def container_claims(self, pod: Pod, container: Container) -> list[ClaimState]:
        """Return the claims of a container that are in the table."""
        return container_claims(self.table, pod, container)

    def health(self, pod: Pod, container: Container) -> dict[str, dict[str, DeviceHealth]]:
        """Return the health of a container's claimed devices: `claim:NAME[/REQUEST]` → id → health. The id is
        the device's first CDI id, else driver/pool/device."""
        found: dict[str, dict[str, DeviceHealth]] = {}
        now = self._clock()
        with contextlib.suppress(KubengineError):
            for claim, request in container_requests(pod, container):
                state = self.table.get((pod.metadata.namespace, claim.name))
                if state is None or not claim.entry:
                    continue
                listed = found.setdefault(f"claim:{claim.entry}{request and '/' + request}", {})
                for driver, device in state.devices(base_request(request)):
                    id = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
                    listed.setdefault(id, self._health.get(driver, device.pool, device.device, now))
        return {name: devices for name, devices in found.items() if devices}

    def device_status(self, pod: Pod, container: str) -> list[dict[str, Any]]:
        """Return the same for a regular container, as `allocatedResourcesStatus` shows it."""
        if not pod.spec.resource_claims:
            return []
        return [
            {
                "name": name,
                "resources": [
                    {
                        "resourceID": id,
                        "health": known.health,
                        **({"message": known.message} if known.message and self._shows_messages else {}),
                    }
                    for id, known in devices.items()
                ],
            }
            for each in pod.spec.containers
            if each.name == container
            for name, devices in self.health(pod, each).items()
        ]

    # The health of devices (`engine.dra.drivers.HealthReports`)

    def listed(self, driver: str, devices: Sequence[DeviceHealth]) -> None:
        changed = self._health.update(driver, devices, self._clock())
        if changed:
            self._health_changed({driver: changed})
        self._expire()

    def ended(self, driver: str) -> None:
        unknown = self._health.forget(driver)
        if unknown:
            self._health_changed({driver: unknown})

    def _expire(self) -> None:
        """Drop reports past their time-out, and come back when the next one times out."""
        stale: dict[str, list[DeviceKey]] = {}
        for driver, key in self._health.expire(self._clock()):
            stale.setdefault(driver, []).append(key)
        if stale:
            self._health_changed(stale)
        if self._expiry is not None:
            self._expiry.cancel()
        due = self._health.next_expiry()
        loop = asyncio.get_running_loop()
        delay = None if due is None else max(due - self._clock(), 0) + EXPIRY_SLACK
        self._expiry = None if delay is None else loop.call_later(delay, self._expire)

    def _health_changed(self, devices: Mapping[str, Sequence[DeviceKey]]) -> None:
        for pod in {pod for driver, keys in devices.items() for pod in self.table.users_of(driver, keys)}:
            self._changed(pod)
        self._health_file.changed()


Wanted = Callable[[], bool]
"""Tells whether the caller still waits."""


class _Attempt(msgspec.Struct, frozen=True):
    """Hold a claim that is being prepared: `asked` are the drivers to call, `fresh` those of them that cannot
    hold it from before; `entered` tells that the pod did not use it before."""

    claim: ClaimState
    asked: set[str]
    fresh: set[str]
    entered: bool


class _Asked(msgspec.Struct, frozen=True):
    """Hold the result of a call to a driver for one claim. `begun`: the driver may have done something;
    `answered`: its answer tells what."""

    claim: ClaimState
    driver: str
    answered: bool = False
    begun: bool = True
    devices: tuple[PreparedDevice, ...] = ()
    fault: str = ""

    @property
    def done(self) -> bool:
        return self.answered and not self.fault


def _log_lost_claims(fault: str) -> None:
    log.error("%s; the claims of running pods are prepared again, others remain prepared", fault)


def _log_lost_health(fault: str) -> None:
    log.error("%s; the health of devices is unknown until their drivers report it", fault)


def _named(driver: str, fault: str) -> str:
    """Add the driver's name: the kubelet's words leave open which of several drivers failed."""
    return fault if not fault or driver in fault else f"{fault} (DRA driver {driver})"


def _of_pod(uid: str) -> ClaimKey:
    """Return the key of a pod's own lock; no claim has an empty namespace."""
    return "", uid
