"""Reads and writes certificates as PEM text. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = re.compile(
    r"^-----BEGIN ([^\n-]*)-----[ \t]*\r?\n((?:(?!-----).)*?)^-----END \1-----[ \t]*\r?$",
    re.MULTILINE | re.DOTALL,
)
_LINE: Final = 64


def pem_blocks(text: str) -> Iterator[bytes]:
    """Yield the content of each block, of any type; headers, and text that is not PEM, are ignored."""
    for match in _BLOCK.finditer(text):
        # Base64 has no colon, which every header has.
        body = "".join(line for line in match[2].splitlines() if ":" not in line)
        try:
            yield base64.b64decode("".join(body.split()), validate=True)
        except binascii.Error:
            continue


def certificate_block(certificate: bytes) -> str:
    """Return the block of one certificate (DER), with a line end."""
    text = base64.b64encode(certificate).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])


def certificates_only(text: str) -> bytes:
    """Return the blocks of a chain in their order, without headers and without the text between them."""
    return "".join(map(certificate_block, pem_blocks(text))).encode()
