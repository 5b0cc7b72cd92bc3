from collections.abc import Collection, Iterable
from typing import Any

HEAD: int
DATA: int
END: int
RESET: int
GOAWAY: int
SETTINGS: int
PONG: int
BROKEN: int

Buffer = bytes | bytearray | memoryview
Event = tuple[int, int, Any, int]

def encode(headers: Iterable[tuple[bytes, bytes]], secret: Collection[bytes] = ()) -> bytes: ...

class ClientConnection:
    def __init__(
        self,
        *,
        stream_window: int = ...,
        connection_window: int = ...,
        header_list: int = ...,
        max_streams: int = ...,
    ) -> None: ...
    @property
    def usable(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def open(self) -> int: ...
    @property
    def settled(self) -> bool: ...
    def request(self, block: Buffer, body: bytes = b"") -> int: ...
    def receive(self, data: Buffer) -> list[Event]: ...
    def take(self, stream: int, size: int) -> None: ...
    def reset(self, stream: int, code: int) -> None: ...
    def ping(self, data: bytes) -> None: ...
    def output(self) -> bytes: ...
