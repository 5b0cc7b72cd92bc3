"""Stores the CPUs that resized containers started with, as `{uid: {container: "0-3"}}` under a checksum.

The kubelet's state file has no place for them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api import cpu_set as cpu_sets
from engine.api.encoding.json_text import encode_json_sorted
from engine.api.errors import InvalidInput
from engine.host.checksummed_file import add_checksum, strip_checksum

FILE_NAME = "kubengine_cpu_baselines"


def encode(baselines: Mapping[str, Mapping[str, int]]) -> bytes:
    """Return the file's content; `baselines` are by pod uid and container."""
    texts = {uid: {name: cpu_sets.text(one) for name, one in of.items()} for uid, of in baselines.items()}
    return add_checksum(encode_json_sorted(texts))


def decode(data: bytes) -> dict[str, dict[str, int]]:
    """Read what `encode` wrote. Raises `ValueError` if it is damaged."""
    try:
        found = msgspec.json.decode(strip_checksum(data), type=dict[str, dict[str, str]])
        return {uid: {name: cpu_sets.parse(cpus) for name, cpus in of.items()} for uid, of in found.items()}
    except (msgspec.MsgspecError, InvalidInput, RecursionError) as error:
        raise ValueError(f"not a list of CPUs by pod and container: {error}") from None
