"""What commands in containers cost their runtime, and how `kubengine probes` shows it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.api.errors import Refused
from engine.cli.agent.client import AgentClient
from engine.cli.probes import command
from engine.probes.command_costs import CommandCosts, shim_seconds
from tests.probes.probed_pods import pod_with

HERE = "own"
"""Stands for this process's cgroup, which a test takes for that of a sandbox."""
ASKS = {"exec": {"command": ["sh", "-c", "curl -f localhost:8080/ok || exit 1"]}}
NAMED = '  app liveness: httpGet, port 8080, path /ok, "network": "pod" would ask the same'


@pytest.mark.parametrize(
    ("sandbox", "info", "words"),
    [
        (HERE, "", "reports no process"),
        (HERE, "[]", "reports no process"),
        (HERE, "{}", "reports no process"),
        ("another", "pid", "has exited"),
        (HERE, "pid", "no process for the pod alone"),
    ],
)
def test_a_runtime_without_pod_shims_reports_no_cost(sandbox: str, info: str, words: str):
    if sandbox == HERE:
        sandbox = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
    if info == "pid":
        info = json.dumps({"pid": os.getpid()})
    with pytest.raises(Refused, match=words):
        shim_seconds(sandbox, info)


async def test_a_pod_without_reported_cost_shows_the_reason(rig):
    rig.manager.add_pod(pod_with("asks", liveness=ASKS))
    (described,) = (await CommandCosts(rig.manager, runtime=None).describe())["pods"]
    assert described["pod"] == "default/pod-asks"
    assert (described["runtime_cpu_seconds"], described["untold"]) == (None, "the pod has no sandbox")


async def shown(rig, monkeypatch, looks: list[dict[str, Any]], *arguments: str) -> list[str]:
    """Return the command's output for a pod with these successive readings."""
    rig.manager.add_pod(pod_with("asks", liveness=ASKS))
    (described,) = rig.manager.commands()
    described |= {"sandbox": "s", "runs": 10, "seconds": 0.4, "cpu_seconds": 0.001, "untold": ""}
    left = iter(looks)

    def describe(self: AgentClient, component: str, **query: str) -> dict[str, Any]:
        return rig.manager.describe() if component == "probes" else {"pods": [described | next(left)]}

    monkeypatch.setattr(AgentClient, "describe", describe)
    run = asyncio.to_thread(CliRunner().invoke, command, arguments, env={"COLUMNS": "200"})
    return (await run).output.splitlines()


OF_POD = "default/pod-asks: 10 commands; one took 40.0 ms, CPU 100 µs of this agent's, "


async def test_since_the_pod_began_it_is_a_bound_and_the_cheaper_probe_is_named(rig, monkeypatch):
    lines = await shown(rig, monkeypatch, [{"runtime_cpu_seconds": 0.2}])
    assert OF_POD + "at most 20.0 ms of the runtime's" in lines
    assert NAMED in lines


async def test_the_difference_of_two_samples_is_the_cost(rig, monkeypatch):
    before = {"runs": 5, "seconds": 0.1, "cpu_seconds": 0.0005, "runtime_cpu_seconds": 5.0}
    after = {"runs": 15, "seconds": 0.5, "cpu_seconds": 0.0015, "runtime_cpu_seconds": 5.23}
    assert OF_POD + "23.0 ms of the runtime's" in await shown(
        rig, monkeypatch, [before, after], "--seconds", "0"
    )


async def test_a_pod_that_was_created_again_is_skipped(rig, monkeypatch):
    looks = [{"runtime_cpu_seconds": 5.0}, {"runtime_cpu_seconds": 0.1, "sandbox": "t"}]
    assert not [
        line for line in await shown(rig, monkeypatch, looks, "--seconds", "0") if "commands;" in line
    ]


async def test_unreported_costs_are_marked(rig, monkeypatch):
    assert OF_POD + "the runtime's unknown: no shim" in await shown(
        rig, monkeypatch, [{"runtime_cpu_seconds": None, "untold": "no shim"}]
    )
