"""The reader of HTTP responses: the compiled form, or its twin when asked."""

from typing import TYPE_CHECKING

from engine._fast._select import PURE

if PURE and not TYPE_CHECKING:
    from engine._fast._http_response_py import HttpResponse, resolve
else:
    from engine._fast._http_response_c import HttpResponse, resolve

__all__ = ["HttpResponse", "resolve"]
