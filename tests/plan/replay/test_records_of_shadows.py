"""`kubengine plan replay` plays what a shadow recorded, next to the records of agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.shadow.observations import node, requesting
from tests.shadow.recorded import RecordingShadow, observations


def recorded(directory: Path) -> None:
    shadow = RecordingShadow(directory)
    for seen in observations():
        shadow.observe(seen)
    shadow.writer.close()


def test_it_says_whether_the_shadow_and_the_kubelet_decided_the_same(
    run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    recorded(tmp_path)
    done = run_plan("replay", str(tmp_path), "--explain", "--fail-on", "gap")
    assert done.returncode == 0, done.stderr
    assert f"{node().metadata.name} decides otherwise" not in done.stdout.decode()


def test_another_configuration_and_more_pods_say_what_changes(
    run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    recorded(tmp_path / "record")
    following, more = tmp_path / "next.yaml", tmp_path / "more.yaml"
    following.write_text("kind: KubeletConfiguration\nmaxPods: 1\nevictionHard: {memory.available: '300'}\n")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "more"}, "spec": requesting(cpu="100m")}
    more.write_text(yaml.safe_dump(pod))
    line = ["replay", str(tmp_path / "record"), "--config", str(following), "--limit", "50"]
    done = run_plan(*line, "--explain", "--fail-on", "evict")
    assert done.returncode == 1, done.stderr
    text = done.stdout.decode()
    assert "on n1, default/b is refused after 10 s" in text
    assert text.count("on n1, default/a is evicted after 10 s") == text.count("default/a is evicted") == 1
    assert "on n1, the conditions change after 30 s" in text
    done = run_plan(*line, "--pods", str(more), "--fail-on", "evict")
    assert done.returncode == 1, done.stderr


def test_several_processes_give_the_answer_of_one(
    run_plan: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = [tmp_path / f"r{number}" for number in range(9)]
    for directory in directories:
        recorded(directory)
    following = tmp_path / "next.yaml"
    following.write_text("kind: KubeletConfiguration\nmaxPods: 1\n")
    line = ["replay", *map(str, directories), "--config", str(following), "--json"]
    told = []
    for cpus in ({0}, {0, 1}):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cpus=cpus: cpus)
        done = run_plan(*line)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout)["rows"])
    assert told[0] == told[1]
    assert len({row["node"] for row in told[0]}) == len(directories)
    (directories[4] / "000000001000000.krec").unlink()
    done = run_plan(*line)
    assert (done.returncode, b"r4: has no record" in done.stderr) == (1, True), done.stderr
