"""Compare restarts: does a container that ended run again, and how long does the kubelet wait before?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.pod import Container, Pod
from engine.api.status import ContainerStatus
from engine.containers.backoff import Backoff, restart_backoff, restart_delays
from engine.cri.records import EXITED, ContainerRecord, PodRecord
from engine.node.spec.cri_config import container_hash
from engine.node.sync.actions import (
    ContainerHealth,
    PodActions,
    compute_pod_actions,
    policy_of,
    should_restart,
)
from engine.shadow.kinds.admission import is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import ENDED, STARTED, Observation
from engine.shadow.kinds.status import statuses

SETTLE: Final = 130.0
"""Seconds. A kubelet that missed the end of a container syncs its pod once a minute."""
RESTARTS, STAYS = "restarts", "stays ended"
EARLY: Final = 1.0
"""Seconds by which a container may seem to start too early, because its times are rounded."""
_DELAY = re.compile(r"^back-off (?:(\d{1,9})m)?(?:(\d{1,9})s)? restarting failed container", re.ASCII)
_MAX_FAILURES: Final = 12
"""Failures after which the maximum delay is reached, whatever it is configured to."""


@dataclass(slots=True)
class _TrackedContainer:
    """Track the restarts of a container: the id of the newest incarnation, and whether the delay is known.

    It is known if the container was observed from its first start, or after a message of the kubelet
    contained it.
    """

    last_id: str = ""
    delay_known: bool = False


class RestartComparer:
    """Track the ends of containers, and the restart delay of each as the kubelet does."""

    def __init__(self) -> None:
        self._backoff: Backoff | None = None
        self._backoff_key = (0.0, 0.0), 0.0
        """The maximum delay, and the start time of the kubelet, for which the delays are valid."""
        self._tracked: dict[tuple[str, str], _TrackedContainer] = {}

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods that the kubelet admitted."""
        backoff = self._current_backoff(seen.config, seen.series.get(STARTED, 0.0))
        present: set[tuple[str, str]] = set()
        for pod in seen.pods.values():
            record = seen.record(pod.uid)
            if is_refused(pod) or record.empty or pod.metadata.deletion_timestamp is not None:
                continue
            shown = statuses(pod.status)
            actions: PodActions | None = None
            for container in pod.all_containers:
                newest, status = record.container(container.name), shown.get(container.name)
                if newest is None or status is None:
                    continue
                key = pod.uid, container.name
                present.add(key)
                tracked = self._tracked.setdefault(key, _TrackedContainer(delay_known=newest.attempt == 0))
                yield from self._compare_wait(pod, container, tracked, record, newest, backoff)
                if newest.state == EXITED:
                    actions = actions or _actions(pod, record, shown)
                    yield from _compare_ended(pod, container, newest, status, actions)
                    yield from _compare_delay(pod, key, newest, status, tracked, backoff)
                else:
                    yield from _compare_restarted(pod, container, record, newest)
        for key in self._tracked.keys() - present:
            del self._tracked[key]
            backoff.reset("/".join(key))

    def _current_backoff(self, config: KubeletConfiguration, started: float) -> Backoff:
        """Return the delays of this kubelet. A kubelet that restarts has lost all delays."""
        key = restart_delays(config), started or self._backoff_key[1]
        if self._backoff is None or key != self._backoff_key:
            self._backoff, self._backoff_key = restart_backoff(config), key
            self._tracked.clear()
        return self._backoff

    def _compare_wait(
        self, pod: Pod, container: Container, tracked: _TrackedContainer, record: PodRecord,
        newest: ContainerRecord, backoff: Backoff,
    ) -> Iterator[Finding]:  # fmt: skip
        """Count the restart that created the newest container, and compare how long the kubelet waited."""
        if tracked.last_id and tracked.last_id != newest.id:
            previous = record.previous(newest.name)
            if previous is not None and previous.started_at and previous.attempt == newest.attempt - 1:
                key = f"{pod.uid}/{newest.name}"
                ended_at = previous.finished_at
                if tracked.delay_known and previous.state == EXITED and previous.hash == newest.hash:
                    delay = backoff.remaining(key, ended_at, ended_at)
                    yield _wait_finding(pod, container, previous, newest, delay, self._backoff_key[1])
                if previous.hash != newest.hash:
                    # The kubelet's key contains the image: another one begins with the initial delay.
                    backoff.reset(key)
                backoff.attempt(key, ended_at, newest.created_at)
            else:
                # There were several restarts between two observations, or a container that never started.
                tracked.delay_known = False
        tracked.last_id = newest.id


def _compare_ended(
    pod: Pod, container: Container, newest: ContainerRecord, status: ContainerStatus, actions: PodActions
) -> Iterator[Finding]:
    """Yield a comparison of whether a container that has ended restarts."""
    again = any(one.name == container.name for one in actions.start) or bool(actions.reset)
    waits_for_others = (
        not again and pod.status.phase not in ENDED and should_restart(pod, container, newest.exit_code)
    )
    if waits_for_others:
        return
    waiting = status.state.waiting
    restarts = waiting is not None and (bool(status.restart_count) or waiting.reason == "CrashLoopBackOff")
    yield Comparison(
        "restart", _subject(pod, newest), RESTARTS if again else STAYS, RESTARTS if restarts else STAYS,
        _by_policy(pod, container, newest), _status_text(status), SETTLE,
    )  # fmt: skip


def _compare_delay(
    pod: Pod, key: tuple[str, str], newest: ContainerRecord, status: ContainerStatus,
    tracked: _TrackedContainer, backoff: Backoff,
) -> Iterator[Finding]:  # fmt: skip
    """Yield a comparison of the delay in the message of a waiting container. An unknown delay is set from
    it.
    """
    waiting = status.state.waiting
    delay = delay_in_message(waiting.message) if waiting is not None else None
    if waiting is None or delay is None:
        return
    name = "/".join(key)
    if not tracked.delay_known:
        tracked.delay_known = True
        _set_delay(backoff, name, newest, delay)
        yield NotJudged("back-off", _subject(pod, newest), "earlier restarts were not seen")
        return
    yield Comparison(
        "back-off", _subject(pod, newest), f"{backoff.delay(name):g} s", f"{delay:g} s",
        f"attempt {newest.attempt} ended with {newest.exit_code}", waiting.message, SETTLE,
    )  # fmt: skip


def _wait_finding(
    pod: Pod, container: Container, ended: ContainerRecord, newest: ContainerRecord, delay: float,
    kubelet_began: float,
) -> Finding:  # fmt: skip
    """Compare the time between an end and a start with the delay. A kubelet starts a container neither
    earlier than that, nor much later than it notices; both only from its own start (`kubelet_began`) on.
    """
    waited = newest.created_at - ended.finished_at
    if waited < delay and (container.liveness_probe is not None or container.startup_probe is not None):
        # A container that a failed probe ended starts again without a delay.
        return NotJudged("back-off", _subject(pod, ended), "a probe may have ended it, so that nothing waits")
    late = newest.created_at - max(ended.finished_at, kubelet_began) - delay
    in_time = delay - EARLY <= waited and late <= SETTLE
    return Comparison(
        "back-off", _subject(pod, ended), f"{delay:g} s", f"{delay if in_time else round(waited):g} s",
        f"attempt {ended.attempt} ended with {ended.exit_code}",
        f"attempt {newest.attempt} was made {waited:.1f} s after the end",
    )  # fmt: skip


def delay_in_message(message: str) -> float | None:
    """Return the restart delay in a message of the kubelet, in seconds; None for another message."""
    match = _DELAY.match(message)
    return 60.0 * int(match[1] or 0) + int(match[2] or 0) if match is not None else None


def capped_delay(config: KubeletConfiguration, delay: float) -> float:
    """Return the delay under another configuration at which the live one has `delay`, both in seconds. Its
    initial and its maximum delay limit it.
    """
    backoff = restart_backoff(config)
    for _ in range(_MAX_FAILURES):
        backoff.attempt("", 0.0, 0.0)
        if backoff.delay("") >= delay:
            break
    return backoff.delay("")


def _set_delay(backoff: Backoff, name: str, newest: ContainerRecord, delay: float) -> None:
    """Set the delay of a container to `delay` seconds, by as many failures as lead to it."""
    backoff.reset(name)
    for _ in range(_MAX_FAILURES):
        if backoff.delay(name) >= delay:
            return
        backoff.attempt(name, newest.created_at, newest.created_at)


def _compare_restarted(
    pod: Pod, container: Container, record: PodRecord, newest: ContainerRecord
) -> Iterator[Finding]:
    """Yield a comparison for the end of the container before the running one, which the kubelet restarted."""
    previous = record.previous(container.name)
    # In a new sandbox, all containers start, whatever their restart policy is.
    if previous is None or previous.state != EXITED or previous.sandbox_id != newest.sandbox_id:
        return
    # Another specification, as after a resize that restarts, or a container that was created but never
    # started: a kubelet replaces both, whatever the restart policy is.
    if previous.hash != newest.hash or not previous.started_at:
        return
    ours = RESTARTS if should_restart(pod, container, previous.exit_code) else STAYS
    yield Comparison(
        "restart", _subject(pod, previous), ours, RESTARTS, _by_policy(pod, container, previous),
        f"attempt {newest.attempt} runs",
    )  # fmt: skip


def _actions(pod: Pod, record: PodRecord, shown: Mapping[str, ContainerStatus]) -> PodActions:
    """Return the actions of our agent for a pod, with the results of startup probes from its status."""

    def health(running: ContainerRecord) -> ContainerHealth:
        status = shown.get(running.name)
        return ContainerHealth(started=bool(status is None or status.started))

    return compute_pod_actions(pod, record, health=health, spec_hash=container_hash)


def _subject(pod: Pod, ended: ContainerRecord) -> str:
    return f"{pod.full_name}/{ended.name} attempt {ended.attempt}"


def _by_policy(pod: Pod, container: Container, ended: ContainerRecord) -> str:
    return f"exit code {ended.exit_code}, restart policy {policy_of(pod, container)}"


def _status_text(status: ContainerStatus) -> str:
    if status.state.waiting is not None:
        return f"{status.state.waiting.reason}: {status.state.waiting.message}".rstrip(": ")
    return "shown as terminated"
