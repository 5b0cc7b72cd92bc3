"""Every command line in the documents is run, on nodes that are started as the documents say."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from engine.testing.pytest_plugin import remove_cgroup
from tests.project.documented_nodes import STAY, Outcome
from tests.project.shown import DOCUMENTS, IDS, ROOT, command_lines

HERE = Path(__file__).parent
WALKED = {
    "docs/tutorial/first-node.md",
    "docs/tutorial/first-plan.md",
    "docs/plan.md",
    "docs/how-to/rightsize.md",
    "docs/how-to/rollout.md",
}
"""By `test_samples.py`, from the first block to the last."""

HELD = {
    "git clone <this repository>": "the checkout that is tested has been made",
    "apt install ": "changes the machine; `make system-packages` installs these",
    "kubeadm ": "makes clusters, from images of Kubernetes that tests do not have",
    "pip install 'kubengine[plan]' jupyterlab": "installs much; tests/plan/test_notebook.py runs the cells",
    "pip install --no-deps dist/": "of a wheel that `make dist` built; test_packages.py installs one",
    "kubengine plan devices --resource nvidia.com/gpu": "a synthetic cluster has no GPUs",
    "kubectl get nodes -o wide": "of a cluster that kubeadm made",
    "kubectl get pods,resourceclaims": "of a cluster with a scheduler and a DRA driver",
    "kubectl logs trainer -c main": "of a cluster with a scheduler and a DRA driver",
    "kubelet --version": "is the package's alternative, which test_package.py runs",
    "systemctl restart kubelet": "needs systemd and kubeadm's unit",
    "systemctl disable ": "needs systemd and a kubelet; `test_unit.py` has both agents' units under systemd",
    "kubengine bench node ": "measures for minutes, beside a kubelet; tests/bench runs it on few pods",
    "kubengine bench density ": "needs a cluster; tests/bench plays it on the test API server",
    "kubengine bench scale": "measures for minutes; tests/bench runs it on few pods",
    "PATH=$PWD/shims:$PATH ginkgo ": "needs the kubelet's own test suite, and hours",
    "e2e_node.test ": "needs the kubelet's own test suite",
    "ginkgo --procs=4 ": "needs a cluster, Kubernetes' cluster suite, and an hour",
    "unshare --user ": "needs a delegated subtree of cgroup v2; tests/node/rootless runs its like in one",
    "kubengine probes bench ": "a thousand probes a second, all in time; tests/probes sends it fewer",
    "kubengine shadow ": "needs a kubelet; tests/shadow runs it next to one",
    "kubengine why ": "needs a pod that was restarted or evicted; tests/record ask about such pods",
    "kubengine plan replay ": "needs records of nodes; tests/plan/replay/test_replay.py plays one",
    "kubengine takeover --check": "needs a kubelet; tests/shadow runs it next to one",
    "qemu-system-x86_64 ": "needs an image with the kubelet's test suite, and hours",
    "strace -f -c -p ": "of an agent that starts pods meanwhile",
    "crictl ": "Debian has none; tests/containers make its calls",
    "export CONTAINER_RUNTIME_ENDPOINT=": "for crictl",
}
"""Lines by their beginnings, held only to the commands' options (`test_documented_options.py`), and why."""


def shown() -> dict[str, list[str]]:
    """By document, each line once."""
    found = {name: command_lines(path) for path, name in zip(DOCUMENTS, IDS, strict=True)}
    return {name: list(dict.fromkeys(lines)) for name, lines in found.items() if name not in WALKED}


def is_held(line: str) -> bool:
    return line.startswith(tuple(HELD))


def test_commands_that_are_not_run_exist_in_a_document() -> None:
    lines = [line for of_one in shown().values() for line in of_one]
    assert [start for start in HELD if not any(line.startswith(start) for line in lines)] == []
    assert [line for line in STAY if line not in lines] == []


@pytest.mark.root
@pytest.mark.containerd
@pytest.mark.slow
def test_every_other_line_is_run(tmp_path: Path) -> None:
    lines = [line for of_one in shown().values() for line in of_one if not is_held(line) and line not in STAY]
    name = f"kubengine-test-{secrets.token_hex(4)}"
    command: list[str | Path] = [
        "sh",
        HERE / "private_system.sh",
        name,
        tmp_path,
        sys.executable,
        HERE / "documented_nodes.py",
    ]
    try:
        run = subprocess.run(
            [*command, tmp_path / "outcomes.json"],
            input=json.dumps(list(dict.fromkeys(lines))), cwd=tmp_path, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    finally:
        remove_cgroup(f"/{name}")
    log = tmp_path / "desk/started.log"
    assert run.returncode == 0, run.stdout + (log.read_text() if log.exists() else "")
    outcomes = [Outcome(**each) for each in json.loads((tmp_path / "outcomes.json").read_text())]
    assert set(lines) - {each.line for each in outcomes} == set()
    assert [each for each in outcomes if each.status != 0] == []
    assert [each.line for each in outcomes if "Traceback" in each.errors] == []
