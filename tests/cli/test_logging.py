"""The agent's log: its format, its level and its streams, and nothing that libraries read and send."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.agent.logging import JsonFormatter
from tests.waiting import PATIENCE, wait_until

UP = " is up; its socket is "
# fmt: off
KUBELET = (
    "--container-runtime-endpoint=hollow", "--port=0", "--healthz-port=0", "--read-only-port=0",
    "--cgroups-per-qos=false", "--enforce-node-allocatable=",
)
# fmt: on

SCRIPT = """
import logging
from engine.api.config import LoggingConfiguration
from engine.cli.agent.logging import begin_logging
begin_logging(LoggingConfiguration(verbosity=VERBOSITY))
logging.getLogger("kubengine.node").debug("ours")
logging.getLogger("hpack.hpack").debug("authorization: Bearer secret")
logging.getLogger("asyncio").warning("theirs")
"""


@pytest.mark.parametrize(("verbosity", "debugs"), [(0, False), (3, False), (4, True), (10, True)])
def test_the_verbosity_sets_the_level_and_libraries_only_warn(verbosity: int, debugs: bool) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("VERBOSITY", str(verbosity))],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ("DEBUG kubengine.node: ours" in run.stderr) == debugs
    assert "WARNING asyncio: theirs" in run.stderr
    assert "secret" not in run.stderr


def test_a_kubelets_log_is_one_json_object_per_line(tmp_path: Path) -> None:
    out, err = _agent(tmp_path, "kubelet", *KUBELET, "--vmodule=/x", "--logging-format=json", "-v=4")
    assert out == []
    lines = [json.loads(line) for line in err]
    for line in lines:
        assert line["ts"] > 1e12, "milliseconds since the epoch"
        assert isinstance(line["v"], int)
        assert line["logger"].startswith("kubengine.")
    assert "--vmodule has no effect" in lines[0]["msg"], "held until the format was known"
    assert any(UP in line["msg"] for line in lines)


def test_the_file_sets_format_and_streams(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
        "readOnlyPort: 0\nhealthzPort: 0\ncgroupsPerQOS: false\nenforceNodeAllocatable: []\n"
        "featureGates: {LoggingAlphaOptions: true}\n"
        "logging: {format: json, flushFrequency: 5s, verbosity: 4, options: {json: {splitStream: true}}}\n"
    )
    out, err = _agent(tmp_path, "run", f"--config={config}", "--runtime=hollow", f"--manifests={tmp_path}")
    assert any(UP in json.loads(line)["msg"] for line in out)
    assert all("v" not in json.loads(line) for line in err), "errors alone"


def test_an_exception_has_its_text_and_its_stack() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord(
            "kubengine.x", logging.ERROR, "x.py", 1, "it %s", ("failed",), sys.exc_info()
        )
    line = json.loads(JsonFormatter().format(record))
    assert (line["msg"], line["err"]) == ("it failed", "broken")
    assert "Traceback" in line["stacktrace"]
    assert "v" not in line


def _agent(root: Path, *arguments: str) -> tuple[list[str], list[str]]:
    """Run a node agent until it is up; return the lines of its standard output and standard error."""
    command = [sys.executable, "-m", "engine.cli", *arguments, f"--root-dir={root}/r"]
    out, err = root / "out", root / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        agent = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        try:
            wait_until(lambda: agent.poll() is not None or UP in out.read_text() + err.read_text())
        finally:
            agent.terminate()
            assert agent.wait(PATIENCE) == 0, err.read_text()
    return out.read_text().splitlines(), err.read_text().splitlines()
