"""Finds the bearer token among a WebSocket's subprotocols: `base64url.bearer.authorization.k8s.io.TOKEN`.

The rule is that of the API server and the kubelet, v1.36 (`pkg/authentication/request/websocket`).
"""

from __future__ import annotations

import base64
import binascii

from engine.server.http.exchange import Headers, Request

SUBPROTOCOLS = "sec-websocket-protocol"
PREFIX = "base64url.bearer.authorization.k8s.io."


def websocket_token(request: Request) -> str | None:
    """Return the token, "" if there is none, and None if it is malformed.

    Malformed are two tokens, bad base64url, and a token without another subprotocol to agree on.
    """
    if request.upgrade != "websocket":
        return ""
    named = subprotocols(request)
    tokens = [name.removeprefix(PREFIX) for name in named if name.startswith(PREFIX)]
    if not tokens:
        return ""
    if len(tokens) > 1:
        return None
    token = _decoded(tokens[0])
    return None if token and len(named) == 1 else token


def subprotocols(request: Request) -> list[str]:
    """Return the subprotocols that a WebSocket's client offers, in its order of preference."""
    return _subprotocols(request.header(SUBPROTOCOLS))


def without_tokens(headers: Headers) -> Headers:
    """Return the headers without the token."""
    kept = []
    for name, value in headers:
        if name == SUBPROTOCOLS:
            value = ", ".join(each for each in _subprotocols(value) if not each.startswith(PREFIX))
            if not value:
                continue
        kept.append((name, value))
    return tuple(kept)


def _subprotocols(value: str) -> list[str]:
    return [name for name in (part.strip() for part in value.split(",")) if name]


def _decoded(text: str) -> str | None:
    """Decode unpadded base64url of UTF-8."""
    if not text.isascii() or not set(text) <= _ALPHABET:
        return None
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
