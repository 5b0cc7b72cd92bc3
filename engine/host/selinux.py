"""Reads whether the kernel enforces SELinux labels, and which label the policy gives to containers' files.

Sources: selinux(8), selinux_lxc_contexts(5), and the container library of SELinux (`go-selinux`), which the
kubelet and the container runtimes use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from engine.host.mountinfo import covers, mounted

SELINUX_FS: Final = Path("/sys/fs/selinux")
_CONTEXTS: Final = Path("/usr/share/containers/selinux/contexts")
_CONFIG: Final = Path("/etc/selinux/config")
_OWN_LABEL: Final = Path("/proc/self/attr/current")
_NO_POLICY: Final = "kernel"
"""The label of every process until a policy is loaded."""
_MOST_BYTES: Final = 1 << 16


class SELinux(msgspec.Struct, frozen=True):
    """Hold the state of SELinux: `enabled` tells whether the kernel has a policy; `container_file` is the
    label `user:role:type:level` of containers' files, '' if the policy names none. With
    `labels_shared_volumes`, volumes that several pods may use are mounted with a label, too.
    """

    enabled: bool = False
    container_file: str = ""
    labels_shared_volumes: bool = False

    def file_label(self, *, user: str, level: str) -> str:
        """Return the label for the files of a container whose process has this user and level.

        A process's role and type do not change the label of files. Return '' without a level: the runtime
        then gives each container a level of its own, which is unknown until it runs.
        """
        parts = self.container_file.split(":", 3)
        if not self.enabled or not level or len(parts) < 3:
            return ""
        return ":".join((user or parts[0], parts[1], parts[2], level))


def mount_option(label: str) -> list[str]:
    """Return the option that mounts a file system with a label, or nothing without one.

    The quotes protect the commas in the label's level.
    """
    return [f'context="{label}"'] if label else []


def has_mount_label(directory: Path, label: str) -> bool:
    """Return whether a mount point's file system was mounted with this label. Raises `OSError`."""
    options = next((mount.options for mount in reversed(mounted()) if mount.point == str(directory)), ())
    # The kernel quotes a label with commas, which here separate it into several options.
    shown = f'context="{label}"' if "," in label else f"context={label}"
    return set(shown.split(",")) <= set(options)


def takes_labels(path: Path) -> bool:
    """Return whether files below `path` can be relabelled one by one. Raises `OSError`."""
    where = str(path.resolve())
    mounts = [mount for mount in mounted() if covers(mount.point, where)]
    return "seclabel" in max(mounts, key=lambda mount: len(mount.point)).options if mounts else False


def read_selinux(root: Path = Path("/")) -> SELinux:
    """Read the state of SELinux below `root`; whatever cannot be read counts as absent."""
    if not _is_enabled(root):
        return SELinux()
    return SELinux(True, _labels(root).get("file", ""))


def _is_enabled(root: Path) -> bool:
    """Tell whether labels may be set: a container sees the file system mounted read-only, and must not."""
    mount = _below(root, SELINUX_FS)
    try:
        if not (mount / "enforce").exists() or os.statvfs(mount).f_flag & os.ST_RDONLY:
            return False
        return _below(root, _OWN_LABEL).read_text().rstrip("\0\n") != _NO_POLICY
    except (OSError, ValueError):
        return False


def _labels(root: Path) -> dict[str, str]:
    """Return the default labels of containers. A distribution's container package overrides the policy."""
    kind = dict(_settings(_below(root, _CONFIG))).get("SELINUXTYPE", "")
    of_policy = _below(root, _CONFIG.parent / kind / "contexts" / "lxc_contexts")
    for path in (_below(root, _CONTEXTS), of_policy):
        if path.exists():
            return dict(_settings(path))
    return {}


def _settings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the `key = "value"` lines of a file."""
    text = ""
    with suppress(OSError, ValueError), path.open() as file:
        text = file.read(_MOST_BYTES)
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", ";")):
            yield key.strip(), value.strip().strip('"')


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
