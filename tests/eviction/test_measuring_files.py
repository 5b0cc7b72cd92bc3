"""What of a pod's files is measured, and as what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from engine.api.meta import ObjectMeta
from engine.api.pod import Container, EmptyDirVolume, Pod, PodSpec, Volume
from engine.api.references import ConfigMapVolume, SecretVolume
from engine.cri.client import RuntimeClient
from engine.cri.labels import CONTAINER_NAME, POD_UID
from engine.cri.paths import pod_log_directory
from engine.eviction.local_storage import usage_of_pod
from engine.eviction.measure import PodMeter
from engine.eviction.usage import ContainerUsage, Disk
from engine.host.trees import disk_usage
from engine.wire import cri_v1_pb2 as cri
from tests.laid_out_cgroups import laid_out


def written(path: Path, size: int = 1 << 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


async def test_ephemeral_storage_is_counted_as_by_a_kubelet(tmp_path: Path) -> None:
    volumes = [
        Volume(name="disk", empty_dir=EmptyDirVolume()),
        Volume(name="memory", empty_dir=EmptyDirVolume(medium="Memory")),
        Volume(name="map", config_map=ConfigMapVolume(name="m")),
        Volume(name="secret", secret=SecretVolume(secret_name="s")),
    ]
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u"),
        spec=PodSpec(containers=[Container(name="c")], volumes=volumes),
    )
    directory = tmp_path / "root/pods/u"
    hosts = written(directory / "etc-hosts", 1)
    for plugin, name in (
        ("empty-dir", "disk"), ("empty-dir", "memory"), ("configmap", "map"), ("secret", "secret"),
    ):  # fmt: skip
        written(directory / f"volumes/kubernetes.io~{plugin}/{name}/file")
    meter = PodMeter(
        pod_cgroup=lambda _: None,
        runtime=None,
        pod_logs_dir=tmp_path / "logs",
        root_dir=tmp_path / "root",
        mounts=laid_out(tmp_path),
    )
    usage = (await meter.whole([pod]))["u"]
    volume = Disk(*disk_usage(directory / "volumes/kubernetes.io~empty-dir/disk"))
    assert volume.bytes >= 1 << 16
    assert usage.volumes == {"disk": volume, "map": volume}
    assert usage.in_memory == {"memory": volume}
    assert usage.hosts == Disk(*disk_usage(hosts))
    assert usage.disk(("volumes",)).bytes == 2 * volume.bytes
    assert usage_of_pod(usage) == 2 * volume.bytes + usage.hosts.bytes


class Runtime:
    """Answer as containerd, which gives numbers of ended containers, too."""

    states: ClassVar = {"prepare": cri.CONTAINER_EXITED, "main": cri.CONTAINER_RUNNING}

    async def list_containers(self, filter: cri.ContainerFilter) -> list[cri.Container]:
        return [cri.Container(id=name) for name, state in self.states.items() if state == filter.state.state]

    async def list_container_stats(self) -> list[cri.ContainerStats]:
        return [
            cri.ContainerStats(
                attributes=cri.ContainerAttributes(id=name, labels={CONTAINER_NAME: name, POD_UID: "u"}),
                writable_layer=cri.FilesystemUsage(used_bytes=cri.UInt64Value(value=1 << 20)),
            )
            for name in self.states
        ]


async def test_layers_and_logs_of_ended_containers_do_not_count(tmp_path: Path) -> None:
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u"),
        spec=PodSpec(init_containers=[Container(name="prepare")], containers=[Container(name="main")]),
    )
    written(pod_log_directory(tmp_path / "logs", pod) / "prepare/0.log")
    logs = written(pod_log_directory(tmp_path / "logs", pod) / "main/0.log").parent
    meter = PodMeter(
        pod_cgroup=lambda _: None,
        runtime=cast(RuntimeClient, Runtime()),
        pod_logs_dir=tmp_path / "logs",
        root_dir=tmp_path / "root",
        mounts=laid_out(tmp_path),
    )
    usage = (await meter.whole([pod]))["u"]
    assert usage.containers == {"main": ContainerUsage(None, Disk(1 << 20), Disk(*disk_usage(logs)))}
