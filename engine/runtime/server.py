"""Serve a runtime over gRPC: dispatch methods by name, map errors to statuses, and count each method's cost.

A service is any object with a coroutine method per call (`RunPodSandbox` → `run_pod_sandbox`), or an async
generator for streams. Answers may be messages or their wire form. A call without a method is
`UNIMPLEMENTED`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from engine.api.errors import KubengineError
from engine.host.sockets import Claim, claim
from engine.runtime.objects.failures import Unsupported
from engine.wire import cri_v1_pb2 as cri

MAX_MESSAGE = 16 * 1024 * 1024
LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class CallCount:
    """Count one method's totals since the start. Bytes are those of the messages, without framing."""

    calls: int = 0
    errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class CriServer:
    """Serve services by name (`RuntimeService`, `ImageService`) on a unix socket of mode 0600."""

    def __init__(self, socket: Path, services: Mapping[str, object]) -> None:
        self.socket = Path(socket)
        self.counts: dict[str, CallCount] = {}
        self._handlers = [
            grpc.method_handlers_generic_handler(
                f"runtime.v1.{name}",
                {method.name: self._handler(services[name], method) for method in descriptor.methods},
            )
            for name, descriptor in cri.DESCRIPTOR.services_by_name.items()
        ]
        self._server: grpc.aio.Server | None = None
        self._claim: Claim | None = None

    async def start(self) -> None:
        """Start serving; replace a dead socket file. Raise Refused if another process serves the socket."""
        self.socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE),
                ("grpc.max_send_message_length", MAX_MESSAGE),
                ("grpc.so_reuseport", 0),
            )
        )
        server.add_generic_rpc_handlers(tuple(self._handlers))
        self._claim = claim(self.socket, lambda path: server.add_insecure_port(f"unix:{path}"))
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.2)
            self._server = None
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _handler(self, service: object, method: Any) -> grpc.RpcMethodHandler[Any, Any]:
        count = self.counts.setdefault(method.name, CallCount())
        parse = GetMessageClass(method.input_type).FromString

        def deserialize(data: bytes) -> Message:
            count.calls += 1
            count.bytes_in += len(data)
            return parse(data)

        def serialize(answer: Message | bytes) -> bytes:
            data = answer if isinstance(answer, bytes) else answer.SerializeToString()
            count.bytes_out += len(data)
            return data

        function = getattr(service, snake_case(method.name), None)
        if method.server_streaming:
            function = function or _unimplemented_stream(method.name)
            return grpc.unary_stream_rpc_method_handler(
                _stream(function, method.name, count), deserialize, serialize
            )
        function = function or _unimplemented(method.name)
        return grpc.unary_unary_rpc_method_handler(
            _unary(function, method.name, count), deserialize, serialize
        )


def snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _unary(
    function: Callable[[Any], Awaitable[Any]], name: str, count: CallCount
) -> Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]:
    async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await function(request)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            count.errors += 1
            return await context.abort(*_status(error, name))

    return handle


def _stream(
    function: Callable[[Any], AsyncIterator[Any]], name: str, count: CallCount
) -> Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Any]]:
    async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for answer in function(request):
                yield answer
        except asyncio.CancelledError:
            raise
        except Exception as error:
            count.errors += 1
            await context.abort(*_status(error, name))

    return handle


def _unimplemented(name: str) -> Callable[[Any], Any]:
    async def refuse(_request: Any) -> Any:
        raise Unsupported(f"{name} is not implemented by this runtime")

    return refuse


def _unimplemented_stream(name: str) -> Callable[[Any], AsyncIterator[Any]]:
    refuse = _unimplemented(name)

    async def stream(request: Any) -> AsyncIterator[Any]:
        yield await refuse(request)

    return stream


def _status(error: Exception, name: str) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, KubengineError):
        return grpc.StatusCode[error.grpc_status], str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return grpc.StatusCode.INTERNAL, f"{where}{error.strerror or error}"
    LOG.exception("unexpected failure of %s", name)
    return grpc.StatusCode.INTERNAL, f"unexpected {type(error).__name__}: {error}"
