"""Read a probe's answer over HTTP/2 in plain Python; tests compare the kernel with it.

`parse` works on everything that the server sent before it closed. The kernel reads it in pieces, stops at the
first verdict and must reach the same one.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine._fast.probing.grpc import ANSWERED, CLOSED, EXEC, GET, HEALTH, HTTP, PROTOCOL, STATUS

RESOURCE_EXHAUSTED, INTERNAL = 8, 13
FRAME_LIMIT = 16384
FRAMES_LIMIT = 4096
MESSAGE_LIMIT = 256
EXEC_MESSAGE_LIMIT = 16 * 1024 * 1024
OUTPUT_LIMIT = 10 * 1024
BODY_ENOUGH = 10 * 1024
TEXT_LIMIT = 512
TABLE_SIZE = 4096
DATA, HEADERS, PRIORITISE, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
WINDOW_LIMIT = 0x7FFFFFFF
ACK, END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32

# Code lengths of the symbols 0 to 255 and end-of-string, A for 5 bits to Z for 30 (RFC 7541, appendix B).
_HUFFMAN_LENGTHS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHF"
    "IBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABABABBBACCBBBABCBAABCCCCCKGJIX"
    "PRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRS"
    "VVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWV"
    "Z"
)
# RFC 7541, appendix A.
_STATIC_NAMES = [
    ":authority", ":method", ":method", ":path", ":path", ":scheme", ":scheme", ":status", ":status",
    ":status", ":status", ":status", ":status", ":status", "accept-charset", "accept-encoding",
    "accept-language", "accept-ranges", "accept", "access-control-allow-origin", "age", "allow",
    "authorization", "cache-control", "content-disposition", "content-encoding", "content-language",
    "content-length", "content-location", "content-range", "content-type", "cookie", "date", "etag",
    "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match", "if-range",
    "if-unmodified-since", "last-modified", "link", "location", "max-forwards", "proxy-authenticate",
    "proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie",
    "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via", "www-authenticate",
]  # fmt: skip
_STATIC_STATUSES = {8: b"200", 9: b"204", 10: b"206", 11: b"304", 12: b"400", 13: b"404", 14: b"500"}


def _codes() -> dict[tuple[int, int], int]:
    """Map (length, code) to symbol: canonical, so codes are counted up in the order of length and symbol."""
    lengths = [ord(letter) - ord("A") + 5 for letter in _HUFFMAN_LENGTHS]
    codes = {}
    code = length = 0
    for symbol in sorted(range(257), key=lambda s: (lengths[s], s)):
        code <<= lengths[symbol] - length
        length = lengths[symbol]
        codes[length, code] = symbol
        code += 1
    return codes


_HUFFMAN = _codes()


class _Refused(Exception):
    pass


class _Verdict(Exception):
    def __init__(self, verdict: int, detail: int = 0, text: bytes = b"") -> None:
        self.answer = verdict, detail, text


class GrpcAnswer:
    """Hold what is known of the call so far."""

    def __init__(self, call: int) -> None:
        self.call = call
        self.status = -1
        self.grpc_status = -1
        self.text = b""
        self.message = b""
        self.table: list[tuple[bytes, bytes]] = []
        self.table_max = TABLE_SIZE
        self.headed = False
        self.windows = {0: 0, 1: 0}  # the request is as large as any server takes
        self.initial_window = 65535


def parse(data: bytes, call: int = HEALTH) -> tuple[int, int, bytes]:
    """Return the verdict, its detail and its text.

    ANSWERED: the serving status, a command's exit code and the beginning of its output, or a GET's status.
    STATUS: the gRPC status and its message as sent. HTTP: the status. CLOSED: the HTTP/2 error code.
    """
    try:
        _frames(GrpcAnswer(call), data)
    except _Verdict as verdict:
        return verdict.answer
    except _Refused:
        return PROTOCOL, 0, b""
    return CLOSED, 0, b""


def _frames(answer: GrpcAnswer, data: bytes) -> None:
    block: bytearray | None = None
    ends = False
    at = idle = 0
    while len(data) - at >= 9:
        length = int.from_bytes(data[at : at + 3], "big")
        type, flags = data[at + 3], data[at + 4]
        stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
        idle += type != DATA or length == 0
        _check(answer, type, flags, stream, length, idle, block is not None)
        if at == 0 and (type != SETTINGS or flags & ACK):
            raise _Refused
        payload = data[at + 9 : at + 9 + length]
        whole = len(payload) == length
        at += 9 + length
        if type in (HEADERS, DATA):
            payload = _unpadded(payload, length, flags, type)
        if type == HEADERS:
            block, ends = bytearray(), bool(flags & END_STREAM)
        if type in (HEADERS, CONTINUATION):
            assert block is not None
            block += payload
            # Refuse what cannot be valid before its end arrives.
            done = whole and bool(flags & END_HEADERS)
            _block(answer, bytes(block), done)
            if done:
                block = None
                answer.headed = True
                if ends:
                    _conclude(answer)
        elif type == DATA:
            _message(answer, payload)
            if whole and flags & END_STREAM:
                _conclude(answer)
        elif type == SETTINGS:
            _settings(answer, payload)
        elif type == WINDOW_UPDATE and whole:
            _widen(answer, stream, int.from_bytes(payload, "big") & WINDOW_LIMIT)
        elif type == RST and whole:
            raise _Verdict(CLOSED, int.from_bytes(payload, "big") & 0x7FFFFFFF)
        elif type == GOAWAY and whole and (code := int.from_bytes(payload[4:8], "big") & 0x7FFFFFFF):
            raise _Verdict(CLOSED, code)


def _check(
    answer: GrpcAnswer, type: int, flags: int, stream: int, length: int, idle: int, in_block: bool
) -> None:
    right = {
        HEADERS: stream == 1,
        DATA: stream == 1 and answer.headed,
        PRIORITISE: length == 5 and stream != 0,
        PUSH: False,
        WINDOW_UPDATE: length == 4 and stream in (0, 1),
        RST: length == 4 and stream == 1,
        PING: length == 8 and stream == 0,
        GOAWAY: length >= 8 and stream == 0,
        SETTINGS: length % 6 == 0 and stream == 0 and not (flags & ACK and length),
    }.get(type, True)
    if not right or length > FRAME_LIMIT or idle > FRAMES_LIMIT:
        raise _Refused
    if in_block != (type == CONTINUATION) or (in_block and stream != 1):
        raise _Refused


def _settings(answer: GrpcAnswer, payload: bytes) -> None:
    for at in range(0, len(payload) - 5, 6):
        setting = int.from_bytes(payload[at : at + 2], "big")
        value = int.from_bytes(payload[at + 2 : at + 6], "big")
        if (setting == 2 and value > 1) or (setting == 5 and not FRAME_LIMIT <= value < 1 << 24):
            raise _Refused
        if setting == 4:
            answer.windows[1] += value - answer.initial_window
            answer.initial_window = value
            if max(value, answer.windows[1]) > WINDOW_LIMIT:
                raise _Refused


def _widen(answer: GrpcAnswer, stream: int, more: int) -> None:
    answer.windows[stream] += more
    if more == 0 or answer.windows[stream] > WINDOW_LIMIT:
        raise _Refused


def _unpadded(payload: bytes, length: int, flags: int, type: int) -> bytes:
    skip = (1 if flags & PADDED else 0) + (5 if type == HEADERS and flags & PRIORITY else 0)
    if skip > length:
        raise _Refused
    padding = payload[0] if flags & PADDED and payload else 0
    if padding > length - skip:
        raise _Refused
    return payload[skip : length - padding]


def _block(answer: GrpcAnswer, block: bytes, done: bool) -> None:
    """Decode a header block that may not be whole yet; only a whole one changes the table."""
    table, table_max = list(answer.table), answer.table_max
    try:
        _fields(answer, block)
    except IndexError:
        if done:
            raise _Refused from None
        answer.table, answer.table_max = table, table_max


def _fields(answer: GrpcAnswer, block: bytes) -> None:
    at = 0
    resizable = True
    while at < len(block):
        first = block[at]
        if first & 0xE0 == 0x20:
            if not resizable:
                raise _Refused
            answer.table_max, at = _integer(block, at, 5)
            if answer.table_max > TABLE_SIZE:
                raise _Refused
            _evict(answer)
            continue
        resizable = False
        if first & 0x80:
            index, at = _integer(block, at, 7)
            name, value = _entry(answer, index)
        else:
            index, at = _integer(block, at, 6 if first & 0x40 else 4)
            name = _entry(answer, index)[0] if index else b""
            if not index:
                name, at = _string(block, at)
            value, at = _string(block, at)
            if first & 0x40:
                answer.table.insert(0, (name, value))
                _evict(answer)
        number = int(value) if value.isdigit() and len(value) <= 6 else -1
        if name == b":status":
            answer.status = max(number, 0)
        elif name == b"grpc-status":
            answer.grpc_status = number if number >= 0 else 2
        elif name == b"grpc-message":
            answer.text = value[:TEXT_LIMIT]


def _entry(answer: GrpcAnswer, index: int) -> tuple[bytes, bytes]:
    if index == 0 or index - 62 >= len(answer.table):
        raise _Refused
    if index >= 62:
        return answer.table[index - 62]
    return _STATIC_NAMES[index - 1].encode(), _STATIC_STATUSES.get(index, b"")


def _evict(answer: GrpcAnswer) -> None:
    while sum(len(n) + len(v) + 32 for n, v in answer.table) > answer.table_max:
        answer.table.pop()


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in (0, 7, 14, 21):
        value += (block[at] & 0x7F) << shift
        at += 1
        if value > 1 << 24:
            raise _Refused
        if not block[at - 1] & 0x80:
            return value, at
    block[at]
    raise _Refused


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    huffman = block[at] & 0x80
    length, at = _integer(block, at, 7)
    raw = block[at : at + length]
    whole = len(raw) == length
    text = _unhuffman(raw, whole) if huffman else raw
    if not whole:
        raise IndexError
    return text, at + length


def _unhuffman(raw: bytes, whole: bool) -> bytes:
    out = bytearray()
    code = length = 0
    for bit in (byte >> shift & 1 for byte in raw for shift in range(7, -1, -1)):
        code, length = code << 1 | bit, length + 1
        symbol = _HUFFMAN.get((length, code))
        if symbol == 256 or length > 30:
            raise _Refused
        if symbol is not None:
            out.append(symbol)
            code = length = 0
    if whole and (length > 7 or code != (1 << length) - 1):
        raise _Refused
    return bytes(out)


def _message(answer: GrpcAnswer, data: bytes) -> None:
    answer.message += data
    if answer.call == GET:
        if len(answer.message) >= BODY_ENOUGH:
            _conclude(answer)
        return
    size = int.from_bytes(answer.message[1:5], "big")
    if len(answer.message) >= 5:
        if answer.call == HEALTH and size > MESSAGE_LIMIT:
            raise _Refused
        if size > EXEC_MESSAGE_LIMIT:
            raise _Verdict(STATUS, RESOURCE_EXHAUSTED)
        if len(answer.message) > size + 5:
            raise _Verdict(STATUS, INTERNAL)


def _conclude(answer: GrpcAnswer) -> None:
    if answer.call == GET:
        raise _Verdict(ANSWERED, max(answer.status, 0))
    if answer.grpc_status > 0:
        raise _Verdict(STATUS, answer.grpc_status, answer.text)
    if answer.status != 200:
        raise _Verdict(HTTP, max(answer.status, 0))
    message = answer.message
    whole = len(message) >= 5 and len(message) == 5 + int.from_bytes(message[1:5], "big")
    if answer.grpc_status < 0 or not whole or message[0]:  # compression was not requested
        raise _Verdict(STATUS, INTERNAL)
    try:
        fields = list(_fields_of(message[5:]))
    except IndexError:
        raise _Verdict(STATUS, INTERNAL) from None
    if answer.call == EXEC:
        output = b"".join(value for field, value in fields if field in (1, 2) and isinstance(value, bytes))
        code = next((v for field, v in reversed(fields) if field == 3 and isinstance(v, int)), 0) & 0xFFFFFFFF
        raise _Verdict(ANSWERED, code - (code >> 31 << 32), output[:OUTPUT_LIMIT])
    serving = next((v for field, v in reversed(fields) if field == 1 and isinstance(v, int)), 0)
    raise _Verdict(ANSWERED, serving & 0x7FFFFFFF)


def _fields_of(message: bytes) -> Iterator[tuple[int, int | bytes | None]]:
    """Return the numbers of a protobuf message's fields, and the values of varints and strings. Raise
    IndexError for invalid bytes.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire, value = key & 7, 0
        if wire in (0, 2):
            value, at = _varint(message, at)
        size = {0: 0, 1: 8, 2: value, 5: 4}.get(wire)
        if key >> 3 == 0 or size is None or size > len(message) - at:
            raise IndexError
        yield key >> 3, value if wire == 0 else message[at : at + size] if wire == 2 else None
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at] & 0x7F) << shift
        at += 1
        if not message[at - 1] & 0x80:
            return value & (1 << 64) - 1, at
    raise IndexError
