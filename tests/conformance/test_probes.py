"""The probe worker against the kubelet's recorded steps, twin and compiled form alike."""

from __future__ import annotations

from typing import Any

import pytest

from engine._fast.probing import _state_c, _state_py
from engine._fast.probing._state_py import ProbeObservation

TYPES = ["liveness", "readiness", "startup"]
RESULTS = [None, "success", "failure", "unknown"]
OUTCOMES = ["success", "failure", "warning", "unknown", "error"]
STATES = ["waiting", "running", "terminated"]


class Worker:
    """Drive a state machine through recorded steps, and keep the published results by container."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.names: dict[int, str] = {}
        self.published: dict[str, str] = {}

    def step(self, step: dict[str, Any], now: int) -> dict[str, Any]:
        container = step["container"] or {"id": "", "state": "waiting", "started": None}
        number = 0
        if container["id"]:
            number = next((n for n, name in self.names.items() if name == container["id"]), 0)
            number = number or len(self.names) + 1
            self.names[number] = container["id"]
        before = self.state.container
        action, updates = self.state.tick(
            ProbeObservation(
                pod_known=step["pod_known"],
                phase_terminal=step["phase"] in ("Failed", "Succeeded"),
                container=number,
                state=STATES.index(container["state"]),
                started=bool(container["started"]),
                started_at_ms=container.get("started_at_s", 0) * 1000,
                deleted=step["delete_pod"],
            ),
            now * 1000,
        )
        attempts = 0
        verdict = _state_py.RETRY
        while action == _state_py.PROBE and verdict == _state_py.RETRY:
            raw = step["raw"][min(attempts, len(step["raw"]) - 1)]
            verdict, more = self.state.finish(OUTCOMES.index(raw))
            updates += more
            attempts += 1
        if before != self.state.container:
            self.published.pop(self.names.get(before, ""), None)
        name = self.names.get(self.state.container, "")
        if self.state.published:
            self.published[name] = RESULTS[self.state.published] or ""
        return {
            "keep_going": action != _state_py.END,
            "attempts": attempts,
            "published": RESULTS[self.state.published],
            "all_published": dict(self.published),
            "updates": [{"container": name, "result": RESULTS[u]} for u in updates],
            "on_hold": self.state.on_hold,
            "result_run": self.state.run,
            "worker_container": name,
        }


@pytest.mark.parametrize("form", [_state_py, _state_c], ids=["twin", "compiled"])
def test_prober_worker(vectors, form):
    for number, case in enumerate(vectors("prober_worker")):
        sidecar = any(s["container"] and s["container"]["init"] for s in case["steps"])
        worker = Worker(
            form.ProbeState(
                TYPES.index(case["probe_type"]),
                failure_threshold=case["failure_threshold"],
                success_threshold=case["success_threshold"],
                initial_delay_ms=case["initial_delay_s"] * 1000,
                never_restarts=case["restart_policy"] == "Never" and not sidecar,
            )
        )
        now = 0
        deleted = False
        for at, step in enumerate(case["steps"]):
            now += step["advance_s"]
            deleted = deleted or step["delete_pod"]
            got = worker.step({**step, "delete_pod": deleted}, now)
            expected = step["result"]
            assert {key: got[key] for key in expected} == expected, (number, at, case)
