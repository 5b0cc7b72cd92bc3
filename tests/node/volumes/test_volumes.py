"""A pod's volumes on disk, and pods whose volumes and last words are traps, in a real agent."""

# ruff: noqa: PTH115, PTH208 - names are what is compared

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.api.events import WARNING
from engine.api.meta import ObjectMeta
from engine.api.objects.storage import LocalVolume
from engine.api.pod import (
    Container,
    DownwardAPIFile,
    DownwardAPIVolume,
    EmptyDirVolume,
    HostPathVolume,
    ObjectFieldSelector,
    Pod,
    PodSecurityContext,
    PodSpec,
    ProjectedVolume,
    ResourceRequirements,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from engine.api.quantity import Quantity
from engine.api.references import SecretVolume
from engine.cri.records import EXITED, ContainerRecord
from engine.host.atomic_writer import PublishedFile
from engine.host.mountinfo import mounts_below
from engine.host.mounts import unmount_below
from engine.node.controlplane.control_plane import NoCluster
from engine.node.sync.termination_message import read_messages, termination_message
from engine.node.volumes import PodVolumes, VolumeRefused
from engine.node.volumes.agent_written import is_agent_written, nested_mount_points
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.container_files import termination_message_file
from engine.node.volumes.contents import Contents, ContentSource
from engine.node.volumes.empty_dir import memory_size
from engine.node.volumes.pod_volumes import used_volumes
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import PATIENCE, eventually

SECRET = "the host's own"
ALLOCATABLE = {"memory": Quantity.parse("1Gi")}


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[PodVolumes]:
    yield PodVolumes(tmp_path / "root", lambda: 1_700_000_000.0)
    unmount_below(tmp_path)


def pod(*given: Volume, group: int | None = None, containers: Sequence[Container] = ()) -> Pod:
    """Return a pod with the volumes `given`, all of which its first container mounts."""
    first, *others = containers or [Container(name="c", image="i")]
    if first.volume_mounts is None:
        first.volume_mounts = [VolumeMount(name=v.name, mount_path=f"/{v.name}") for v in given]
    return Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u1", labels={"app": "web"}),
        spec=PodSpec(
            volumes=list(given),
            containers=[first, *others],
            security_context=PodSecurityContext(fs_group=group),
        ),
    )


def labels(mode: int | None = None, default: int | None = None) -> DownwardAPIVolume:
    item = DownwardAPIFile("labels", ObjectFieldSelector(field_path="metadata.labels"), mode=mode)
    return DownwardAPIVolume([item], default)


def set_up(volumes: PodVolumes, pod: Pod) -> dict[str, Path]:
    source = ContentSource(pod, NoCluster(dict), "1.2.3.4", ALLOCATABLE)

    async def contents() -> dict[str, Contents]:
        return {v.name: await source.of(v) for v in used_volumes(pod) if is_agent_written(v)}

    return volumes.set_up(pod, asyncio.run(contents()), allocatable=ALLOCATABLE)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(volumes: PodVolumes, pod: Pod) -> str:
    with pytest.raises(VolumeRefused) as caught:
        set_up(volumes, pod)
    return str(caught.value)


# emptyDir


def test_a_volume_that_no_container_mounts_is_not_set_up(volumes: PodVolumes, tmp_path: Path) -> None:
    one = pod(Volume("v", host_path=HostPathVolume(str(tmp_path / "none"), "Directory")))
    one.spec.containers[0].volume_mounts = None
    assert set_up(volumes, one) == {}
    made = {path.name: path.stat().st_mode & 0o777 for path in volumes.pod_directory("u1").iterdir()}
    assert made == {"containers": 0o750, "plugins": 0o750, "volumes": 0o750}


def test_an_empty_dir_is_for_everybody_and_made_once(volumes: PodVolumes) -> None:
    one = pod(Volume("v", empty_dir=EmptyDirVolume()))
    path = set_up(volumes, one)["v"]
    assert path == volumes.pod_directory("u1") / "volumes/kubernetes.io~empty-dir/v"
    assert mode(path) == 0o777
    plugins = volumes.pod_directory("u1") / "plugins/kubernetes.io~empty-dir"
    assert (plugins / "v/ready").exists()
    assert (mode(plugins), mode(plugins / "v"), mode(path.parent)) == (0o750, 0o750, 0o755)
    path.chmod(0o700)
    (path / "file").touch()
    assert set_up(volumes, one)["v"] == path
    assert (mode(path), os.listdir(path)) == (0o700, ["file"]), "what the pod made of it stays"


@pytest.mark.root
def test_an_ended_pod_keeps_neither_disk_nor_memory_of_its_volumes(volumes: PodVolumes) -> None:
    one = pod(
        Volume("disk", empty_dir=EmptyDirVolume()), Volume("memory", empty_dir=EmptyDirVolume("Memory"))
    )
    paths = set_up(volumes, one)
    (paths["disk"] / "file").touch()
    assert paths["memory"].is_mount()
    volumes.remove_volumes("u1")
    assert sorted(path.name for path in volumes.pod_directory("u1").iterdir()) == ["containers", "plugins"]
    assert mounts_below(volumes.pod_directory("u1")) == []
    volumes.remove_volumes("u1")


@pytest.mark.root
def test_volumes_in_memory_are_removed_without_the_hosts_mount_table(
    volumes: PodVolumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pod of a cluster has a token in memory, and the table of a dense node has thousands of mounts."""

    def unread(_: Path) -> list[Path]:
        raise AssertionError("the mount table is read")

    secret = Volume("token", secret=SecretVolume(secret_name="s"))
    one = pod(Volume("memory", empty_dir=EmptyDirVolume("Memory")), secret)
    contents = Contents({"token": PublishedFile(b"x", 0o600)})
    paths = volumes.set_up(one, {"token": contents}, allocatable=ALLOCATABLE)
    assert all(path.is_mount() for path in paths.values())
    monkeypatch.setattr("engine.host.mounts.mounts_below", unread)
    volumes.remove_volumes("u1")
    assert not (volumes.pod_directory("u1") / "volumes").exists()
    volumes.tear_down("u1")
    assert mounts_below(volumes.pod_directory("u1").parent) == []


@pytest.mark.root
def test_an_empty_dir_belongs_to_the_fs_group(volumes: PodVolumes) -> None:
    path = set_up(volumes, pod(Volume("v", empty_dir=EmptyDirVolume()), group=4321))["v"]
    assert (path.stat().st_gid, mode(path)) == (4321, 0o2777)


@pytest.mark.root
@pytest.mark.parametrize(("group", "wanted"), [(None, 0o1777), (4321, 0o3777)])
def test_a_memory_volume_is_sticky_and_as_large_as_the_pod_may_be(
    volumes: PodVolumes, group: int | None, wanted: int
) -> None:
    limited = Container(
        name="c", image="i", resources=ResourceRequirements(limits={"memory": Quantity.parse("64Mi")})
    )
    one = pod(Volume("v", empty_dir=EmptyDirVolume("Memory")), group=group, containers=[limited])
    path = set_up(volumes, one)["v"]
    assert path.is_mount()
    assert mode(path) == wanted
    space = os.statvfs(path)
    assert space.f_blocks * space.f_frsize == 64 << 20
    (path / "file").touch()
    set_up(volumes, one)
    assert len(mounts_below(path)) == 1
    volumes.tear_down("u1")
    assert volumes.known_uids() == set()


@pytest.mark.parametrize(
    ("limit", "pod_limit", "allocatable", "size"),
    [
        (None, None, "1Gi", 1 << 30),
        (None, "64Mi", "1Gi", 64 << 20),
        ("32Mi", "64Mi", "1Gi", 32 << 20),
        ("128Mi", "64Mi", "1Gi", 64 << 20),
        ("32Mi", None, "16Mi", 16 << 20),
        ("0", None, "1Gi", 1 << 30),
        (None, None, None, 0),
    ],
)
def test_the_least_bound_is_a_memory_volumes_size(
    limit: str | None, pod_limit: str | None, allocatable: str | None, size: int
) -> None:
    limits = {"memory": Quantity.parse(pod_limit)} if pod_limit else {}
    one = pod(containers=[Container(name="c", image="i", resources=ResourceRequirements(limits=limits))])
    given = [Quantity.parse(text) if text is not None else None for text in (limit, allocatable)]
    assert memory_size(given[0], one, given[1]) == size


def test_an_unlimited_container_leaves_the_whole_node() -> None:
    limited = ResourceRequirements(limits={"memory": Quantity.parse("64Mi")})
    two = [Container(name="a", image="i", resources=limited), Container(name="b", image="i")]
    assert memory_size(None, pod(containers=two), Quantity.parse("1Gi")) == 1 << 30


def test_huge_pages_need_a_request(volumes: PodVolumes) -> None:
    text = refused(volumes, pod(Volume("v", empty_dir=EmptyDirVolume("HugePages-2Mi"))))
    assert text == (
        'MountVolume.SetUp failed for volume "v" : medium HugePages-2Mi: '
        "no container requests such huge pages"
    )


def test_an_unknown_medium_is_never_mounted(volumes: PodVolumes) -> None:
    text = refused(volumes, pod(Volume("v", empty_dir=EmptyDirVolume("Disk"))))
    assert text == 'MountVolume.SetUp failed for volume "v" : unknown storage medium "Disk"'


# hostPath


@pytest.mark.parametrize("path", ["", "../x", "/a/../b", "/a\0b"])
def test_a_host_path_cannot_leave_its_root(
    volumes: PodVolumes, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for kind in ("", "DirectoryOrCreate", "FileOrCreate"):
        assert "invalid HostPath" in refused(volumes, pod(Volume("v", host_path=HostPathVolume(path, kind))))
    assert os.listdir(".") == []


def test_a_relative_host_path_starts_at_the_root(
    volumes: PodVolumes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = tmp_path / "x"
    one = pod(Volume("v", host_path=HostPathVolume(str(wanted).lstrip("/"), "DirectoryOrCreate")))
    assert set_up(volumes, one) == {"v": wanted}
    assert not (tmp_path / str(tmp_path).lstrip("/")).exists()


@pytest.mark.parametrize(
    ("kind", "fits", "words"),
    [
        ("Directory", {"directory", "link"}, "a directory"),
        ("DirectoryOrCreate", {"directory", "link", "none"}, "a directory"),
        ("File", {"file"}, "a file"),
        ("FileOrCreate", {"file", "none"}, "a file"),
        ("Socket", {"socket"}, "a socket file"),
        ("CharDevice", {"character"}, "a character device"),
        ("BlockDevice", {"block"}, "a block device"),
    ],
)
@pytest.mark.root
def test_a_host_path_is_of_its_type(
    volumes: PodVolumes, tmp_path: Path, kind: str, fits: set[str], words: str
) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    os.mknod(tmp_path / "character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(tmp_path / "block", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    for name in ("directory", "link", "file", "fifo", "socket", "character", "block", "none"):
        one = pod(Volume("v", host_path=HostPathVolume(str(tmp_path / name), kind)))
        if name in fits:
            assert set_up(volumes, one) == {"v": tmp_path / name}
            if name == "none":
                assert mode(tmp_path / name) == (0o755 if kind == "DirectoryOrCreate" else 0o644)
        else:
            failed = f"hostPath type check failed: {tmp_path / name} is not {words}"
            assert refused(volumes, one) == f'MountVolume.SetUp failed for volume "v" : {failed}'


def test_an_unknown_type(volumes: PodVolumes) -> None:
    assert "Nonsense is an invalid volume type" in refused(
        volumes, pod(Volume("v", host_path=HostPathVolume("/tmp", "Nonsense")))
    )


# downwardAPI and projected


def projected(source: DownwardAPIVolume, default: int | None) -> Volume:
    return Volume("v", projected=ProjectedVolume([VolumeProjection(downward_api=source)], default))


@pytest.mark.parametrize(
    ("volume", "plugin", "wanted"),
    [
        (Volume("v", downward_api=labels()), "downward-api", 0o644),
        (Volume("v", downward_api=labels(default=0o400)), "downward-api", 0o400),
        (Volume("v", downward_api=labels(0o600, 0o400)), "downward-api", 0o600),
        (projected(labels(), 0o440), "projected", 0o440),
        (projected(labels(0o600), 0o440), "projected", 0o600),
    ],
)
def test_the_agents_files(volumes: PodVolumes, volume: Volume, plugin: str, wanted: int) -> None:
    path = set_up(volumes, pod(volume))["v"]
    assert path == volumes.pod_directory("u1") / f"volumes/kubernetes.io~{plugin}/v"
    assert (path / "labels").read_text() == 'app="web"'
    assert mode(path / "labels") == wanted
    assert os.readlink(path / "labels") == "..data/labels"


@pytest.mark.root
def test_a_user_of_the_fs_group_reads_what_is_for_few(volumes: PodVolumes, tmp_path: Path) -> None:
    path = set_up(volumes, pod(Volume("v", downward_api=labels(default=0o440)), group=4321))["v"]
    for directory in [path, *path.parents]:
        if directory != Path(tempfile.gettempdir()) and directory.is_relative_to(tempfile.gettempdir()):
            directory.chmod(mode(directory) | 0o001)
    read = ["setpriv", "--reuid=1000", "--regid=1000", "--groups=4321", "cat", path / "labels"]
    assert subprocess.run(read, capture_output=True, check=True, timeout=PATIENCE).stdout == b'app="web"'
    read[3] = "--clear-groups"
    assert subprocess.run(read, capture_output=True, check=False, timeout=PATIENCE).returncode != 0


def test_a_repeated_set_up_uses_descriptors(volumes: PodVolumes, tmp_path: Path) -> None:
    """What a container of an earlier agent planted in a volume that was writable then."""
    (tmp_path / "host").write_text(SECRET)
    one = pod(Volume("v", downward_api=labels()))
    path = set_up(volumes, one)["v"]
    (path / "labels").unlink()
    (path / "labels").symlink_to(tmp_path / "host")
    (path / ".labels.new").symlink_to(tmp_path / "host")
    (path / "..data" / "labels").unlink()
    (path / "..data" / "labels").symlink_to(tmp_path / "host")
    set_up(volumes, one)
    assert (path / "labels").read_text() == 'app="web"'
    assert (tmp_path / "host").read_text() == SECRET


def test_mount_points_of_nested_volumes_are_created_by_the_agent(volumes: PodVolumes) -> None:
    mounts = [
        VolumeMount("v", "/info/"),
        VolumeMount("w", "/info/in/side"),
        VolumeMount("w", "/info/in/side/deeper"),
        VolumeMount("w", "/info-not"),
        VolumeMount("w", "/elsewhere"),
    ]
    one = pod(
        Volume("v", downward_api=labels()), containers=[Container(name="c", image="i", volume_mounts=mounts)]
    )
    assert list(nested_mount_points(one, "v")) == ["in/side"]
    path = set_up(volumes, one)["v"]
    assert (path / "in" / "side").is_dir()
    assert not (path / "in" / "side" / "deeper").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "..data", "a\0b"])
def test_a_file_that_leads_out_is_named(volumes: PodVolumes, name: str, tmp_path: Path) -> None:
    item = DownwardAPIFile(name, ObjectFieldSelector(field_path="metadata.name"))
    text = refused(volumes, pod(Volume("v", downward_api=DownwardAPIVolume([item]))))
    assert text.startswith('MountVolume.SetUp failed for volume "v" : ')


# Removal


def test_a_deep_volume_is_removed(volumes: PodVolumes) -> None:
    path = set_up(volumes, pod(Volume("v", empty_dir=EmptyDirVolume())))["v"]
    at = os.open(path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    volumes.tear_down("u1")
    assert volumes.known_uids() == set()
    volumes.tear_down("u1")


@pytest.mark.root
def test_a_mount_that_a_container_made_in_its_volume_survives(volumes: PodVolumes, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text(SECRET)
    path = set_up(volumes, pod(Volume("v", empty_dir=EmptyDirVolume())))["v"]
    (path / "point").mkdir()
    subprocess.run(["mount", "--bind", tmp_path / "host", path / "point"], check=True, timeout=PATIENCE)
    volumes.tear_down("u1")
    assert volumes.known_uids() == set()
    assert (tmp_path / "host" / "file").read_text() == SECRET


# Last words


def ended(**fields: Any) -> ContainerRecord:
    return ContainerRecord("c1", "c", sandbox_id="s1", state=EXITED, attempt=0, created_at=1.0, **fields)


def words(path: Path, root: Path, **fields: Any) -> str:
    return termination_message(ended(message_path=str(path), **fields), "File", root=root, logs=root / "logs")


def test_termination_messages_are_the_tail_of_a_regular_file(tmp_path: Path) -> None:
    file = termination_message_file(tmp_path / "pods" / "u1", Container(name="c", image="i"), 0)
    assert mode(file) == 0o666
    assert words(file, tmp_path) == ""
    file.write_text("x" * 5000 + "last")
    assert words(file, tmp_path) == "x" * 4092 + "last"
    assert words(tmp_path / "none", tmp_path, message="the runtime's") == "the runtime's"
    assert words(file, tmp_path / "elsewhere").endswith("last"), "a hostPath"


def test_a_termination_message_file_replaces_what_a_container_put_there(tmp_path: Path) -> None:
    """A container can write to the directory of its pod's files, for example through a hostPath volume."""
    host = tmp_path / "host"
    host.write_text(SECRET)
    host.chmod(0o600)
    directory = tmp_path / "pods" / "u1"
    first = termination_message_file(directory, Container(name="c", image="i"), 0)
    first.unlink()
    first.symlink_to(host)
    file = termination_message_file(directory, Container(name="c", image="i"), 0)
    assert (file, file.is_symlink(), file.read_text()) == (first, False, "")
    assert (host.read_text(), mode(host)) == (SECRET, 0o600)


def plant_fifo(volume: Path, host: Path) -> None:
    os.mkfifo(volume / "words")


def plant_link(volume: Path, host: Path) -> None:
    (volume / "words").symlink_to(host / "file")


def plant_directory_link(volume: Path, host: Path) -> None:
    volume.rmdir()
    volume.symlink_to(host)
    (host / "words").write_text(SECRET)


def plant_directory(volume: Path, host: Path) -> None:
    (volume / "words").mkdir()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("plant", [plant_fifo, plant_link, plant_directory_link, plant_directory])
def test_traps_give_an_error_and_nothing_of_the_host(
    tmp_path: Path, plant: Callable[[Path, Path], None], inside: bool
) -> None:
    root, host = tmp_path / "root", tmp_path / "host"
    volume = (root if inside else tmp_path) / "pods" / "u1" / "v"
    volume.mkdir(parents=True)
    root.mkdir(exist_ok=True)
    host.mkdir()
    (host / "file").write_text(SECRET)
    plant(volume, host)
    text = words(volume / "words", root)
    assert text.startswith(f"Error on reading termination log {volume / 'words'}: ")
    assert SECRET not in text


def test_a_log_is_not_read_through_a_link(tmp_path: Path) -> None:
    """A container with the host's log directory points its own log at a file of the host."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "shadow").write_text(SECRET)
    log = tmp_path / "logs" / "0.log"
    record = ended(log_path=str(log), exit_code=1)

    def fallback() -> str:
        return termination_message(
            record, "FallbackToLogsOnError", root=tmp_path / "root", logs=tmp_path / "logs"
        )

    log.write_text("2024-01-01T00:00:00Z stdout P sa\n2024-01-01T00:00:00Z stdout F id\n")
    assert fallback() == "said\n"
    log.unlink()
    log.symlink_to(tmp_path / "shadow")
    assert SECRET not in fallback()
    assert "Error on reading termination message from logs" in fallback()


async def test_each_is_read_once_and_what_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("first")
    container = ended(message_path=str(tmp_path / "file"))
    messages = await read_messages(pod(), [container], {}, root=tmp_path, logs=tmp_path)
    (tmp_path / "file").write_text("second")
    messages = await read_messages(pod(), [container], messages, root=tmp_path, logs=tmp_path)
    assert messages == {container.id: "first"}
    released = asyncio.Event()

    async def hang(*args: object, **named: object) -> str:
        await released.wait()
        return ""

    monkeypatch.setattr("engine.node.sync.termination_message.asyncio.to_thread", hang)
    monkeypatch.setattr("engine.node.sync.termination_message.READ_TIMEOUT", 0.0)
    messages = await read_messages(pod(), [container], {}, root=tmp_path, logs=tmp_path)
    assert "no answer" in messages[container.id]


# In a real agent


async def test_an_impossible_volume_is_reported_once_and_the_pod_waits(rig: Rig, tmp_path: Path) -> None:
    await rig.start()
    volume = {"name": "v", "hostPath": {"path": str(tmp_path / "later"), "type": "Directory"}}
    mounts = [{"name": "v", "mountPath": "/v"}]
    rig.write("web", {"volumes": [volume], "containers": [container(volumeMounts=mounts)]})
    await eventually(lambda: "FailedMount" in rig.reasons())
    assert rig.node is not None
    (event,) = [e for e in rig.node.recorder if e.reason == "FailedMount"]
    failed = f"hostPath type check failed: {tmp_path / 'later'} is not a directory"
    assert (event.type, event.message) == (WARNING, f'MountVolume.SetUp failed for volume "v" : {failed}')
    (tmp_path / "later").mkdir()
    await eventually(lambda: rig.phase("web") == "Running")
    assert rig.reasons().count("FailedMount") == 1


@pytest.mark.root
async def test_the_runtime_gets_mounts_that_no_container_can_move(rig: Rig, hollow: HollowRuntime) -> None:
    await rig.start()
    volumes = [
        {"name": "data", "emptyDir": {}},
        {
            "name": "info",
            "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]},
        },
    ]
    mounts = [
        {"name": "data", "mountPath": "/data", "subPath": "part"},
        {"name": "info", "mountPath": "/info"},
        {"name": "info", "mountPath": "/name", "subPath": "name"},
    ]
    rig.write("web", {"volumes": volumes, "containers": [container(volumeMounts=mounts)]})
    await eventually(lambda: rig.phase("web") == "Running")
    pod = rig.pod("web")
    assert pod is not None
    (config,) = [c.config for c in hollow.service.records.containers.values()]
    given = {m.container_path: (m.host_path, m.readonly) for m in config.mounts}
    directory = rig.root / "pods" / pod.uid
    assert given["/data"] == (str(directory / "volume-subpaths/data/c/0"), False)
    assert given["/info"] == (str(directory / "volumes/kubernetes.io~downward-api/info"), True)
    assert given["/name"] == (str(directory / "volume-subpaths/info/c/2"), True)
    assert Path(given["/name"][0]).read_text() == "web-n1"
    await rig.restart()
    assert len(mounts_below(directory)) == 3
    (rig.manifests / "web.yaml").unlink()
    await eventually(lambda: not directory.exists())
    assert mounts_below(rig.root) == []


@pytest.mark.root
def test_a_local_volume_is_mounted_once_and_shared_with_one_group(
    volumes: PodVolumes, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    bound = {"v": BoundVolume(ObjectMeta(name="pv"), LocalVolume(str(data)), directory=data)}
    first, second = pod(Volume("v"), group=77), pod(Volume("v"), group=88)
    second.metadata.uid = "u2"
    for one in (first, first, second, second):
        assert data.samefile(volumes.set_up(one, bound, allocatable=ALLOCATABLE)["v"])
    assert len(mounts_below(tmp_path)) == 2
    assert data.stat().st_gid == 77
