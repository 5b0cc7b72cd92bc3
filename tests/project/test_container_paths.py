"""Paths that containers can touch go through engine.host.safe_open, .trees and .published, and nothing else.

Walks and removals of trees by path are searched in the whole package; touching any file by its path, in the
files that have to do with what containers can reach. Each exception stands here with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "engine"

WALKS = {"rmtree", "walk", "fwalk", "rglob", "copytree", "removedirs"}
MAY_WALK = {
    "cli/agent/kubelet_config.py": "the configuration directory that the user names",
    "bench/workload.py": "logs of the bench's own pods, on the user's word",
    "bench/workspace.py": "the bench's own directory and cgroups",
    "plan/reading/sources.py": "snapshots that the user names",
    "runtime/hierarchy.py": "/dev as the user names it",
    "runtime/shim/cgroup.py": "cgroupfs",
    "runtime/shim/flatten.py": "layers that were checked when they were unpacked, before any container runs",
    "runtime/shim/rootfs.py": "/dev and the CDI directories of the host",
    "testing/containerd.py": "a private containerd of the tests",
    "testing/pytest_plugin.py": "cgroupfs",
    "testing/uml.py": "a directory of the tests",
}

TOUCHES = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "makedirs", "unlink"),
    *(
        "remove",
        "rmdir",
        "rename",
        "replace",
        "chmod",
        "chown",
        "lchown",
        "symlink_to",
        "hardlink_to",
        "link",
    ),
    *("resolve", "realpath", "stat", "exists", "is_dir", "is_file", "is_mount", "iterdir", "glob", "listdir"),
    *("scandir", "copyfile", "copy", "move", "readlink", "utime", "truncate"),
}
REACHABLE = (
    "node/volumes/*.py",
    "csi/devices.py",
    "csi/file_systems.py",
    "csi/mounting.py",
    "csi/on_disk.py",
    "host/shared_trees.py",
    "node/sync/termination_message.py",
    "node/logs/log_rotation.py",
    "eviction/measure.py",
    "containers/manager.py",
)
AGENTS_OWN = "a directory of the agent's above the volumes, which no container sees"
VERIFIED = "inside a directory that is held by descriptor"
MAY_TOUCH = {
    ("node/volumes/pod_volumes.py", "mkdir"): f"{AGENTS_OWN}; a hostPath, which the host's owner names",
    (
        "node/volumes/pod_volumes.py",
        "open",
    ): "a hostPath: the host's owner names it; trusted as the kubelet does",
    ("node/volumes/pod_volumes.py", "stat"): "the same",
    ("node/volumes/pod_volumes.py", "is_dir"): AGENTS_OWN,
    ("node/volumes/pod_volumes.py", "iterdir"): AGENTS_OWN,
    ("node/volumes/container_files.py", "mkdir"): AGENTS_OWN,
    ("node/volumes/container_files.py", "unlink"): AGENTS_OWN,
    ("node/volumes/container_files.py", "open"): f"{AGENTS_OWN}; O_EXCL",
    ("node/volumes/container_files.py", "read_bytes"): "the host's own /etc/hosts",
    ("node/volumes/empty_dir.py", "mkdir"): AGENTS_OWN,
    ("node/volumes/empty_dir.py", "exists"): AGENTS_OWN,
    ("node/volumes/empty_dir.py", "is_dir"): f"{AGENTS_OWN}; the volume's own name, which none can replace",
    ("node/volumes/empty_dir.py", "touch"): AGENTS_OWN,
    ("node/volumes/empty_dir.py", "chmod"): "the new volume, before any container has it; or a descriptor",
    ("node/volumes/empty_dir.py", "chown"): VERIFIED,
    ("node/volumes/csi_storage.py", "exists"): AGENTS_OWN,
    ("node/volumes/block_device.py", "glob"): AGENTS_OWN,
    (
        "node/volumes/block_device.py",
        "realpath",
    ): "the host's owner names this path; trusted as the kubelet does",
    ("node/volumes/block_device.py", "stat"): "the same",
    ("node/volumes/block_device.py", "mkdir"): AGENTS_OWN,
    ("node/volumes/block_device.py", "unlink"): AGENTS_OWN,
    ("node/volumes/block_device.py", "symlink_to"): AGENTS_OWN,
    ("node/volumes/block_device.py", "exists"): AGENTS_OWN,
    ("node/volumes/block_device.py", "listdir"): AGENTS_OWN,
    ("node/volumes/intree_storage.py", "exists"): AGENTS_OWN,
    ("node/volumes/local_devices.py", "exists"): AGENTS_OWN,
    ("node/volumes/local_devices.py", "listdir"): AGENTS_OWN,
    ("node/volumes/local_devices.py", "mkdir"): AGENTS_OWN,
    ("node/volumes/local_devices.py", "stat"): "the host's owner names this path",
    ("node/volumes/pod_volumes.py", "exists"): AGENTS_OWN,
    ("node/volumes/pod_volumes.py", "listdir"): AGENTS_OWN,
    ("node/volumes/project_ids.py", "glob"): AGENTS_OWN,
    ("node/volumes/project_ids.py", "read_text"): "the host's own /etc/projects and /etc/projid",
    ("node/volumes/project_ids.py", "replace"): "of a text",
    ("node/volumes/project_ids.py", "stat"): "the new volume, before any container has it",
    ("node/volumes/volume_counts.py", "replace"): "of a text",
    ("host/shared_trees.py", "chown"): "beneath a directory held by descriptor, links themselves",
    ("host/shared_trees.py", "chmod"): VERIFIED,
    ("csi/devices.py", "readlink"): VERIFIED,
    ("csi/devices.py", "rmdir"): AGENTS_OWN,
    ("csi/devices.py", "stat"): "a driver's file or link to a device, which no container sees",
    ("csi/devices.py", "unlink"): VERIFIED,
    ("csi/file_systems.py", "rmdir"): AGENTS_OWN,
    ("csi/file_systems.py", "unlink"): VERIFIED,
    ("csi/on_disk.py", "iterdir"): AGENTS_OWN,
    ("node/volumes/local.py", "open"): "the host's owner names this path; trusted as the kubelet does",
    ("node/volumes/local.py", "mkdir"): AGENTS_OWN,
    ("node/volumes/local.py", "glob"): AGENTS_OWN,
    ("node/volumes/sub_path.py", "open"): "the volume's own top, by handle; the agent's volume-subpaths",
    ("node/volumes/sub_path.py", "readlink"): "a hint only: the path found is opened with no link allowed",
    ("node/volumes/sub_path.py", "mkdir"): AGENTS_OWN,
    ("node/volumes/sub_path.py", "rmdir"): AGENTS_OWN,
    ("node/volumes/sub_path.py", "unlink"): AGENTS_OWN,
    ("node/volumes/sub_path.py", "touch"): AGENTS_OWN,
    ("node/logs/log_rotation.py", "open"): "gzip, into a file that is open",
    ("node/logs/log_rotation.py", "rename"): VERIFIED,
    ("node/logs/log_rotation.py", "unlink"): VERIFIED,
    ("node/logs/log_rotation.py", "glob"): VERIFIED,
    ("containers/manager.py", "glob"): f"{VERIFIED}; the links in /var/log/containers",
    ("containers/manager.py", "unlink"): f"{VERIFIED}; the links in /var/log/containers",
    ("containers/manager.py", "exists"): "only whether a log link of the agent's dangles",
    ("containers/manager.py", "iterdir"): "names of pods' log directories",
    ("containers/manager.py", "is_dir"): "the directory of all pods' logs",
}


def words(path: Path) -> Iterator[str]:
    """Yield every attribute name in a file, and `open`."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name) and node.id == "open":
            yield node.id


def test_trees_are_walked_and_removed_in_one_package() -> None:
    found = {
        str(path.relative_to(ENGINE))
        for path in ENGINE.rglob("*.py")
        if "wire" not in path.parts and WALKS & set(words(path))
    }
    assert found - MAY_WALK.keys() == set(), "use engine.host.trees, or list the exception here"
    assert MAY_WALK.keys() - found == set(), "an exception that nothing needs"


def test_paths_that_containers_reach_are_opened_by_descriptor() -> None:
    found = {
        (str(path.relative_to(ENGINE)), call)
        for pattern in REACHABLE
        for path in ENGINE.glob(pattern)
        for call in TOUCHES & set(words(path))
    }
    assert found - MAY_TOUCH.keys() == set(), "use engine.host.safe_open, or list the exception here"
    assert MAY_TOUCH.keys() - found == set(), "an exception that nothing needs"
