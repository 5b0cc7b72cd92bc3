"""Write static pods of a node in a machine, wait for them, and read their cgroups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.testing.images import BUSYBOX_TAG
from tests.system.vm.image import SHARE
from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import LONG, MANIFESTS, PORT

WAIT = "trap 'exit 0' TERM; while true; do sleep 1; done"
CGROUPS = "/sys/fs/cgroup"


def pod(
    name: str, resources: Mapping[str, Any] | None = None, *, script: str = WAIT, **spec: Any
) -> dict[str, Any]:
    """Return a pod with one container, `c`, which sees the machine's /var/tmp as /host.

    `spec` holds further fields of the pod's spec.
    """
    container = {
        "name": "c",
        "image": BUSYBOX_TAG,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": resources or {},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    volumes = [{"name": "host", "hostPath": {"path": "/var/tmp"}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes} | spec,
    }


def equal(**amounts: str) -> dict[str, Any]:
    """Return requests and limits of the same amounts."""
    return {"requests": amounts, "limits": amounts}


GUARANTEED = pod("guaranteed", equal(cpu="100m", memory="32Mi"))
BURSTABLE = pod("burstable", {"requests": {"cpu": "100m", "memory": "32Mi"}})
BEST_EFFORT = pod("besteffort")
USUAL = (GUARANTEED, BURSTABLE, BEST_EFFORT)


def write_pods(machine: Machine, pods: tuple[dict[str, Any], ...] = USUAL) -> None:
    """Make these the only pods of the node."""
    for path in (machine.share / "manifests").glob("*"):
        path.unlink()
    (machine.share / "manifests").mkdir(exist_ok=True)
    for manifest in pods:
        name = f"{manifest['metadata']['name']}.yaml"
        (machine.share / "manifests" / name).write_text(json.dumps(manifest))
    # Each file is put in place by one rename, and left alone where it is the same already.
    machine.check(f"""cd {SHARE}/manifests
        for f in $(ls {MANIFESTS}); do [ -e $f ] || rm {MANIFESTS}/$f; done
        for f in $(ls); do
            cmp -s $f {MANIFESTS}/$f && continue
            cp $f {MANIFESTS}/.$f && mv {MANIFESTS}/.$f {MANIFESTS}/$f || exit 1
        done""")


def shown(machine: Machine) -> list[dict[str, Any]]:
    """Return the pods of the agent that runs, ours or a kubelet; none while it does not answer."""
    answer = machine.run(f"curl -s --max-time 60 http://127.0.0.1:{PORT}/pods", LONG)
    return json.loads(answer.output)["items"] or [] if answer.code == 0 else []


def containers(machine: Machine) -> dict[str, str]:
    """Return the id of each pod's running and ready container, by the manifest's name."""
    return {
        pod["metadata"]["name"].removesuffix("-vm"): status["containerID"].removeprefix("containerd://")
        for pod in shown(machine)
        for status in pod["status"].get("containerStatuses", [])
        if "running" in status["state"] and status["ready"]
    }


def wait_for_pods(
    machine: Machine,
    pods: tuple[dict[str, Any], ...] = USUAL,
    *,
    other_than: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Wait until these pods, and no others, are ready, in other containers than `other_than`, and return
    their containers."""
    before = other_than or {}
    names = {manifest["metadata"]["name"] for manifest in pods}
    now: dict[str, str] = {}

    def ready() -> bool:
        nonlocal now
        now = containers(machine)
        return now.keys() == names and all(before.get(name) != now[name] for name in names)

    machine.until(ready, LONG, f"pods to be ready: {', '.join(sorted(names))}")
    return now


def group(machine: Machine, container: str) -> str:
    """Return the cgroup of a container, by its id."""
    found = machine.check(f"find {CGROUPS}/kubepods.slice -type d -name '*{container}*' | sort | head -1")
    return found.strip()


def value(machine: Machine, container: str, file: str) -> str:
    """Return what a file of the container's cgroup holds."""
    return machine.check(f"cat {group(machine, container)}/{file}").strip()
