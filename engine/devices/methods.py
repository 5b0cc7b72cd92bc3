"""Describes the calls that our gRPC servers answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message


class Method(NamedTuple):
    """Describe a unary call: `answer` gets a `request` and raises `transport.grpc_channel.CallFailed`."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]]


Methods = Mapping[str, Mapping[str, Method]]
"""By service, then by name."""
