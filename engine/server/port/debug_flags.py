"""Answers `/debug/flags/v`: the verbosity of the log of a running agent, in the kubelet's words."""

from __future__ import annotations

import logging
from typing import Final

from engine.api.config import DEBUG_VERBOSITY
from engine.server.http.exchange import Request, Response, plain

DISABLED: Final = "flags endpoint is disabled.\n"
MOST_VERBOSE: Final = 2**31 - 1
_NAME: Final = "klog.logging.verbosity"


def debug_flags(request: Request, names: list[str]) -> Response:
    """Set the verbosity to the number in the body of a PUT."""
    if names != ["v"]:
        return plain(404, "404: Page Not Found")
    if request.method != "PUT":
        return plain(406, "unsupported http method")
    text = request.body.decode(errors="replace").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MOST_VERBOSE):
        return plain(
            400, f"error: failed to set {_NAME} {text[:20]}: expected a number from 0 to {MOST_VERBOSE}"
        )
    logging.getLogger("kubengine").setLevel(logging.DEBUG if int(text) >= DEBUG_VERBOSITY else logging.INFO)
    return plain(200, f"successfully set {_NAME} to {text}")
