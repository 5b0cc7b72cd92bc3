"""The commands of docs/how-to/rightsize.md work one after another, with a real Prometheus."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plan.use import recorded
from tests.plan.use.recorded import Recording, prometheus
from tests.plan.use.sized_cluster import MI, SizedCluster

PAGE = (Path(__file__).parents[3] / "docs/how-to/rightsize.md").read_text()
COMMANDS = re.findall(r"^kubengine plan (.*)$", PAGE, re.MULTILINE)
SIZES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
HOURS = 26
NODES = ["worker-1", "worker-2", "worker-3"]

pytestmark = pytest.mark.skipif(bool(recorded.MISSING), reason=f"needs {', '.join(recorded.MISSING)}")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve the use of a small cluster, whose objects are in cluster.json."""
    cluster, recording = SizedCluster(), Recording()
    now = int(time.time()) // 60 * 60
    times = range(now - HOURS * 3600, now + 1, 60)
    for node in NODES:
        cluster.node(node)
    pods = cluster.pods("Deployment shop/web", NODES * 2, {"cpu": "1", "memory": "4Gi"})
    pods += cluster.pods("Deployment shop/reports", NODES[:1], {"cpu": "1", "memory": "4Gi"})
    for pod in pods:
        recording.container(pod, "app", times, [500.0 * MI] * len(times), [0.2] * len(times))
    cluster.write(tmp_path)
    (tmp_path / "sizes.yaml").write_text(SIZES)
    (tmp_path / "server").mkdir()
    with prometheus(tmp_path / "server", recording) as found:
        yield found


def test_the_page_from_snapshot_to_exit_status(
    address: str, run_plan: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ""
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        # The snapshot of a running cluster has tests of its own: here it is a file.
        here = command.replace("http://localhost:9090", address).replace(
            "--context production", "cluster.json"
        )
        done = run_plan(*shlex.split(here))
        assert done.returncode == 0, (command, done.stderr)
        said += done.stdout.decode()
    assert "fewer: the new requests need 1 of 3 nodes" in said
    assert "0 pods at risk" in said
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
