"""What the documents show works as it stands: configurations load, programs and tutorials run."""

from __future__ import annotations

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.api.documents import load_config
from tests.project.shown import DOCUMENTS, IDS, KUBECTL, ROOT, blocks
from tests.waiting import wait_until

TUTORIALS = ROOT / "docs/tutorial"
_KINDS = {"KubeletConfiguration", "KubengineConfiguration"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_configurations_are_read_without_a_warning(
    document: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, block in enumerate(blocks(document, "yaml")):
        kinds = {part.get("kind") for part in yaml.safe_load_all(block) if isinstance(part, dict)}
        if kinds <= _KINDS and kinds:
            path = tmp_path / f"{number}.yaml"
            path.write_text(block)
            load_config([path])
    assert caplog.text == ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_programs_import_what_there_is(document: Path) -> None:
    for block in blocks(document, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module = importlib.import_module(node.module)
                missing = [each.name for each in node.names if not hasattr(module, each.name)]
                assert missing == []


EMBED = ROOT / "docs/how-to/embed.md"
PROGRAMS = [block for block in blocks(EMBED, "python") if "print(" in block]


def printed(program: str) -> list[str]:
    """Return the output that a program shows: comments after `print` calls, or on the lines below them."""
    return re.findall(r"(?:^|print\(.*\)  )# (.+)$", program, re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_that_embeds_prints_what_is_shown(program: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == printed(program)


@pytest.mark.parametrize("name", ["decide", "cgroup_tree", "rank"])
def test_a_question_is_answered_in_under_ten_lines(name: str) -> None:
    (program,) = (block for block in PROGRAMS if f"import {name}" in block or f", {name}\n" in block)
    assert printed(program)
    assert len([line for line in program.splitlines() if line and not line.startswith("#")]) < 10


def shell(script: str, directory: Path, status: int = 0) -> str:
    run = subprocess.run(
        ["sh", "-ec", script],
        cwd=directory, env=environment(), check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.returncode == status, f"{script}\n{run.stdout}\n{run.stderr}"
    return run.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a kubectl on PATH that answers for a made-up cluster."""
    program = tmp_path / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.slow
@pytest.mark.usefixtures("kubectl")
def test_the_first_plan_is_walked(tmp_path: Path) -> None:
    made_up, taken, *questions = blocks(TUTORIALS / "first-plan.md", "sh")
    output = "".join(shell(block, tmp_path) for block in (taken, made_up, *questions))
    for word in ("preempt", "only-a:victim", "admits", "stays"):
        assert word in output
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert (tmp_path / "victims.csv").read_text().count("\n") > 10


NODES = "sn,cpu_milli,memory_mib,gpu,model\nnode-a,32000,65536,2,T4\nnode-b,32000,65536,0,\n"
WORDS = ("calm", "relieved", "collect", "lint", "the same under both")
PODS = "name,cpu_milli,memory_mib,num_gpu,qos,creation_time,deletion_time\ntrainer,4000,8192,1,LS,10,20\n"


@pytest.mark.slow
@pytest.mark.usefixtures("kubectl")
def test_every_question_on_the_planning_page_is_answered(tmp_path: Path) -> None:
    """In its order, of a made-up cluster, and of one in tables."""
    page = ROOT / "docs/plan.md"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "plan.yaml").write_text("".join(blocks(page, "yaml")))
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    # tests/plan/live/test_cluster.py asks a running cluster, by a context and as a kubectl plugin, and
    # tests/plan/use/test_rightsize_page.py a Prometheus.
    made_up, live, _context, _plugin, _use, convert, questions, _sizes, scenarios, tables = blocks(page, "sh")
    assert "preempt" in shell(made_up, tmp_path)
    shell(live, tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 1000
    shell(convert, tmp_path)
    shell("kubengine plan synth --nodes 5 --pods-per-node 30 -o cluster.kes", tmp_path)
    output = shell(questions, tmp_path)
    assert [word for word in WORDS if word not in output] == []
    (tmp_path / "report.html").unlink()
    shell(scenarios, tmp_path, status=1)
    assert (tmp_path / "report.html").stat().st_size > 1000
    shell(tables, tmp_path)
    *_, devices = blocks(ROOT / "docs/how-to/gpu-node.md", "sh")
    shell(f"mv trace.kes cluster.kes\n{devices}", tmp_path)


@pytest.mark.slow
def test_the_page_about_a_rollout_is_walked(tmp_path: Path) -> None:
    page = ROOT / "docs/how-to/rollout.md"
    (tmp_path / "next.yaml").write_text("".join(blocks(page, "yaml")))
    shell("kubengine plan synth --nodes 3 --pods-per-node 40 --seed 7 -o cluster.kes", tmp_path)
    _snapshot, asked, files, pipeline = blocks(page, "sh")
    output = shell(asked, tmp_path)
    shown, _of_a_kubelets_node = blocks(page, "text")
    assert [line for line in shown.splitlines() if line != "…" and line not in output] == []
    shell(files, tmp_path)
    assert (tmp_path / "rollout.html").stat().st_size > 1000
    assert '"affected"' in shell(pipeline, tmp_path, status=1)


@pytest.mark.slow
def test_the_first_node_is_walked(tmp_path: Path) -> None:
    pod, config, start, look, *questions, preempt, another, gone = blocks(TUTORIALS / "first-node.md", "sh")
    shell(pod, tmp_path)
    shell(config, tmp_path)
    with subprocess.Popen(
        ["sh", "-ec", f"exec {start}"], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as agent:

        def shown() -> str:
            run = subprocess.run(
                ["sh", "-ec", look],
                cwd=tmp_path,
                env=environment(),
                check=False,
                capture_output=True,
                text=True,
            )
            return run.stdout

        try:
            wait_until(lambda: "Running" in shown() or agent.poll() is not None)
            assert "default/web-first  Burstable  Running" in shown()
            for question in questions:
                assert "default/web-first" in shell(question, tmp_path)
            assert "default/pod is rejected" in shell(preempt, tmp_path, status=3)
            shell(another, tmp_path)
            wait_until(lambda: shown().count("Running") == 2 or agent.poll() is not None)
            shell(gone, tmp_path)
            wait_until(lambda: "web-first" not in shown() or agent.poll() is not None)
            assert "default/cache-first" in shown()
        finally:
            agent.send_signal(signal.SIGTERM)
        _, errors = agent.communicate(timeout=240)
    assert agent.returncode == 0, errors
