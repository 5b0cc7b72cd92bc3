"""Describes the calls that our gRPC servers answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message

from engine.transport.grpc_channel import CallFailed

__all__ = ["CallFailed", "Method", "Methods", "StreamMethod"]


class Method(NamedTuple):
    """Describe a unary call: `answer` gets a `request` and raises `CallFailed`."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]]


class StreamMethod(NamedTuple):
    """Describe a call with a stream of responses: `answer` yields them, and raises as that of a `Method`.

    The generator is closed when the call ends, and waits while the caller does not read.
    """

    request: type[Message]
    answer: Callable[[Any], AsyncGenerator[Message, None]]


Methods = Mapping[str, Mapping[str, Method | StreamMethod]]
"""By service, then by name."""
