"""Tells which permission a request needs, and words refusals. Pure.

The rule is that of kubelet v1.36 (`pkg/kubelet/server/auth.go`).
"""

from __future__ import annotations

import msgspec

_VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# KEP-2862 gave these subresources of their own; `proxy`, which older roles grant, still suffices.
_BESIDE_PROXY = (
    ("/pods", "pods"),
    ("/healthz", "healthz"),
    ("/configz", "configz"),
    ("/runningpods", "pods"),
)
# For these `proxy` does not suffice.
_ALONE = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)


class RequestUser(msgspec.Struct, frozen=True):
    """Hold the user of a request, as an API server's TokenReview describes it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class Needs(msgspec.Struct, frozen=True):
    """Hold a verb on subresources of the node; permission for any of them is enough."""

    verb: str
    subresources: tuple[str, ...]


def needs(method: str, path: str) -> Needs:
    """Return what a request for `path` (without its query) needs, the most specific subresource first."""
    # KEP-2862: a subresource of its own suffices for these paths, and `proxy` still does.
    fine = tuple(name for top, name in _BESIDE_PROXY if _is_below(path, top))[:1]
    rest = next((name for top, name in _ALONE if _is_below(path, top)), "proxy")
    return Needs(_VERBS.get(method, ""), (*fine, rest))


def refusal(user: RequestUser, needed: Needs) -> str:
    """Return the refusal for a user without permission."""
    return (
        f"Forbidden (user={user.name}, verb={needed.verb}, resource=nodes, "
        f"subresource(s)=[{' '.join(needed.subresources)}])\n"
    )


def no_answer(user: RequestUser, needed: Needs, subresource: str) -> str:
    """Return the answer if the authorizer could not be reached."""
    return (
        f"Authorization error (user={user.name}, verb={needed.verb}, resource=nodes, "
        f"subresource={subresource})"
    )


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")
