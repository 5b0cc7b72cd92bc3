"""Convert Events of the kubelet and events of the runtime into rows of a record. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from engine.api.meta import ObjectMeta
from engine.cri import labels
from engine.cri.records import pod_of
from engine.record.blocks import RecordRow
from engine.wire import cri_v1_pb2 as cri

EVENT: Final = "event"
RUNTIME: Final = "runtime"
NANO: Final = 1e-9
_HAPPENED: Final = {
    cri.CONTAINER_CREATED_EVENT: "created",
    cri.CONTAINER_STARTED_EVENT: "started",
    cri.CONTAINER_STOPPED_EVENT: "stopped",
    cri.CONTAINER_DELETED_EVENT: "deleted",
}


class _Involved(msgspec.Struct, rename="camel"):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""


class _Source(msgspec.Struct):
    component: str = ""
    host: str = ""


class ClusterEvent(msgspec.Struct, rename="camel"):
    """Hold the fields of a v1 Event that a record stores."""

    metadata: ObjectMeta
    involved_object: _Involved
    reason: str = ""
    message: str = ""
    source: _Source | None = None
    reporting_instance: str = ""
    count: int | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def node(self) -> str:
        """Return the name of the node whose kubelet reported the Event."""
        return self.reporting_instance or (self.source.host if self.source is not None else "")


def cluster_row(event: ClusterEvent, now: float) -> RecordRow:
    """Return the row of an Event. Its time is `now` (Unix seconds) if the Event has none."""
    about = event.involved_object
    at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    inputs: dict[str, Any] = {} if (event.count or 1) == 1 else {"count": event.count}
    is_pod = about.kind == "Pod"
    if not is_pod:
        inputs["object"] = f"{about.kind} {about.name}"
    return RecordRow(
        time=at.timestamp() if at is not None else now,
        stream=EVENT,
        name=event.reason,
        text=event.message,
        pod=f"{about.namespace}/{about.name}" if is_pod else "",
        uid=about.uid if is_pod else "",
        container=about.field_path.partition("{")[2].rstrip("}"),
        inputs=inputs,
    )


def runtime_row(event: cri.ContainerEventResponse) -> RecordRow | None:
    """Return the row of an event of a container or sandbox; None if no kubelet created its pod."""
    sandbox = event.pod_sandbox_status
    identity = pod_of(sandbox.labels)
    if identity is None:
        return None
    uid, name, namespace = identity
    status = next((one for one in event.containers_statuses if one.id == event.container_id), None)
    kind = "sandbox" if event.container_id == sandbox.id else "container"
    text, container = "", ""
    if status is not None:
        container = status.labels.get(labels.CONTAINER_NAME, status.metadata.name)
        if status.state == cri.CONTAINER_EXITED:
            text = f"{status.reason or 'it ended'} with exit code {status.exit_code}"
    return RecordRow(
        time=event.created_at * NANO,
        stream=RUNTIME,
        name=f"{kind} {_HAPPENED.get(event.container_event_type, 'changed')}",
        text=text,
        pod=f"{namespace}/{name}",
        uid=uid,
        container=container,
        inputs={"id": event.container_id},
    )
