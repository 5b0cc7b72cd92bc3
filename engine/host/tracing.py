"""Records the agent's work as spans of traces, if the configuration asks for it.

This module has the interface, and an implementation that records nothing and loads nothing;
`engine.host.otlp` sends spans by OTLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

Fields = list[tuple[bytes, bytes]]
"""Metadata of a call, which has the trace's context in it (W3C `traceparent`)."""


class Tracing(Protocol):
    """Record spans. The parent of a span is the one that is open in the same task, or in the task's
    creator.
    """

    def span(self, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
        """Record the block as a span; an exception that leaves it is recorded as an error."""

    def call(self, service: str, method: str) -> AbstractContextManager[Fields | None]:
        """Record a gRPC call, and provide the metadata to send with it, if there is any."""

    async def stop(self) -> None:
        """Send the remaining spans, within a few seconds."""


class NoTracing:
    """Record nothing."""

    def span(self, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
        return _NO_SPAN

    def call(self, service: str, method: str) -> AbstractContextManager[Fields | None]:
        return _NO_CALL

    async def stop(self) -> None:
        return


_NO_SPAN: Final[AbstractContextManager[object]] = nullcontext()
_NO_CALL: Final[AbstractContextManager[Fields | None]] = nullcontext()
NO_TRACING: Final = NoTracing()
