"""Compare restarts: whether a container that ended runs again, and how long its restart waits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.pod import Container, Pod
from engine.api.status import ContainerStatus
from engine.containers.backoff import Backoff, longest_restart_delay, restart_backoff
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
"""Seconds; a kubelet that missed the end of a container syncs its pod once a minute."""
RESTARTS, STAYS = "restarts", "stays ended"
EARLY: Final = 1.0
"""Seconds by which a container may seem to start too early, as its times are rounded on the way."""
_DELAY = re.compile(r"^back-off (?:(\d{1,9})m)?(?:(\d{1,9})s)? restarting failed container", re.ASCII)
_MOST_FAILURES: Final = 12
"""Failures after which every configurable longest delay is reached."""


@dataclass(slots=True)
class _Followed:
    """Follow the restarts of a container: the ids counted, and whether the delay is known.

    It is known from the first start, or once a message of the kubelet has told it.
    """

    last_id: str = ""
    known: bool = False


class RestartComparer:
    """Follow the ends of containers; remembers the delays as the kubelet does, per container."""

    def __init__(self) -> None:
        self._backoff: Backoff | None = None
        self._kept_by = 0.0, 0.0
        self._followed: dict[tuple[str, str], _Followed] = {}

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods that the kubelet admitted."""
        backoff = self._delays(seen.config, seen.series.get(STARTED, 0.0))
        present: set[tuple[str, str]] = set()
        for pod in seen.pods.values():
            record = seen.record(pod.uid)
            if is_refused(pod) or record.empty or pod.metadata.deletion_timestamp is not None:
                continue
            shown = statuses(pod.status)
            actions: PodActions | None = None
            for container in pod.all_containers:
                newest, told = record.container(container.name), shown.get(container.name)
                if newest is None or told is None:
                    continue
                key = pod.uid, container.name
                present.add(key)
                followed = self._followed.setdefault(key, _Followed(known=newest.attempt == 0))
                yield from self._follow(pod, container, followed, record, newest, backoff)
                if newest.state == EXITED:
                    actions = actions or _actions(pod, record, shown)
                    yield from self._ended(pod, container, newest, told, actions)
                    yield from self._delayed(pod, key, newest, told, followed, backoff)
                else:
                    yield from _restarted(pod, container, record, newest)
        for key in self._followed.keys() - present:
            del self._followed[key]
            backoff.forget("/".join(key))

    def _delays(self, config: KubeletConfiguration, started: float) -> Backoff:
        """Return the delays of this kubelet: one that starts has forgotten those of the one before."""
        kept_by = longest_restart_delay(config), started or self._kept_by[1]
        if self._backoff is None or kept_by != self._kept_by:
            self._backoff, self._kept_by = restart_backoff(config), kept_by
            self._followed.clear()
        return self._backoff

    def _follow(
        self, pod: Pod, container: Container, followed: _Followed, record: PodRecord, newest: ContainerRecord,
        backoff: Backoff,
    ) -> Iterator[Finding]:  # fmt: skip
        """Count the restart that made the newest container, and judge how long it waited."""
        if followed.last_id and followed.last_id != newest.id:
            previous = record.previous(newest.name)
            if previous is not None and previous.started_at and previous.attempt == newest.attempt - 1:
                key = f"{pod.uid}/{newest.name}"
                ended_at = previous.finished_at
                if followed.known and previous.state == EXITED and previous.hash == newest.hash:
                    delay = backoff.remaining(key, ended_at, ended_at)
                    yield _waited(pod, container, previous, newest, delay, self._kept_by[1])
                backoff.attempt(key, ended_at, newest.created_at)
            else:
                # Restarts between two observations were not seen, or one that did not come to a start.
                followed.known = False
        followed.last_id = newest.id

    def _ended(
        self, pod: Pod, container: Container, newest: ContainerRecord, told: ContainerStatus,
        actions: PodActions,
    ) -> Iterator[Finding]:  # fmt: skip
        again = any(one.name == container.name for one in actions.start) or bool(actions.reset)
        waits_for_others = (
            not again and pod.status.phase not in ENDED and should_restart(pod, container, newest.exit_code)
        )
        if waits_for_others:
            return
        theirs = RESTARTS if told.state.waiting is not None and told.restart_count else STAYS
        if told.state.waiting is not None and told.state.waiting.reason == "CrashLoopBackOff":
            theirs = RESTARTS
        yield Comparison(
            "restart", _subject(pod, newest), RESTARTS if again else STAYS, theirs,
            _by_policy(pod, container, newest), _of_kubelet(told), SETTLE,
        )  # fmt: skip

    def _delayed(
        self, pod: Pod, key: tuple[str, str], newest: ContainerRecord, told: ContainerStatus,
        followed: _Followed, backoff: Backoff,
    ) -> Iterator[Finding]:  # fmt: skip
        waiting = told.state.waiting
        delay = kubelets_delay(waiting.message) if waiting is not None else None
        if waiting is None or delay is None:
            return
        name = "/".join(key)
        if not followed.known:
            followed.known = True
            _teach(backoff, name, newest, delay)
            yield NotJudged("back-off", _subject(pod, newest), "earlier restarts were not seen")
            return
        yield Comparison(
            "back-off", _subject(pod, newest), f"{backoff.delay(name):g} s", f"{delay:g} s",
            f"attempt {newest.attempt} ended with {newest.exit_code}", waiting.message, SETTLE,
        )  # fmt: skip


def _waited(
    pod: Pod, container: Container, ended: ContainerRecord, newest: ContainerRecord, delay: float,
    kubelet_began: float,
) -> Finding:  # fmt: skip
    """Compare the time between an end and a start with the delay: a kubelet starts nothing earlier, and later
    only as much as it takes to notice, once it has started itself.
    """
    waited = newest.created_at - ended.finished_at
    if waited < delay and (container.liveness_probe is not None or container.startup_probe is not None):
        # A kubelet that ends a container for a probe starts the next one at once.
        return NotJudged("back-off", _subject(pod, ended), "a probe may have ended it, so that nothing waits")
    late = newest.created_at - max(ended.finished_at, kubelet_began) - delay
    in_time = delay - EARLY <= waited and late <= SETTLE
    return Comparison(
        "back-off", _subject(pod, ended), f"{delay:g} s", f"{delay if in_time else round(waited):g} s",
        f"attempt {ended.attempt} ended with {ended.exit_code}",
        f"attempt {newest.attempt} was made {waited:.1f} s after the end",
    )  # fmt: skip


def kubelets_delay(message: str) -> float | None:
    """Return the seconds in a message about a restart that waits, None for another message."""
    match = _DELAY.match(message)
    return 60.0 * int(match[1] or 0) + int(match[2] or 0) if match is not None else None


def delay_at_most(config: KubeletConfiguration, delay: float) -> float:
    """Return a delay under another configuration: its first one and its longest one bound it."""
    backoff = restart_backoff(config)
    for _ in range(_MOST_FAILURES):
        backoff.attempt("", 0.0, 0.0)
        if backoff.delay("") >= delay:
            break
    return backoff.delay("")


def _teach(backoff: Backoff, name: str, newest: ContainerRecord, delay: float) -> None:
    """Bring a container's delay to the one that the kubelet told."""
    backoff.forget(name)
    for _ in range(_MOST_FAILURES):
        if backoff.delay(name) >= delay:
            return
        backoff.attempt(name, newest.created_at, newest.created_at)


def _restarted(
    pod: Pod, container: Container, record: PodRecord, newest: ContainerRecord
) -> Iterator[Finding]:
    """Judge the end that came before a running container, which the kubelet has started after it."""
    previous = record.previous(container.name)
    # A new sandbox starts containers for a reason of its own, not by their restart policy.
    if previous is None or previous.state != EXITED or previous.sandbox_id != newest.sandbox_id:
        return
    if previous.hash != newest.hash:
        return  # another specification, as after a resize that restarts
    if not previous.started_at:
        return  # made and never started: a kubelet makes another one, whatever the policy is
    ours = RESTARTS if should_restart(pod, container, previous.exit_code) else STAYS
    yield Comparison(
        "restart", _subject(pod, previous), ours, RESTARTS, _by_policy(pod, container, previous),
        f"attempt {newest.attempt} runs",
    )  # fmt: skip


def _actions(pod: Pod, record: PodRecord, shown: Mapping[str, ContainerStatus]) -> PodActions:
    def health(running: ContainerRecord) -> ContainerHealth:
        told = shown.get(running.name)
        return ContainerHealth(started=bool(told is None or told.started))

    return compute_pod_actions(pod, record, health=health, spec_hash=container_hash)


def _subject(pod: Pod, ended: ContainerRecord) -> str:
    return f"{pod.full_name}/{ended.name} attempt {ended.attempt}"


def _by_policy(pod: Pod, container: Container, ended: ContainerRecord) -> str:
    return f"exit code {ended.exit_code}, restart policy {policy_of(pod, container)}"


def _of_kubelet(told: ContainerStatus) -> str:
    if told.state.waiting is not None:
        return f"{told.state.waiting.reason}: {told.state.waiting.message}".rstrip(": ")
    return "shown as terminated"
