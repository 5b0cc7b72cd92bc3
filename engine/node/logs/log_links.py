"""Links each container's log under the name that log shippers expect. Failures are ignored."""

from __future__ import annotations

import contextlib

from engine.api.pod import Container, Pod
from engine.cri.paths import log_link
from engine.cri.records import ContainerRecord, PodRecord
from engine.wire import cri_v1_pb2 as cri


def link_log(
    pod: Pod,
    container: Container,
    container_id: str,
    config: cri.ContainerConfig,
    sandbox: cri.PodSandboxConfig,
) -> None:
    meta = pod.metadata
    link = log_link(meta.namespace, meta.name, container.name, container_id)
    target = f"{sandbox.log_directory}/{config.log_path}"
    with contextlib.suppress(OSError):
        try:
            link.symlink_to(target)
        except FileNotFoundError:
            link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            link.symlink_to(target)


def remove_log_link(record: PodRecord, container: ContainerRecord) -> None:
    with contextlib.suppress(OSError):
        log_link(record.namespace, record.name, container.name, container.id).unlink(missing_ok=True)
