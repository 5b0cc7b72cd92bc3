"""A gRPC server on a unix socket that is claimed before anything else is touched, and answers later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from engine.api.errors import Refused
from engine.host.sockets import Claim, claim


class ClaimedServer:
    """`add` gives the server what it serves; it answers at most `most_calls` at once."""

    def __init__(self, path: Path, add: Callable[[grpc.aio.Server], object], *, most_calls: int) -> None:
        self._path = path
        self._add = add
        self._most_calls = most_calls
        self._server: grpc.aio.Server | None = None
        self._claim: Claim | None = None

    def claim(self, before: Callable[[], object] = lambda: None) -> None:
        """Make the socket ours, which nobody is answered at yet; only its owner may open it.

        `before` is called once nobody else serves there. Raises `Refused` as `host.sockets.claim` does.
        """
        server = grpc.aio.server(maximum_concurrent_rpcs=self._most_calls)
        self._add(server)

        def bind(at: str) -> None:
            try:
                server.add_insecure_port(f"unix:{at}")
            except RuntimeError as error:
                raise Refused(f"cannot listen: {error}", subject=str(self._path)) from error

        self._claim = claim(self._path, bind, before=before)
        self._server = server

    async def start(self) -> None:
        """Answer, at a socket that is claimed by now."""
        assert self._server is not None
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        if self._claim is not None:
            self._claim.release()
            self._claim = None
