"""Read HTTP responses: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE
from engine._fast.probing._response_py import BROKEN, DONE, FOREIGN, MALFORMED, MORE, SAME_HOST

if PURE:
    from engine._fast.probing._response_py import HttpResponse, resolve
else:
    from engine._fast.probing._response_c import HttpResponse, resolve  # type: ignore[assignment]

__all__ = [
    "BROKEN",
    "DONE",
    "FOREIGN",
    "MALFORMED",
    "MORE",
    "SAME_HOST",
    "HttpResponse",
    "resolve",
]
