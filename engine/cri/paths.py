"""Where a kubelet has what belongs to pods: their logs, the links to these, their volumes. Pure.

<pod logs>/<namespace>_<name>_<uid>/<container>/<attempt>.log      written by the runtime
/var/log/containers/<pod>_<namespace>_<container>-<id>.log         a link to it, for log shippers
<root>/pods/<uid>/volumes/<plugin>/<volume>                        written by the agent
<root>/pods/<uid>/containers/<container>/<attempt>                 a container's last words
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.api.pod import Pod

POD_LOGS: Final = Path("/var/log/pods")
CONTAINER_LOGS: Final = Path("/var/log/containers")

EMPTY_DIR: Final = "kubernetes.io~empty-dir"
DOWNWARD_API: Final = "kubernetes.io~downward-api"
PROJECTED: Final = "kubernetes.io~projected"
CONFIG_MAP: Final = "kubernetes.io~configmap"
LOCAL_VOLUME: Final = "kubernetes.io~local-volume"
SECRETS: Final = "kubernetes.io~secret"

_LOG = re.compile(r"(\d{1,9})\.log(\..*)?", re.ASCII)


def pod_log_directory(pod_logs: Path, pod: Pod) -> Path:
    meta = pod.metadata
    return pod_logs / f"{meta.namespace or 'default'}_{meta.name}_{meta.uid}"


def pod_of_log_directory(directory: Path) -> str:
    """Return the uid of the pod whose logs are in the directory."""
    return directory.name.rpartition("_")[2]


def container_log(container: str, attempt: int) -> str:
    """Return the path of a log below the pod's log directory."""
    return f"{container}/{attempt}.log"


def logged_attempts(names: Iterable[str]) -> list[int]:
    """Return the attempts of a container that have files, rotated or not, in its log directory."""
    return [int(match[1]) for name in names if (match := _LOG.fullmatch(name))]


def log_link(namespace: str, pod: str, container: str, container_id: str) -> Path:
    return CONTAINER_LOGS / f"{pod}_{namespace}_{container}-{container_id}.log"


def links_of(container_id: str) -> str:
    """Return a pattern for the names of all links to a container's log."""
    return f"*-{container_id}.log"


def container_of_link(link: Path) -> str:
    """Return the id of the container that a log link belongs to."""
    return link.name.removesuffix(".log").rpartition("-")[2]


def pods_directory(root: Path) -> Path:
    return root / "pods"


def pod_directory(root: Path, uid: str) -> Path:
    return pods_directory(root) / uid


def volume_path(pod_directory: Path, plugin: str, volume: str) -> Path:
    return pod_directory.joinpath("volumes", plugin, volume)


def hosts_path(pod_directory: Path) -> Path:
    """Return the path of the file that is /etc/hosts in a pod's containers."""
    return pod_directory / "etc-hosts"


def project_record(volume: Path) -> Path:
    """Return the path of the record that names a volume's quota project."""
    return volume.parents[2] / "plugins" / volume.parent.name / volume.name / "project"


def termination_message_path(pod_directory: Path, container: str, attempt: int) -> Path:
    return pod_directory.joinpath("containers", container, str(attempt))
