"""Ends pods before the machine goes down: holds logind's inhibitor lock until they have ended.

It stores start and end of the last graceful shutdown in `graceful_node_shutdown_state`, in the kubelet's
format. Source: kubelet v1.36 (`pkg/kubelet/nodeshutdown`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import KubengineError, Refused, Unavailable
from engine.api.events import NORMAL
from engine.api.lifecycle import AdmissionRejected, KillPod, PodEnd
from engine.api.pod import Pod
from engine.host.files import replace_file
from engine.host.node_context import NodeContext
from engine.shutdown.groups import Group, Period, by_priority, grace_seconds, whole_time
from engine.shutdown.logind import Logind, write_inhibit_delay
from engine.shutdown.metrics import ShutdownMetrics

STATE_FILE: Final = "graceful_node_shutdown_state"
ENDED: Final = "Pod was terminated in response to imminent node shutdown."
REJECTED: Final = "Pod was rejected as the node is shutting down."
DISRUPTION: Final = "TerminationByKubelet"
RECONNECT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 1.0
"""How long `stop` waits for a connection that is being opened."""
RELOAD_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.6)

log = logging.getLogger("kubengine.shutdown")
NEVER = "0001-01-01T00:00:00Z"


class LogindPlaces(msgspec.Struct, frozen=True):
    """Hold the system bus and the directory of logind's drop-ins."""

    bus: str
    drop_ins: Path


class ShutdownManager:
    """End pods at a shutdown.

    `periods` are the grace periods by priority. `active_pods()` returns the pods to end; `kill_pod` ends
    one, and `volumes_left(pod)` returns once its volumes are unmounted. `changed()` is called when the node
    starts or stops shutting down. `state_file` stores the times of the last shutdown; `clock` returns Unix
    seconds.
    """

    def __init__(
        self,
        context: NodeContext,
        periods: Sequence[Period],
        places: LogindPlaces,
        *,
        active_pods: Callable[[], Sequence[Pod]],
        kill_pod: KillPod,
        volumes_left: Callable[[Pod], Awaitable[None]],
        changed: Callable[[], None],
        metrics: ShutdownMetrics,
    ) -> None:
        self.shutting_down = False
        self._periods = periods
        self._places = places
        self._active_pods, self._kill_pod, self._volumes_left = active_pods, kill_pod, volumes_left
        self._changed = changed
        self._state_file = context.root / STATE_FILE
        self._recorder = context.recorder
        self._clock = context.clock
        self._metrics = metrics
        self._watching = context.tasks.task("node-shutdown")
        self._ending = context.tasks.passing("shutdown")
        self._shutdown: asyncio.Task[None] | None = None
        self._lock: int | None = None
        self._trouble = ""

    async def start(self) -> None:
        """Return at once and connect to logind in the background; a missing logind is logged once."""
        self._show_last()
        self._watching.start(self._watch)

    async def stop(self) -> None:
        """Release the lock: a shutdown no longer waits for this agent."""
        await self._watching.stop()
        await self._ending.stop()
        self._release()

    def check_admission(self) -> None:
        """Raise `AdmissionRejected` while the node is shutting down."""
        if self.shutting_down:
            raise AdmissionRejected("NodeShutdown", REJECTED)

    def problem(self) -> str:
        """Return why the node is not ready, or ""."""
        return "node is shutting down" if self.shutting_down else ""

    # logind

    async def _watch(self) -> None:
        while True:
            pause = RECONNECT_SECONDS
            try:
                logind = await self._connect()
                try:
                    await self._follow(logind)
                finally:
                    logind.close()
            except Unavailable as error:
                self._report(error)
                pause = RECONNECT_SECONDS if self._lock is not None else RETRY_SECONDS
            except Refused as error:
                self._report(error)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    def _report(self, error: KubengineError) -> None:
        """Log a problem, but not the same one twice in a row."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("a shutdown of this machine will not wait for its pods: %s", error)

    async def _connect(self) -> Logind:
        """Open a connection that receives signals, and take a new lock. Raises `Refused`."""
        connecting = asyncio.ensure_future(asyncio.to_thread(self._open))
        try:
            logind, lock = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, and an event loop that ends drops its result: what the thread
            # opens is closed here, or later if the bus is slow.
            connecting.add_done_callback(_dismiss)
            await asyncio.wait({connecting}, timeout=STOP_SECONDS)
            raise
        # After the new lock exists, so that there is no moment without one.
        self._release()
        self._lock = lock
        if self._trouble:
            self._trouble = ""
            log.info("a shutdown of this machine waits for its pods")
        return logind

    def _open(self) -> tuple[Logind, int]:
        """Open a connection; runs in a thread."""
        logind = Logind(self._places.bus)
        try:
            self._raise_delay(logind)
            return logind, logind.inhibit()
        except BaseException:
            logind.close()
            raise

    def _raise_delay(self, logind: Logind) -> None:
        """Ask logind to wait as long as all pods may need. If it refuses, pods get the time that
        it allows.
        """
        wanted, delay = whole_time(self._periods), logind.inhibit_delay()
        if delay >= wanted:
            return
        try:
            write_inhibit_delay(self._places.drop_ins, wanted)
            logind.reload()
            for pause in RELOAD_PAUSES:
                # logind reloads asynchronously and does not say when it is done; this runs in a thread.
                time.sleep(pause)
                delay = logind.inhibit_delay()
                if delay >= wanted:
                    return
            raise Refused(
                f"InhibitDelayMaxSec is {delay:g} s after logind reloaded its configuration", subject="logind"
            )
        except Refused as error:
            log.warning(
                "a shutdown may need %d s to end pods, but logind waits only %g s: %s", wanted, delay, error
            )

    async def _follow(self, logind: Logind) -> None:
        """Handle signals until the connection is lost. Raises `Unavailable`."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(logind.fileno(), readable.set)
        try:
            while True:
                for begins in logind.signals():
                    await self._handle(logind, begins)
                readable.clear()
                await readable.wait()
        finally:
            loop.remove_reader(logind.fileno())

    async def _handle(self, logind: Logind, begins: bool) -> None:
        what = "event" if begins else "cancellation"
        self._recorder.node(NORMAL, "Shutdown", f"Shutdown manager detected shutdown {what}")
        changed, self.shutting_down = self.shutting_down is not begins, begins
        if changed:
            self._changed()
        if begins:
            # logind repeats the signal if a shutdown is requested twice.
            if self._shutdown is None or self._shutdown.done():
                self._shutdown = self._ending.start(self._shut_down(), "node")
            return
        if self._shutdown is not None:
            self._shutdown.cancel()
            await asyncio.wait({self._shutdown})
        # A cancelled shutdown has used the lock up: it is only good for one.
        lock = await asyncio.to_thread(logind.inhibit)
        self._release()
        self._lock = lock

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):
                os.close(lock)

    # Pods

    async def _shut_down(self) -> None:
        began = self._now()
        self._keep(ShutdownTimes(began))
        self._show(ShutdownTimes(began))
        try:
            for group in by_priority(self._periods, self._active_pods()):
                await self._end_group(group)
        finally:
            times = ShutdownTimes(began, self._now())
            self._keep(times)
            self._show(times)
            self._release()
        log.info("pods have ended; the machine may go down")

    async def _end_group(self, group: Group) -> None:
        """End the pods of a group; return when they have ended and unmounted their volumes, or when their
        time is over.
        """
        log.info(
            "ending %d pods of priority %d and above within %d s",
            len(group.pods),
            group.period.priority,
            group.period.seconds,
        )
        ending = {
            self._ending.start(self._end(pod, grace_seconds(pod, group.period)), pod.full_name)
            for pod in group.pods
        }
        _, late = await asyncio.wait(ending, timeout=group.period.seconds)
        if late:
            log.warning("%d pods did not end within %d s", len(late), group.period.seconds)

    async def _end(self, pod: Pod, grace: int) -> None:
        end = PodEnd(
            "Terminated",
            ENDED,
            grace_period_seconds=grace,
            condition_reason=DISRUPTION,
            until_restart=True,
        )
        try:
            await self._kill_pod(pod, end)
        except KubengineError as error:
            log.warning("pod %s could not be ended before the shutdown: %s", pod.full_name, error)
        await self._volumes_left(pod)

    # Times

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat()

    def _keep(self, times: ShutdownTimes) -> None:
        try:
            write_times(self._state_file, times)
        except Refused as error:
            log.warning("cannot record the times of the shutdown: %s", error)

    def _show_last(self) -> None:
        try:
            self._show(read_times(self._state_file))
        except (OSError, ValueError) as error:
            log.warning("%s: %s; the times of the last shutdown are unknown", self._state_file, error)

    def _show(self, times: ShutdownTimes) -> None:
        self._metrics.show(seconds(times.start_time), seconds(times.end_time))


def _dismiss(connecting: asyncio.Future[tuple[Logind, int]]) -> None:
    """Close a connection that was opened after `stop`."""
    if not connecting.cancelled() and connecting.exception() is None:
        logind, lock = connecting.result()
        logind.close()
        os.close(lock)


class ShutdownTimes(msgspec.Struct, frozen=True, rename="camel"):
    """Hold times as RFC 3339; `NEVER` is Go's zero time."""

    start_time: str = NEVER
    end_time: str = NEVER


def seconds(time: str) -> int:
    """Return Unix seconds, 0 for `NEVER`. Raises ValueError."""
    return 0 if time == NEVER else int(datetime.fromisoformat(time).timestamp())


def read_times(path: Path) -> ShutdownTimes:
    """Read the times that the last agent or kubelet wrote; `NEVER` without a file. Raises OSError or
    ValueError.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ShutdownTimes()
    return msgspec.json.decode(data, type=ShutdownTimes)


def write_times(path: Path, times: ShutdownTimes) -> None:
    """Write the times. Raises `Refused` naming the file."""
    replace_file(path, encode_json(times), mode=0o644)
