"""Reads the node while somebody has the page open, once for all readers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from engine.api.errors import KubengineError
from engine.api.struct import to_builtins, to_json
from engine.server.interfaces.node import ServedNode
from engine.server.page import rows

log = logging.getLogger(__name__)

SHARE = 20.0
"""The pause after a read is at least this many times as long as the read."""
DECISIONS = 300

ReadRows = Callable[[], Awaitable[rows.Rows]]


class PageWatch:
    """Keep the rows of each part of one node as JSON.

    `parts` are replaced as a whole, so that a reader can keep what it has sent. `failures` tell why a part
    could not be read.
    """

    def __init__(self, view: ServedNode) -> None:
        self._view = view
        self._readers: set[asyncio.Event] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.parts: dict[str, Mapping[str, bytes]] = {}
        self.failures: dict[str, str] = {}

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[asyncio.Event]:
        """Keep reading while there is a reader; the event is set when a part has changed."""
        news = asyncio.Event()
        self._readers.add(news)
        if self.parts:
            news.set()
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._keep_reading(name, every, read_rows), name=f"page: {name}")
                for name, (every, read_rows) in self._parts().items()
            ]
            if "decisions" in self._view.components:
                self._tasks.append(asyncio.create_task(self._follow_decisions(), name="page: decisions"))
        try:
            yield news
        finally:
            self._readers.discard(news)
            if not self._readers:
                tasks, self._tasks = self._tasks, []
                # An idle node computes nothing for a page that nobody has open.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _parts(self) -> dict[str, tuple[float, ReadRows]]:
        """Return for each part of the node how to read it, and how often in seconds."""
        components: dict[str, tuple[str, float, Callable[[Mapping[str, Any]], rows.Rows]]] = {
            "node": ("node", 10, lambda node: rows.node_rows(to_builtins(node), self._view.healthz())),
            "cgroups": ("cgroups", 10, rows.cgroup_rows),
            "cpus": ("cpus", 10, rows.cpu_rows),
            "devices": ("devices", 3, rows.device_rows),
            "eviction": ("eviction", 3, rows.eviction_rows),
            "images": ("images", 30, rows.image_rows),
            "probes": ("probes", 3, rows.probe_rows),
        }
        parts: dict[str, tuple[float, ReadRows]] = {"pods": (1, self._pods), "use": (3, self._use)}
        for name, (component, every, shown) in components.items():
            if hasattr(self._view.components.get(component), "describe"):
                parts[name] = every, self._component(component, shown)
        return parts

    async def _pods(self) -> rows.Rows:
        return rows.pod_rows(self._view.pods())

    async def _use(self) -> rows.Rows:
        return rows.use_rows(await self._view.usage())

    def _component(self, name: str, shown: Callable[[Mapping[str, Any]], rows.Rows]) -> ReadRows:
        async def read_rows() -> rows.Rows:
            described = self._view.components[name].describe()  # type: ignore[attr-defined]
            return shown(await described if inspect.isawaitable(described) else described)

        return read_rows

    async def _keep_reading(self, name: str, every: float, read_rows: ReadRows) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                found = {key: to_json(row) for key, row in (await read_rows()).items()}
                self._publish(name, found, "")
            except KubengineError as error:
                self._publish(name, self.parts.get(name, {}), str(error))
            except Exception as error:
                log.exception("the page cannot show %s", name)
                self._publish(name, self.parts.get(name, {}), f"{type(error).__name__}: {error}")
            # A node with thousands of pods is read less often: no part takes more than a twentieth of the
            # event loop's time.
            await asyncio.sleep(max(every, SHARE * (clock() - began)))

    async def _follow_decisions(self) -> None:
        held: deque[tuple[str, bytes]] = deque(maxlen=DECISIONS)
        component: Any = self._view.components["decisions"]
        async with aclosing(component.describe(follow="true")) as news:
            async for lines in news:
                for line in lines.splitlines():
                    held.append((str(msgspec.json.decode(line)["number"]), line))
                self._publish("decisions", dict(held), "")

    def _publish(self, name: str, found: Mapping[str, bytes], failure: str) -> None:
        if found == self.parts.get(name) and failure == self.failures.get(name, ""):
            return
        self.parts[name], self.failures[name] = found, failure
        for news in self._readers:
            news.set()
