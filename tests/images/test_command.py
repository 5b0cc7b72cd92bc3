"""`kubengine images` and `kubengine eviction` over answers of real managers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from engine.cli import eviction as eviction_command
from engine.cli import images as images_command
from engine.cli.agent.client import AgentClient
from engine.cli.output.amounts import show_age, show_bytes
from tests.images.test_manager import GIB, Runtime, disk, make

__all__ = ["disk"]


@pytest.fixture
def agent(monkeypatch, disk):
    """Return an agent with one image manager; commands call it without HTTP."""
    runtime = Runtime()
    manager = make(runtime).manager
    asyncio.run(manager.detect())
    answers = {"images": lambda: asyncio.run(manager.describe())}

    def act(_self, _room, action, **query):
        return asyncio.run(manager.act(action, query))

    monkeypatch.setattr(AgentClient, "describe", lambda _self, room, **query: answers[room](**query))
    monkeypatch.setattr(AgentClient, "act", act)
    return SimpleNamespace(runtime=runtime, answers=answers, disk=disk)


def run(command, *arguments):
    return CliRunner().invoke(command, list(arguments))


def test_images_lists_them(agent):
    shown = run(images_command.command)
    assert shown.exit_code == 0, shown.output
    assert "example.com/00:1" in shown.output
    assert "5 images, 5Gi; collected from 85 % of the disk down to 80 %, order lru" in shown.output
    assert len(json.loads(run(images_command.command, "--json").output)["images"]) == 5


def test_gc_dry_run_and_gc(agent):
    planned = run(images_command.command, "gc", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "would-remove" in planned.output
    assert "the image file system was 90 % full, to free: 1Gi" in planned.output
    assert agent.runtime.removed == []
    done = run(images_command.command, "gc", "--json")
    assert json.loads(done.output)["removed"] == agent.runtime.removed != []


def test_a_failed_run_reports_it_and_exits_with_one(agent):
    agent.disk.available = 0
    agent.runtime.images = {"sha256:00": GIB // 4}
    failed = run(images_command.command, "gc")
    assert failed.exit_code == 1
    assert "(freed 268435456 bytes)" in failed.output
    assert "files that do not belong to the runtime" in failed.output


def test_eviction_shows_distance_and_order(agent):
    agent.answers["eviction"] = lambda **_query: {
        "layout": "shared",
        "conditions": ["MemoryPressure"],
        "signals": {
            "memory.available": {"available": GIB, "capacity": 4 * GIB},
            "pid.available": {"available": 10, "capacity": 100},
        },
        "thresholds": [
            {"signal": "memory.available", "value": "2Gi", "gracePeriod": 0.0, "minReclaim": None,
             "limit": 2 * GIB, "distance": -GIB},
            {"signal": "pid.available", "value": "5", "gracePeriod": 30.0, "minReclaim": None,
             "limit": 5, "distance": 5},
            {"signal": "nodefs.available", "value": "10%", "gracePeriod": 0.0, "minReclaim": None,
             "limit": None, "distance": None},
        ],
        "first": {"memory": [
            {"place": 1, "pod": "default/p", "uid": "u", "qos": "BestEffort", "priority": 0, "usage": GIB,
             "request": 0, "why": "uses 1 bytes more than it requests, priority 0"},
        ], "pids": []},
    }  # fmt: skip
    shown = run(eviction_command.command)
    assert shown.exit_code == 0, shown.output
    assert "MET" in shown.output
    assert "soft, 30 s" in shown.output
    assert "not measured" in shown.output
    assert "conditions: MemoryPressure; disk layout: shared" in shown.output
    assert "default/p" in shown.output


def test_amounts():
    assert [show_bytes(n) for n in (None, 0, 1536, -(3 << 30))] == ["-", "0", "1.5Ki", "-3Gi"]
    assert [show_age(s) for s in (-1, 59, 120, 7200, 3 * 86400)] == ["0s", "59s", "2m", "2h", "3d"]
