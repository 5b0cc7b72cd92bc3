"""The private containerd runs a pod, can use a small file system, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from engine.testing.containerd import Containerd, mounts_below
from engine.wire import cri_v1_pb2 as cri
from engine.wire import cri_v1_pb2_grpc as cri_grpc

pytestmark = [pytest.mark.containerd, pytest.mark.root]


def test_it_leaves_nothing_behind(tmp_path: Path, busybox_archive: Path, private_cgroup_root: str) -> None:
    with Containerd(tmp_path, image_filesystem_mb=48) as containerd:
        containerd.import_image(busybox_archive)
        capacity = os.statvfs(containerd.root)
        assert 30 << 20 < capacity.f_blocks * capacity.f_frsize < 48 << 20
        with grpc.insecure_channel(f"unix://{containerd.socket}") as channel:
            stub = cri_grpc.RuntimeServiceStub(channel)
            config = cri.PodSandboxConfig(
                metadata=cri.PodSandboxMetadata(name="a", uid="u", namespace="d"),
                linux=cri.LinuxPodSandboxConfig(cgroup_parent=private_cgroup_root),
            )
            pod = stub.RunPodSandbox(cri.RunPodSandboxRequest(config=config)).pod_sandbox_id
            created = stub.CreateContainer(
                cri.CreateContainerRequest(
                    pod_sandbox_id=pod,
                    sandbox_config=config,
                    config=cri.ContainerConfig(
                        metadata=cri.ContainerMetadata(name="c"),
                        image=cri.ImageSpec(image="busybox"),
                        command=["/bin/sleep", "1000"],
                    ),
                )
            ).container_id
            stub.StartContainer(cri.StartContainerRequest(container_id=created))
        containerd.kill()
        containerd.start()
        shims = _processes_with(str(containerd.socket))
        assert shims
    assert not _processes_with(str(containerd.socket))
    assert not mounts_below(containerd.state, containerd.directory)
    assert not containerd.state.exists()
    assert not containerd.directory.exists()
    assert not Path("/sys/class/net", containerd.bridge).exists()


def _processes_with(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(words[0].decode())
    return found
