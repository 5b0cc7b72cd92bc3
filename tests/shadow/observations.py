"""Pods as a kubelet shows them, what a runtime holds of them, and observations of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.interface_files import FileRules
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.shadow.kinds.observation import MeasuredNode, Observation
from engine.shadow.machine_facts import MachineFacts

FACTS = MachineFacts(
    hardware={name: Quantity.parse(text) for name, text in
              {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "10Gi"}.items()},
    max_pids=1000,
    files=FileRules(2, huge_page_sizes=[], controllers=frozenset(["cpu", "memory", "pids"])),
)  # fmt: skip
BEGAN = "2026-01-01T00:00:0{}Z"


def pod(name: str, spec: Mapping[str, Any] | None = None, *, order: int = 0, **status: Any) -> Pod:
    """Return a pod of the API server that started as number `order`, with one container by default."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always", **(spec or {})},
        "status": {"phase": "Running", "startTime": BEGAN.format(order), **status},
    }
    return convert(document, Pod, name)


def requesting(**amounts: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts}}]}


def node(**allocatable: str) -> Node:
    amounts = {"cpu": "2", "memory": "1Gi", "pods": "10", **allocatable}
    document = {"metadata": {"name": "n1", "labels": {}}, "status": {"allocatable": amounts}}
    return convert(document, Node, "n1")


def ran(attempt: int, *, code: int | None = None, at: float = 0.0, name: str = "c") -> ContainerRecord:
    """Return a container that runs or, with a `code`, exited ten seconds after `at`."""
    return ContainerRecord(
        id=f"{name}-{attempt}",
        name=name,
        sandbox_id="s",
        state=RUNNING if code is None else EXITED,
        attempt=attempt,
        created_at=at,
        started_at=at,
        finished_at=0.0 if code is None else at + 10,
        exit_code=code or 0,
        reason="" if code is None else "Error" if code else "Completed",
    )


def record(of: Pod, *containers: ContainerRecord) -> PodRecord:
    """Return a runtime's record of a pod; the newest container comes first."""
    sandbox = SandboxRecord("s", ready=True, attempt=0, created_at=0.0, ips=("10.0.0.1",))
    return PodRecord(of.uid, of.metadata.name, "default", [sandbox], list(containers))


def observed(
    pods: Iterable[Pod],
    records: Iterable[PodRecord] = (),
    *,
    at: float = 1000.0,
    of: Node | None = None,
    config: KubeletConfiguration | None = None,
    use: MeasuredNode | None = None,
    node_known: bool = False,
) -> Observation:
    return Observation(
        at=at,
        now=at,
        config=config or KubeletConfiguration(),
        pods={one.uid: one for one in pods},
        records={one.uid: one for one in records},
        node=of or node(),
        node_known=node_known,
        use=use,
    )
