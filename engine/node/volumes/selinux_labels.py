"""Decides which volumes are mounted with an SELinux label, and which ones the runtime relabels file by file.

A mount option labels a whole file system at once; relabelling visits every file. A volume that a single pod
uses is mounted with that pod's label. A volume that several pods may use is mounted with a label only if the
gate `SELinuxMount` is on; its pods then need the same label. Pure. Source: KEP-1710 and kubelet v1.36 (gates
`SELinuxMountReadWriteOncePod` and `SELinuxChangePolicy`, both on).
"""

from __future__ import annotations

from typing import Final

from engine.api.errors import Refused
from engine.api.objects.storage import LocalVolume
from engine.api.pod import Pod, Volume
from engine.host.selinux import SELinux
from engine.node.spec.security import effective_security
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.claims import BoundVolume, is_read_only

RECURSIVE: Final = "Recursive"


def mount_label(pod: Pod, volume: Volume, bound: BoundVolume, selinux: SELinux) -> str:
    """Return the label to mount a pod's persistent volume with, '' to leave the labels to the runtime.

    Raises `Refused` if containers with different labels use a volume that would be mounted with a label.
    """
    if not selinux.enabled or bound.block or not (bound.for_one_pod or selinux.labels_shared_volumes):
        return ""
    labels = {
        selinux.file_label(user=options.user, level=options.level)
        for container in pod.every_container
        if any(mount.name == volume.name for mount in container.volume_mounts or [])
        and (options := effective_security(pod, container).se_linux_options) is not None
    }
    if len(labels) > 1:
        raise Refused(f"multiple SELinux labels found: {','.join(sorted(labels))}")
    context = pod.spec.security_context
    if context is not None and context.se_linux_change_policy == RECURSIVE:
        return ""
    return labels.pop() if labels else ""


def is_relabelled(volume: Volume, bound: BoundVolume | None) -> bool:
    """Return whether the runtime may relabel a volume that no driver provides: the agent's own files,
    emptyDir and local volumes, but never the host's files.
    """
    if is_agent_written(volume) or volume.empty_dir is not None:
        return True
    return bound is not None and isinstance(bound.source, LocalVolume) and not is_read_only(volume)
