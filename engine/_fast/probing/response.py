"""Read HTTP/1.x responses of probes (Go's net/http as the kubelet uses it), and resolve redirects.

A failure before the headers end is a failed probe (`MALFORMED`). A connection that breaks off inside the body
is an error (`BROKEN`), which the prober retries and then drops. 10 KiB of the body are enough.
"""

from __future__ import annotations

from typing import Final

from engine._fast.probing._response_c import HttpResponse, resolve

__all__ = [
    "BAD",
    "BROKEN",
    "DONE",
    "FOREIGN",
    "MALFORMED",
    "MORE",
    "SAME_HOST",
    "TLS",
    "HttpResponse",
    "resolve",
]

MORE: Final = 0
DONE: Final = 2
MALFORMED: Final = 3
BROKEN: Final = 4
"""What a reader knows so far; 1 is used inside the kernel, for complete headers."""

SAME_HOST, FOREIGN, TLS, BAD = range(4)
"""Where a redirect leads."""
