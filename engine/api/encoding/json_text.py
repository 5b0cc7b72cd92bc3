"""Encodes JSON so that a lack of memory is an exception.

`encode` of msgspec 0.22 does not check whether its result could be enlarged or its keys be sorted; where no
memory is left, it ends the process with a segmentation fault. `encode_into` and `to_builtins` raise
MemoryError. This is the only module that may use msgspec's encoder; ruff checks that. Decoding has the same
fault for strings and offers no other way: an agent that has no memory for a string ends and is restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


def json_encoder(enc_hook: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """Return a function that encodes a value; `enc_hook` converts types that msgspec does not know."""
    encode_into = msgspec.json.Encoder(enc_hook=enc_hook).encode_into

    def encode(value: Any) -> bytes:
        buffer = bytearray()
        encode_into(value, buffer)
        return bytes(buffer)

    return encode


encode_json = json_encoder()


def encode_json_sorted(value: Any) -> bytes:
    """Encode with the keys of every dict in order; the fields of structs stay in theirs."""
    return encode_json(msgspec.to_builtins(value, order="deterministic", str_keys=True))
