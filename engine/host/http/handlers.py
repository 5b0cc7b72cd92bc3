"""Handlers of `urllib.request` whose answers have one deadline."""

from __future__ import annotations

from http.client import HTTPResponse
from ssl import SSLContext
from urllib.request import BaseHandler, HTTPHandler, HTTPSHandler, Request

from engine.host.http.connections import DeadlineConnection, DeadlineTlsConnection


class _Handler(HTTPHandler):
    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(DeadlineConnection, request)


class _TlsHandler(HTTPSHandler):
    def __init__(self, context: SSLContext | None) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(DeadlineTlsConnection, request, context=self._tls)


def deadline_handlers(context: SSLContext | None = None) -> tuple[BaseHandler, BaseHandler]:
    """Return handlers for `urllib.request.build_opener`; each redirect starts a deadline of its own."""
    return _Handler(), _TlsHandler(context)
