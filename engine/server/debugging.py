"""Answers for a kubelet's paths where its debugging handlers are missing. Pure.

They are missing on the read-only port, and on the node's own port with `enableDebuggingHandlers: false`.
Source: kubelet v1.36, `InstallDebuggingDisabledHandlers`, and the redirects of Go's `ServeMux`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from engine.server.http.exchange import TEXT, Request, Response, plain

DISABLED: Final = "Debug endpoints are disabled.\n"
_NO_PAGE: Final = "404 page not found\n"
_DISABLED_TREES: Final = (
    *("/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/"),
    *("/debug/pprof/", "/logs/"),
)
_MISSING: Final = ("configz", "checkpoint", "flagz", "statusz", "debug")


def without_debugging(request: Request) -> Response | None:
    """Return the answer for a path of the debugging handlers; None for any other path."""
    path = request.path
    if path.startswith(_DISABLED_TREES):
        return plain(405, DISABLED)
    # `ServeMux` redirects a path to the tree that is registered with a slash.
    if f"{path}/" in _DISABLED_TREES:
        return Response(307, TEXT, b"", headers=(("location", quote(f"{path}/")),))
    if path[1:].partition("/")[0] in _MISSING:
        return plain(404, _NO_PAGE)
    return None
