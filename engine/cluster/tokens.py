"""Requests service account tokens for pods, and caches them in memory while their pod exists.

A token is bound to its pod. It is renewed after 80 % of its lifetime or a day, whichever is first, with
jitter. If a renewal fails, the old token is used until it expires. Source: kubelet v1.36
(`pkg/kubelet/token`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Final

from msgspec.structs import replace

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.objects.cluster_objects import BoundObjectReference, TokenRequest, TokenRequestSpec
from engine.api.pod import Pod
from engine.api.struct import PartlyShown
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.names import object_path

LONGEST_USE: Final = 24 * 3600.0
LEFT_PERCENT: Final = 20
MOST_EARLY: Final = 10.0
RETRY_SECONDS: Final = 60.0
REQUEST_SECONDS: Final = 60.0
"""Deadline of a request for a token: as long as an API server works on a request by default.

With the shorter deadline of heartbeats, a pod never gets its token from a busy server, and each try makes the
server busier. A kubelet has no deadline of its own.
"""
UNKNOWN_POD_WAITS: Final = (0.2, 0.4, 0.8)
"""Seconds before each retry of a request with the status 403: the API server's node authorizer learns from a
watch which pods are bound to the node, and may do so after the node itself.
"""

log = logging.getLogger("kubengine.cluster")


class Token(PartlyShown, frozen=True):
    """Hold a token: `renew_at` and `serves_until` are times of the clock of `Tokens`; `expires_at` is the
    server's, in Unix seconds.
    """

    HIDDEN = frozenset(("text",))
    text: str
    renew_at: float
    serves_until: float
    expires_at: float


def renewal(seconds: int, early: float) -> float:
    """Return the seconds after which to renew a token with a lifetime of `seconds`."""
    return min(LONGEST_USE, seconds - seconds * LEFT_PERCENT // 100) - early


class Tokens:
    """Cache the tokens of pods; `clock` returns seconds, `chance` numbers in [0, 1).

    A token's lifetime is measured from its arrival, so that a pod gets no expired token even if the node's
    wall clock is wrong or is changed.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._clock = clock
        self._chance = chance
        self._of_pods: dict[str, dict[tuple[str, str, int], Token]] = {}

    async def token(self, pod: Pod, audience: str, seconds: int) -> Token:
        """Return the pod's token for an audience, renewed if due. Raises `Refused`."""
        account = pod.spec.service_account_name or "default"
        key = account, audience, seconds
        tokens = self._of_pods.setdefault(pod.uid, {})
        known, now = tokens.get(key), self._clock()
        if known is not None and now < known.renew_at:
            return known
        try:
            fresh = await self._request_with_retries(pod, account, audience, seconds)
        except (InvalidInput, Refused) as error:
            if known is None:
                raise Refused(f"failed to fetch token: {error.message}") from error
            if now >= known.serves_until:
                text = f"token of service account {pod.metadata.namespace}/{account}"
                raise Refused(f"{text} expired and refresh failed: {error.message}") from error
            log.error("pod %s: token not renewed: %s", pod.full_name, error)
            fresh = replace(known, renew_at=now + RETRY_SECONDS)
        if pod.uid in self._of_pods:  # the pod may have been forgotten during the request
            tokens[key] = fresh
        return fresh

    def forget(self, uid: str) -> None:
        """Forget the tokens of a pod."""
        self._of_pods.pop(uid, None)

    async def _request_with_retries(self, pod: Pod, account: str, audience: str, seconds: int) -> Token:
        """Request a token, several times if the API server may not know yet that the pod is bound here."""
        for wait in UNKNOWN_POD_WAITS:
            try:
                return await self._request(pod, account, audience, seconds)
            except ApiError as error:
                if error.code != HTTPStatus.FORBIDDEN:
                    raise
            await asyncio.sleep(wait)
        return await self._request(pod, account, audience, seconds)

    async def _request(self, pod: Pod, account: str, audience: str, seconds: int) -> Token:
        meta = pod.metadata
        wanted = TokenRequest(
            spec=TokenRequestSpec(
                audiences=[audience] if audience else None,
                expiration_seconds=seconds,
                bound_object_ref=BoundObjectReference(kind="Pod", name=meta.name, uid=meta.uid),
            )
        )
        accounts = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts"
        path = f"{object_path(accounts, account)}/token"
        given = await self._client.create(path, wanted, TokenRequest, seconds=REQUEST_SECONDS)
        try:
            expires_at = datetime.fromisoformat(given.status.expiration_timestamp).timestamp()
        except ValueError:
            raise Unavailable("the response holds a token without an expiration time", subject=path) from None
        if not given.status.token:
            raise Unavailable("the response holds no token", subject=path)
        lives = given.spec.expiration_seconds or seconds
        now = self._clock()
        renew_at = now + renewal(lives, MOST_EARLY * self._chance())
        return Token(given.status.token, renew_at, now + lives, expires_at)
