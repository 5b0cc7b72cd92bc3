"""Pods in a runtime as a kubelet leaves them: its uid, its labels, its annotations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.wire import cri_v1_pb2 as cri

UID = "6f1f0c1e8f5c4d0f9a3c52d7a4f00b17"

HASHES = {("c", "busybox:1"): "1aaabc84", ("side", "busybox:1"): "822a8c94"}
"""Name and image → what a kubelet v1.36 annotates."""


async def leave_pod(
    client: RuntimeClient,
    name: str,
    containers: Sequence[cri.ContainerConfig],
    *,
    logs: Path,
    uid: str = UID,
    source: str = "file",
    attempt: int = 0,
    cgroup_parent: str = "",
) -> tuple[str, list[str]]:
    """Run a pod of the default namespace; return the ids of its sandbox and its containers."""
    identity = {labels.POD_NAME: name, labels.POD_NAMESPACE: "default", labels.POD_UID: uid}
    directory = logs / f"default_{name}_{uid}"
    directory.mkdir(parents=True, exist_ok=True)
    sandbox = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace="default", attempt=attempt),
        hostname=name,
        log_directory=str(directory),
        labels=identity,
        annotations={
            "kubernetes.io/config.hash": uid,
            "kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z",
            "kubernetes.io/config.source": source,
        },
        linux=cri.LinuxPodSandboxConfig(cgroup_parent=cgroup_parent),
    )
    sandbox_id = await client.run_pod_sandbox(sandbox)
    ids = []
    for config in containers:
        (directory / config.metadata.name).mkdir(exist_ok=True)
        config.labels.update({**identity, labels.CONTAINER_NAME: config.metadata.name})
        ids.append(await client.create_container(sandbox_id, config, sandbox))
        await client.start_container(ids[-1])
    return sandbox_id, ids


def container_config(
    name: str = "c", image: str = "busybox:1", hash: str = "", **extra: str
) -> cri.ContainerConfig:
    """Return a container's configuration as a kubelet sends it; `extra` are annotations."""
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name),
        image=cri.ImageSpec(image=image, user_specified_image=image),
        log_path=f"{name}/0.log",
        annotations={
            labels.HASH: hash or HASHES[name, image],
            labels.RESTART_COUNT: "0",
            labels.MESSAGE_PATH: "/dev/termination-log",
            labels.MESSAGE_POLICY: "File",
            labels.POD_GRACE: "1",
            **extra,
        },
    )
