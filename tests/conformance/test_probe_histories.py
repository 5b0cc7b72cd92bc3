"""What the probes of whole pods lead to, against recorded answers of kubelet v1.36: started, ready, killed.

A history starts, stops and probes containers. The native loop runs; a test triggers its ticks and gives the
outcomes of its probes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.api.documents import as_written
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod
from engine.probes import library
from engine.probes.library import LibraryProbeOutcome
from engine.probes.manager import ProbeManager
from tests.contexts import node_context

HOUR = 3600.0
OUTCOMES = ("success", "failure", "warning", "unknown", "error")
UNSEEN = {"container": "", "id": "", "state": "waiting"}


class Probed:
    """Replay histories on one manager, whose probes run only when they are triggered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.manager = ProbeManager(
            node_context(probes=ProbesSection()), on_result=lambda _: None, jitter=lambda: 1.0
        )
        self.raw: list[str] = []
        self.attempts = 0
        monkeypatch.setattr(library, "run", self._run)
        # A readiness probe that hurries would add a tick to those of the history.
        monkeypatch.setattr(self.manager, "_hurry_readiness", lambda _: None)

    async def _run(self, *_: Any) -> LibraryProbeOutcome:
        outcome = self.raw[min(self.attempts, len(self.raw) - 1)]
        self.attempts += 1
        return LibraryProbeOutcome(OUTCOMES.index(outcome), "")

    async def step(self, pod: Pod, step: dict[str, Any]) -> None:
        self.attempts = 0
        match step["do"]:
            case "status":
                self.manager.update_container(
                    pod.uid, step["container"], container_id=step["id"], state=step["state"]
                )
            case "phase":
                self.manager.update_pod(pod.uid, phase=step["phase"])
            case "terminate":
                self.manager.stop_liveness_and_startup(pod.uid)
                for worker in self._workers(pod):
                    await self._ticked(worker.key)
            case "tick":
                self.raw = step["raw"]
                (key,) = (
                    worker.key
                    for worker in self._workers(pod)
                    if (worker.spec.container, worker.spec.type) == (step["container"], step["type"])
                )
                self.manager._native.trigger(key)
                await self._ticked(key)

    def _workers(self, pod: Pod) -> list[Any]:
        return [one for one in self.manager._registered() if one.container.pod.pod.uid == pod.uid]

    async def _ticked(self, key: int) -> None:
        """Wait until the loop has done the triggered tick, with its attempts, and take its news."""
        async with asyncio.timeout(60):
            while True:
                info = self.manager._native.info(key)
                if info["ended"] or (info["next"] > HOUR / 2 and not info["running"]):
                    break
                await asyncio.sleep(0)
        self.manager._take_news()

    def result(self, pod: Pod, last: dict[str, dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {"attempts": self.attempts, "started": [], "ready": [], "failed": {}}
        for container in pod.all_containers:
            seen = last.get(container.name, UNSEEN)
            if seen["state"] != "running":
                continue
            about = (pod.uid, container.name, seen["id"])
            found["started"] += [container.name] if self.manager.is_started(*about) else []
            found["ready"] += [container.name] if self.manager.is_ready(*about) else []
            if failed := self.manager.failed(*about):
                found["failed"][container.name] = failed
        return found


async def test_probes_of_whole_pods(answers, monkeypatch):
    probed = Probed(monkeypatch)
    await probed.manager.start()
    try:
        for number, case in enumerate(answers("probe-histories")):
            pod = as_written(case["in"]["pod"], Pod, "pod")
            probed.manager.add_pod(pod)
            last: dict[str, dict[str, Any]] = {}
            for at, (step, wanted) in enumerate(zip(case["in"]["steps"], case["out"], strict=True)):
                await probed.step(pod, step)
                if step["do"] == "status":
                    last[step["container"]] = step
                assert probed.result(pod, last) == wanted, (number, at, case["in"])
            probed.manager.remove_pod(pod.uid)
    finally:
        await probed.manager.stop()
