"""Renews a certificate before it expires, or when it lacks a name (client-go v1.36).

Renewal happens at a random point between 70 and 90 % of the lifetime. Failures are retried after 2 s,
doubling to 32 s. The same pause follows a renewal, because the new certificate may be due at once: the
signer may have left out a name, or a clock may be wrong.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError, Refused
from engine.cluster.certificates.metrics import CertificateMetrics
from engine.cluster.certificates.openssl import CertificateFacts, certificate_facts, fits, shortest
from engine.cluster.certificates.request import Wanted
from engine.cluster.certificates.store import CertificateStore, read_certificates

RETRIES: Final = RetryDelays(2.0, 32.0)
CHECK_SECONDS: Final = 3600.0
"""Seconds between checks of a distant deadline, since clocks are changed and machines are suspended."""

log = logging.getLogger("kubengine.cluster")

Sign = Callable[[Wanted], Awaitable[tuple[bytes, bytes]]]


def renew_at(facts: CertificateFacts, chance: float) -> float:
    """Return the Unix time for renewal; `chance` is in [0, 1)."""
    return facts.not_before + (facts.not_after - facts.not_before) * (0.7 + 0.2 * chance)


def misses(facts: CertificateFacts, wanted: Wanted) -> bool:
    """Tell whether a wanted name is missing from the certificate."""
    return not {shortest(name) for name in wanted.names} <= facts.names


def pauses(chance: random.Random) -> Iterator[float]:
    """Yield the seconds to wait after each consecutive failure."""
    for pause in RETRIES:
        yield pause * chance.uniform(1.0, 1.1)


class RotationTiming(msgspec.Struct, frozen=True):
    """Hold the clock (Unix seconds), the random numbers for jitter, and the sleep function (seconds)."""

    clock: Callable[[], float]
    chance: random.Random
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep


class CertificateRotation:
    """Renew the current certificate of `store` before it expires.

    `wanted()` returns the certificate to request, or None while it is not known. `sign` returns a signed
    certificate and its key. `changed` is called after each renewal. With `at_once` the first renewal is due
    now.
    """

    def __init__(
        self,
        store: CertificateStore,
        *,
        wanted: Callable[[], Wanted | None],
        sign: Sign,
        metrics: CertificateMetrics,
        changed: Callable[[], None] | None = None,
        timing: RotationTiming,
        at_once: bool = False,
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._sign = sign
        self._metrics = metrics
        self._changed = changed
        self._clock, self._chance, self._pause = timing.clock, timing.chance, timing.pause
        self._at_once = at_once
        self._for: Wanted | None = None
        self._other_wanted = asyncio.Event()

    def check(self) -> None:
        """Check whether a different certificate is wanted now, and if so renew at once."""
        if self._wanted() != self._for:
            self._other_wanted.set()

    async def run(self) -> None:
        """Renew certificates until cancelled."""
        while True:
            # Cleared before `wanted` is read, so that a later `check` ends the wait.
            self._other_wanted.clear()
            self._for = wanted = self._wanted()
            due = await self._due(wanted) if wanted is not None else self._clock() + CHECK_SECONDS
            if await self._reached(due):
                await self._renew_until_it_works()
                await self._pause(RETRIES.most)

    async def _reached(self, due: float) -> bool:
        """Wait until the clock reads `due`; return False if another certificate is wanted before."""
        while (left := due - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, CHECK_SECONDS)):
                    await self._other_wanted.wait()
                    return False
        return True

    async def _due(self, wanted: Wanted) -> float:
        """Return the Unix time at which to renew the certificate; -inf if there is no valid one."""
        path = self._store.current()
        if path is None:
            return float("-inf")
        try:
            facts = await certificate_facts(read_certificates(path))
        except KubengineError as error:
            log.warning("requesting the certificate again: %s", error)
            return float("-inf")
        self._metrics.ends = facts.not_after
        if self._at_once or misses(facts, wanted):
            return float("-inf")
        return renew_at(facts, self._chance.random())

    async def _renew_until_it_works(self) -> None:
        after_failure = pauses(self._chance)
        while (wanted := self._wanted()) is not None:
            try:
                await self._renew(wanted)
            except KubengineError as error:
                log.warning("%s: no new certificate: %s", self._store.path, error)
                self._metrics.failed()
            else:
                return
            await self._pause(next(after_failure))

    async def _renew(self, wanted: Wanted) -> None:
        certificate, key = await self._sign(wanted)
        self._at_once = False
        self._metrics.ends = await store_signed(self._store, certificate, key, self._clock())
        if self._changed is not None:
            self._changed()


async def store_signed(store: CertificateStore, certificate: bytes, key: bytes, now: float) -> float:
    """Store a signed certificate; return its expiry in Unix seconds.

    Raises Refused if it belongs to another key or has expired.
    """
    if not await fits(certificate, key):
        raise Refused("the signed certificate is for another key", subject=str(store.path))
    ends = (await certificate_facts(certificate)).not_after
    if ends <= now:
        raise Refused("the signed certificate has already expired", subject=str(store.path))
    store.update(certificate, key, now)
    log.info("%s: a new certificate", store.path)
    return ends
