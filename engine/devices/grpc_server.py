"""Runs grpcio's server, which takes 23 MB and 0.2 s to import and is therefore imported on the first call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from engine.devices.methods import Method, Methods, StreamMethod
from engine.host.sockets import nameless
from engine.transport.grpc_channel import CallFailed

Context = grpc.aio.ServicerContext[Any, Any]

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """Answer `methods` at `address`, to which only this process can connect."""

    def __init__(self, methods: Methods, *, most_calls: int) -> None:
        self._server = grpc.aio.server(maximum_concurrent_rpcs=most_calls)
        for service, by_name in methods.items():
            handlers = {name: _handler(method) for name, method in by_name.items()}
            generic = grpc.method_handlers_generic_handler(service, handlers)
            self._server.add_generic_rpc_handlers((generic,))
        self._socket = -1

    @property
    def address(self) -> str:
        return f"/proc/self/fd/{self._socket}"

    async def start(self, directory: Path) -> None:
        """Start. Raises OSError if no socket can be created in `directory`, where its name exists only for a
        moment.
        """

        def bind(at: str) -> None:
            try:
                self._server.add_insecure_port(f"unix:{at}")
            except RuntimeError as error:
                raise OSError(f"cannot listen: {error}") from error

        self._socket = nameless(directory, bind)
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # a server that has half started cannot be stopped
            raise

    async def stop(self) -> None:
        """Stop; calls in progress end."""
        try:
            await self._server.stop(None)
        finally:
            if self._socket >= 0:
                os.close(self._socket)
                self._socket = -1


def _handler(method: Method | StreamMethod) -> Any:
    streams = isinstance(method, StreamMethod)
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    return make(
        _streaming(method.answer) if isinstance(method, StreamMethod) else _answering(method.answer),
        request_deserializer=method.request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _answering(answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await answer(request)
        except CallFailed as error:
            await context.abort(_CODES[error.status], error.details)

    return call


def _streaming(
    answer: Callable[[Any], AsyncGenerator[Any, None]],
) -> Callable[[Any, Context], Awaitable[None]]:
    async def call(request: Any, context: Context) -> None:
        try:
            # Written here, since a generator that grpcio reads would stay open if the call ended meanwhile.
            async with aclosing(answer(request)) as messages:
                async for message in messages:
                    await context.write(message)
        except CallFailed as error:
            await context.abort(_CODES[error.status], error.details)

    return call
