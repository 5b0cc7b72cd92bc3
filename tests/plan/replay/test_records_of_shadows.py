"""`kubengine plan replay` plays what a shadow recorded, next to the records of agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.shadow.looks import node, requesting
from tests.shadow.recorded import RecordingShadow, looks


def recorded(directory: Path) -> None:
    shadow = RecordingShadow(directory)
    for seen in looks():
        shadow.take(seen)
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
