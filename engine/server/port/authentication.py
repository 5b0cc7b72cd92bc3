"""Authenticates requests by client certificate or bearer token (kubelet v1.36).

A certificate is verified in the handshake; its common name is the user, and its organizations are the
groups. The API server judges tokens by TokenReview; a WebSocket may carry its token as a subprotocol.
Requests without either are anonymous, if that is allowed; a request with a bad token never is.
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import time
from collections.abc import Callable
from typing import cast

import msgspec
from msgspec.structs import replace

from engine.api.config import KubeletAuthentication
from engine.api.errors import InvalidInput
from engine.server.http.exchange import Request
from engine.server.interfaces.node import ReviewServer
from engine.server.port.access import RequestUser
from engine.server.port.reviews import AccessReviews
from engine.server.port.websocket_token import websocket_token

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = RequestUser("system:anonymous", groups=(UNAUTHENTICATED,))
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _UserInfo | None = None


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class Authentication:
    """Authenticate requests. Raise InvalidInput if tokens must be reviewed and there is no API server."""

    def __init__(
        self,
        config: KubeletAuthentication,
        api: ReviewServer | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if config.webhook.enabled and api is None:
            text = "no API server is configured to review tokens"
            raise InvalidInput(text, subject="authentication.webhook.enabled")
        self._api = api if config.webhook.enabled else None
        self._anonymous = config.anonymous.enabled
        self._secret = secrets.token_bytes(32)
        lifetime = float(config.webhook.cache_ttl)
        self._reviews: AccessReviews[RequestUser | None] = AccessReviews(
            lifetime=lambda _: lifetime, monotonic=monotonic
        )

    async def user(self, certificate: ssl.SSLObject | None, request: Request) -> RequestUser | None:
        """Return the user, or None. Raises KubengineError if the API server could not be asked."""
        # The order is the kubelet's (DelegatingAuthenticatorConfig): certificate, bearer token, WebSocket's
        # token.
        named = _of_certificate(certificate) if certificate is not None else None
        if named is not None:
            return named
        if self._api is not None:
            tokens = (_bearer(request.header("authorization")), websocket_token(request))
            given = [token for token in tokens if token != ""]
            for token in given:
                user = None if token is None else await self._of_token(self._api, token)
                if user is not None:
                    return user
            # Whoever gives a token wants to be that user: a refused token does not fall back to anonymous.
            if given:
                return None
        return ANONYMOUS if self._anonymous else None

    def stop(self) -> None:
        self._reviews.stop()

    async def _of_token(self, api: ReviewServer, token: str) -> RequestUser | None:
        """Review a token; the answer is cached under a keyed digest, so that no tokens stay in memory."""
        key = hashlib.blake2b(token.encode(), key=self._secret, digest_size=32).digest()
        return await self._reviews.get(key, lambda: _review(api, token))


async def _review(api: ReviewServer, token: str) -> RequestUser | None:
    question = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "metadata": {},
        "spec": {"token": token},
    }
    status = (await api.create(TOKEN_REVIEWS, question, _TokenReview)).status
    if not status.authenticated or status.user is None:
        return None
    user = status.user
    return _known(RequestUser(user.username, user.uid, tuple(user.groups or ()), user.extra or {}))


def _of_certificate(session: ssl.SSLObject) -> RequestUser | None:
    """Return the user of a certificate. The last of several common names counts, as in Go, and so for the
    signer.
    """
    certificate = session.getpeercert()
    encoded = session.getpeercert(binary_form=True)
    if not certificate or not encoded:
        return None
    names = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    pairs = [pair for name in names for pair in name]
    common = next((value for kind, value in reversed(pairs) if kind == "commonName"), "")
    if not common:
        return None
    groups = tuple(value for kind, value in pairs if kind == "organizationName")
    credential = f"X509SHA256={hashlib.sha256(encoded).hexdigest()}"
    return _known(RequestUser(common, groups=groups, extra={CREDENTIAL_ID: [credential]}))


def _known(user: RequestUser) -> RequestUser:
    """Add the group of authenticated users, unless the certificate names it."""
    if user.name == ANONYMOUS.name or {AUTHENTICATED, UNAUTHENTICATED} & set(user.groups):
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))


def _bearer(authorization: str) -> str:
    # As in Go's bearertoken, anything behind a second blank is ignored.
    scheme, _, rest = authorization.strip().partition(" ")
    return rest.split(" ")[0] if scheme.lower() == "bearer" else ""
