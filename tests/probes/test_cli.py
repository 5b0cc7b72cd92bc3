"""`kubengine probes` and `kubengine probes bench`, with real probes behind them."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from engine.cli.agent.client import AgentClient
from engine.cli.probes import command
from engine.probes.measure import parse_target, quantile
from tests.probes.probed_pods import OK, http, pod_with, replying, serving
from tests.waiting import eventually


async def run(*arguments: str):
    return await asyncio.to_thread(CliRunner().invoke, command, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture
async def described(rig, monkeypatch):
    """Run an agent with a good and a failing probe, and let the commands read its answers."""
    async with serving(replying(OK)) as port:
        rig.run(pod_with("good", readiness=http(port)))
        rig.run(pod_with("bad", readiness={"tcpSocket": {"port": 1}, "failureThreshold": 1}))
        await eventually(lambda: rig.manager.is_ready("good", "app") and rig.messages("Unhealthy"))
        answers = {"probes": rig.manager.describe(), "probe-commands": {"pods": []}}
    monkeypatch.setattr(
        AgentClient, "describe", lambda self, room, **query: json.loads(json.dumps(answers[room]))
    )


async def test_the_table(described):
    shown = await run()
    assert shown.exit_code == 0, shown.output
    good, bad = (
        next(line for line in shown.output.splitlines() if name in line) for name in ("pod-good", "pod-bad")
    )
    assert "readiness http" in good
    assert "success" in good
    assert "connection refused" in bad
    assert "entries into Python" in shown.output


async def test_only_the_failing_ones_as_json(described):
    shown = await run("--failing", "--json")
    assert [probe["pod"] for probe in json.loads(shown.output)["probes"]] == ["default/pod-bad"]


async def test_bench_measures_a_target():
    async with serving(replying(OK)) as port:
        target = f"http://127.0.0.1:{port}/healthz"
        shown = await run("bench", target, "--probes", "20", "--period", "0.1", "--seconds", "0.5", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert found["successful"] > 50
    assert found["failed"] == found["errored"] == found["entries_into_python"] == 0


async def test_bench_says_when_probes_fail():
    shown = await run("bench", "tcp://127.0.0.1:1", "--probes", "5", "--period", "0.1", "--seconds", "0.3")
    assert shown.exit_code == 1
    assert "not every probe was successful" in shown.output


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://192.0.2.1:80/", "is not a loopback address"),
        ("http://localhost:80/", "needs an IP address and a port"),
        ("udp://127.0.0.1:80", "needs a scheme"),
        ("tcp://127.0.0.1", "needs a scheme (http, tcp, grpc) and a port"),
    ],
)
async def test_bench_refuses_other_targets(url, words):
    shown = await run("bench", url)
    assert shown.exit_code == 1
    assert words in str(shown.exception)


def test_targets_and_quantiles():
    assert parse_target("grpc://[::1]:9000/my.Service") == ("grpc", "::1", 9000, "my.Service")
    assert parse_target("http://127.0.0.1:80/a?b=c") == ("http", "127.0.0.1", 80, "/a?b=c")
    assert quantile((1.0, 2.0), [5, 5, 0], [0, 0, 0], 0.5) == 1.0
    assert quantile((1.0, 2.0), [9, 0, 1], [0, 0, 0], 0.99) == float("inf")
