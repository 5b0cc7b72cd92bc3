"""Serve prepared bytes over gRPC, in threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

_UNLIMITED = (("grpc.max_send_message_length", -1),)


class _Answers(grpc.GenericRpcHandler):
    def __init__(self, answers: Mapping[str, Sequence[bytes]]) -> None:
        self._answers = answers

    def service(self, details: Any) -> Any:
        """Stream the answers of a method; a unary client takes the first."""
        answers = self._answers.get(details.method)
        return answers and grpc.unary_stream_rpc_method_handler(lambda request, context: iter(answers))


@contextmanager
def answering(path: Path, answers: Mapping[str, Sequence[bytes]]) -> Iterator[None]:
    """Serve `answers` by the method's full name at a unix socket."""
    server = grpc.server(ThreadPoolExecutor(4), options=_UNLIMITED)
    server.add_generic_rpc_handlers((_Answers(answers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
