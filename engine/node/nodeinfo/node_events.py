"""Emits the node's own events: the start of the agent, a reboot, changed conditions.

Reasons and texts: kubelet v1.36 (`nodestatus` setters, `kubelet_node_status`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.api.errors import Refused
from engine.api.events import NORMAL, WARNING, EventRecorder
from engine.api.node import NodeCondition
from engine.cgroups.formulas.names import to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.host.checksummed_file import read_checksummed, write_checksummed

log = logging.getLogger("kubengine.node")

CGROUP_V1: Final = (
    "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. "
    "Please migrate to cgroup v2. More information at "
    "https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"
)
_REASONS: Final = {
    "MemoryPressure": {"True": "NodeHasInsufficientMemory", "False": "NodeHasSufficientMemory"},
    "DiskPressure": {"True": "NodeHasDiskPressure", "False": "NodeHasNoDiskPressure"},
    "PIDPressure": {"True": "NodeHasInsufficientPID", "False": "NodeHasSufficientPID"},
    "Ready": {"True": "NodeReady", "False": "NodeNotReady"},
}


class NodeEvents:
    """Emit each change of a condition once, and the current ones at first. `record` stores the
    last boot id.
    """

    def __init__(self, recorder: EventRecorder, node: str, record: Path) -> None:
        self._recorder = recorder
        self._node = node
        self._record = record
        self._seen: dict[str, str] = {}
        self._unschedulable = False

    def started(self, boot_id: str) -> None:
        """Report the start, and a reboot. If the boot id cannot be read or stored, the agent logs that and
        starts.
        """
        self._recorder.node(NORMAL, "Starting", "Starting kubelet.")
        try:
            known = read_checksummed(
                self._record, bytes.decode, without="it is unknown whether the machine was rebooted"
            )
            if known == boot_id:
                return
            # Without a record this is the first start on the machine, or one after a loss: no reboot is
            # known.
            if known:
                text = f"Node {self._node} has been rebooted, boot id: {boot_id}"
                self._recorder.node(WARNING, "Rebooted", text)
            write_checksummed(self._record, boot_id.encode())
        except Refused as error:
            log.warning("%s", error)

    def enforced(self, settings: CgroupSettings) -> None:
        """Report that node allocatable and the reservations are enforced."""
        if not settings.containers.cgroup_v2:
            self._recorder.node(WARNING, "CgroupV1", CGROUP_V1)
        enforced = [
            f"Updated limits on {group.kind.replace('-', ' ')} cgroup {to_path(group.name, settings.driver)}"
            for group in settings.reserved_groups
        ]
        for text in ("Updated Node Allocatable limit across pods", *enforced):
            self._recorder.node(NORMAL, "NodeAllocatableEnforced", text)

    def report_schedulable(self, *, unschedulable: bool) -> None:
        """Report whether the Node is cordoned, according to the API server."""
        # A new agent takes the Node for schedulable, and so reports a cordoned one once after its start.
        if unschedulable is self._unschedulable:
            return
        self._unschedulable = unschedulable
        reason = "NodeNotSchedulable" if unschedulable else "NodeSchedulable"
        self._recorder.node(NORMAL, reason, f"Node {self._node} status is now: {reason}")

    def report_conditions(self, conditions: Iterable[NodeCondition]) -> None:
        for condition in conditions:
            reason = _REASONS.get(condition.type, {}).get(condition.status)
            if reason is None or self._seen.get(condition.type) == condition.status:
                continue
            self._seen[condition.type] = condition.status
            self._recorder.node(NORMAL, reason, f"Node {self._node} status is now: {reason}")
