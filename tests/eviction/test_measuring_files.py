"""What of a pod's files is measured, and as what it counts."""

from __future__ import annotations

from pathlib import Path

from engine.api.meta import ObjectMeta
from engine.api.pod import Container, EmptyDirVolume, Pod, PodSpec, Volume
from engine.api.references import ConfigMapVolume, SecretVolume
from engine.eviction.local_storage import usage_of_pod
from engine.eviction.measure import PodMeter
from engine.eviction.usage import Disk
from engine.host.trees import disk_usage
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
