"""Authorizes requests by SubjectAccessReview of the API server, or allows everything."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from engine.api.config import KubeletAuthorization
from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.server.interfaces.node import ReviewServer
from engine.server.port.access import Needs, RequestUser
from engine.server.port.reviews import AccessReviews

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ALWAYS_ALLOW, WEBHOOK = "AlwaysAllow", "Webhook"


class NoReview(Exception):
    """Raised if no review tells whether a user may access `subresource`."""

    def __init__(self, subresource: str) -> None:
        super().__init__(subresource)
        self.subresource = subresource


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Authorization:
    """Authorize requests. Raise InvalidInput for an unknown mode, and if there is no API server to ask."""

    def __init__(
        self,
        config: KubeletAuthorization,
        node_name: str,
        api: ReviewServer | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if config.mode not in (ALWAYS_ALLOW, WEBHOOK):
            text = f"expected {WEBHOOK} or {ALWAYS_ALLOW}, got {config.mode!r}"
            raise InvalidInput(text, subject="authorization.mode")
        if config.mode == WEBHOOK and api is None:
            text = "no API server is configured to review access"
            raise InvalidInput(text, subject="authorization.mode")
        self._api = api if config.mode == WEBHOOK else None
        self._node_name = node_name
        allowed = float(config.webhook.cache_authorized_ttl)
        denied = float(config.webhook.cache_unauthorized_ttl)
        # Two lifetimes, as the kubelet has them: a role that was granted takes effect sooner than one that
        # was removed.
        self._reviews: AccessReviews[bool] = AccessReviews(
            lifetime=lambda may: allowed if may else denied, monotonic=monotonic
        )

    async def allows(self, user: RequestUser, needed: Needs) -> bool:
        """Tell whether the user may access one of the subresources, asked in their order. Raises NoReview."""
        if self._api is None:
            return True
        for subresource in needed.subresources:
            if await self._may(self._api, user, needed.verb, subresource):
                return True
        return False

    def stop(self) -> None:
        self._reviews.stop()

    async def _may(self, api: ReviewServer, user: RequestUser, verb: str, subresource: str) -> bool:
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": user.extra,
            "resourceAttributes": {
                "verb": verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": subresource,
                "name": self._node_name,
            },
        }
        question = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": spec,
        }

        async def ask() -> bool:
            return (await api.create(ACCESS_REVIEWS, question, _AccessReview)).status.allowed

        try:
            # The spec is the whole question, and so the key: users with the same name may differ in groups.
            return await self._reviews.get(encode_json(spec), ask)
        except Exception as error:
            raise NoReview(subresource) from error
