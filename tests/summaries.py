"""Read a node's summary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol


class _Node(Protocol):
    async def stats_summary(self) -> Iterable[bytes]: ...


async def summary_of(node: _Node) -> Any:
    return json.loads(b"".join(await node.stats_summary()))
