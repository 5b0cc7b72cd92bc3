"""subPaths as containers attack them: a part of a volume is what is mounted, or nothing is."""

# ruff: noqa: PTH208 - names are what is compared

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput, Refused
from engine.api.pod import VolumeMount
from engine.host import safe_open as beneath
from engine.host.mountinfo import mounts_below
from engine.host.mounts import unmount_below
from engine.node.volumes import PodVolumes, sub_path
from engine.node.volumes.sub_path import expanded_sub_path, mount_sub_path
from tests.waiting import PATIENCE

SECRET = "the host's own"


@pytest.fixture(params=["openat2", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "step by step":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    return str(request.param)


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[PodVolumes]:
    yield PodVolumes(tmp_path / "root")
    unmount_below(tmp_path)


@pytest.fixture
def pod(volumes: PodVolumes) -> Path:
    directory = volumes.pod_directory("u1")
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def volume(pod: Path, tmp_path: Path) -> Path:
    volume = pod / "volumes" / "kubernetes.io~empty-dir" / "v"
    (volume / "a" / "b").mkdir(parents=True)
    (volume / "a" / "b" / "file").write_text("mine")
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "file").write_text(SECRET)
    return volume


def mounted(pod: Path, volume: Path, path: str, index: int = 0) -> Path:
    return mount_sub_path(pod, "v", volume, path, "c", index)


def mounted_from(pod: Path) -> Path:
    """Return the directory that the only mount below a pod's directory shows, as the kernel lists it."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    (root,) = [fields[3] for fields in lines if fields[4].startswith(f"{pod}/")]
    beyond = max((f for f in lines if str(pod).startswith(f[4].rstrip("/") + "/")), key=lambda f: len(f[4]))
    return Path(beyond[4]) / root.removesuffix("//deleted").removeprefix(beyond[3]).lstrip("/")


@pytest.mark.root
@pytest.mark.usefixtures("way")
class TestWhatIsMounted:
    def test_a_part_of_the_volume_where_the_kubelet_has_it(self, pod: Path, volume: Path) -> None:
        target = mounted(pod, volume, "a/b", 3)
        assert target == pod / "volume-subpaths" / "v" / "c" / "3"
        assert (target / "file").read_text() == "mine"
        (target / "new").touch()
        assert (volume / "a" / "b" / "new").exists()
        for made in (target.parent, target.parents[1], target.parents[2]):
            assert stat.S_IMODE(made.stat().st_mode) == 0o750

    def test_a_file_a_socket_a_fifo_and_a_device(self, pod: Path, volume: Path) -> None:
        os.mkfifo(volume / "fifo")
        os.mknod(volume / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        with socket.socket(socket.AF_UNIX) as listening, beneath.opened(volume) as directory:
            listening.bind(f"/proc/self/fd/{directory}/socket")
        for index, name in enumerate(("a/b/file", "fifo", "null", "socket")):
            target = mounted(pod, volume, name, index)
            assert os.path.samestat(target.stat(), (volume / name).stat())

    def test_missing_directories_are_created_with_the_mode_of_the_volume(
        self, pod: Path, volume: Path
    ) -> None:
        volume.chmod(0o2771)
        target = mounted(pod, volume, "new/deeper")
        assert target.is_dir()
        for path in ("new", "new/deeper"):
            assert stat.S_IMODE((volume / path).stat().st_mode) == 0o2771

    @pytest.mark.parametrize(
        ("link", "to", "path"),
        [
            ("link", "a", "link/b"),
            ("link", "a/b", "link"),
            ("a/up", "../a/b", "a/up"),
            ("link", "a/b/file", "link"),
            ("link", "a", "link/new"),
        ],
    )
    def test_links_that_stay_inside_are_followed(
        self, pod: Path, volume: Path, link: str, to: str, path: str
    ) -> None:
        (volume / link).symlink_to(to)
        target = mounted(pod, volume, path)
        assert os.path.samestat(target.stat(), (volume / path).stat())

    def test_an_absolute_link_of_the_hosts_owner_that_stays_inside(self, pod: Path, tmp_path: Path) -> None:
        """A hostPath whose `current` names the release by its whole path, itself reached through a link."""
        (tmp_path / "srv" / "v1").mkdir(parents=True)
        (tmp_path / "srv" / "current").symlink_to(tmp_path / "srv" / "v1")
        (tmp_path / "www").symlink_to(tmp_path / "srv")
        target = mounted(pod, tmp_path / "www", "current")
        assert os.path.samestat(target.stat(), (tmp_path / "srv" / "v1").stat())

    def test_again_it_is_the_same_mount_and_another_once_the_part_is_another(
        self, pod: Path, volume: Path
    ) -> None:
        target = mounted(pod, volume, "a/b")
        assert mounted(pod, volume, "a/b") == target
        assert len(mounts_below(pod)) == 1
        (volume / "a" / "b").rename(volume / "old")
        (volume / "a" / "b").write_text("a file now")
        assert mounted(pod, volume, "a/b").read_text() == "a file now"
        (volume / "a" / "b").unlink()
        (volume / "a" / "b").mkdir()
        assert mounted(pod, volume, "a/b").is_dir()
        assert len(mounts_below(pod)) == 1

    @pytest.mark.parametrize(
        ("plant", "path"),
        [
            ({"evil": "{outside}"}, "evil"),
            ({"evil": "{outside}"}, "evil/file"),
            ({"evil": "{outside}"}, "evil/b"),
            ({"evil": "{outside}"}, "evil/new"),
            ({"evil": "/"}, "evil/etc"),
            ({"evil": "../../../../../outside"}, "evil"),
            ({"a/evil": "../../../../../../outside/b"}, "a/evil"),
            ({"one": "two", "two": "{outside}"}, "one/b"),
            ({"evil": "/proc/self/root"}, "evil/etc"),
            ({"evil": "evil"}, "evil"),
            ({"evil": "{outside}/new"}, "evil"),
            ({}, "a/b/file/x"),
            ({}, "a\0b"),
        ],
    )
    def test_every_path_out_of_the_volume_is_refused_without_revealing_it(
        self, pod: Path, volume: Path, tmp_path: Path, plant: dict[str, str], path: str
    ) -> None:
        for name, to in plant.items():
            (volume / name).symlink_to(to.format(outside=tmp_path / "outside"))
        with pytest.raises(Refused) as caught:
            mounted(pod, volume, path)
        assert str(caught.value) == 'failed to prepare subPath for volumeMount "v" of container "c"'
        assert mounts_below(pod) == []
        assert sorted(os.listdir(tmp_path / "outside")) == ["b", "file"]

    @pytest.mark.parametrize("end", ["directory", "nothing"])
    def test_a_chain_of_links_is_followed_as_far_as_by_a_kubelet(
        self, pod: Path, volume: Path, end: str
    ) -> None:
        for number in range(3000):
            (volume / f"l{number}").symlink_to(f"l{number + 1}")
        if end == "directory":
            (volume / "l3000").mkdir()
        for first in (0, 2744):  # 3,000 links, and one more than the 255 of Go's EvalSymlinks
            with pytest.raises(Refused, match="failed to prepare subPath"):
                mounted(pod, volume, f"l{first}")
        if end == "directory":
            mounted(pod, volume, "l2745")
            assert mounted_from(pod) == volume / "l3000"

    def test_a_racing_swapper_never_gets_the_host(self, pod: Path, volume: Path, tmp_path: Path) -> None:
        """The attack of CVE-2017-1002101, from a process of its own."""
        (volume / "evil").symlink_to(tmp_path / "outside")
        swap = (
            "import os, sys\nos.chdir(sys.argv[1])\nwhile True:\n"
            " os.rename('a', 'aside'); os.rename('evil', 'a')\n"
            " os.rename('a', 'evil'); os.rename('aside', 'a')"
        )
        swapper = subprocess.Popen([sys.executable, "-c", swap, volume])
        try:
            reached = 0
            for _ in range(1500):
                with suppress(Refused):
                    mounted(pod, volume, "a/b/file")
                    assert mounted_from(pod).is_relative_to(volume)
                    reached += 1
        finally:
            swapper.kill()
            swapper.wait()
        assert sorted(os.listdir(tmp_path / "outside")) == ["b", "file"]
        assert len(mounts_below(pod)) <= 1
        assert reached, "never even tried"


@pytest.mark.root
class TestRestartsAndRemoval:
    def test_a_pod_is_removed_with_its_mounts_and_the_mounted_data_survives(
        self, volumes: PodVolumes, pod: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "host" / "data").mkdir(parents=True)
        (tmp_path / "host" / "data" / "file").write_text("kept")
        mounted(pod, tmp_path / "host", "data")
        mounted(pod, tmp_path / "host", "data/file", 1)
        volumes.tear_down("u1")
        assert not pod.exists()
        assert (tmp_path / "host" / "data" / "file").read_text() == "kept"
        assert mounts_below(tmp_path) == []

    def test_a_later_agent_knows_and_removes_what_a_killed_one_left(
        self, volumes: PodVolumes, pod: Path, volume: Path, tmp_path: Path
    ) -> None:
        code = (
            "import os, sys\nfrom pathlib import Path\n"
            "from engine.node.volumes.sub_path import mount_sub_path\n"
            "mount_sub_path(Path(sys.argv[1]), 'v', Path(sys.argv[2]), 'a/b', 'c', 0)\n"
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code, pod, volume], check=False, timeout=PATIENCE)
        assert len(mounts_below(pod)) == 1
        assert mounted(pod, volume, "a/b").is_dir()
        assert len(mounts_below(pod)) == 1
        assert volumes.known_uids() == {"u1"}
        volumes.tear_down("u1")
        assert volumes.known_uids() == set()
        assert mounts_below(tmp_path) == []

    def test_a_half_removed_mount_is_made_again(self, pod: Path, volume: Path) -> None:
        """The agent is killed after it created the mount point and before it mounted, and the subPath was of
        another kind before.
        """
        place = pod / "volume-subpaths" / "v" / "c"
        place.mkdir(parents=True)
        (place / "0").write_text("")
        assert mounted(pod, volume, "a/b", 0).is_dir()
        (place / "1").mkdir()
        assert mounted(pod, volume, "a/b/file", 1).read_text() == "mine"

    def test_no_descriptor_is_left(self, pod: Path, volume: Path) -> None:
        before = os.listdir("/proc/self/fd")
        mounted(pod, volume, "a/b")
        mounted(pod, volume, "a/b")
        (volume / "evil").symlink_to("/")
        for path in ("evil", "evil/x", "a/b/file/x"):
            with pytest.raises(Refused):
                mounted(pod, volume, path)
        assert os.listdir("/proc/self/fd") == before


def test_a_refused_mount_names_its_reason(pod: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user: to hand on the path instead would let the container swap it afterwards."""

    def forbidden(part: int, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if os.geteuid() == 0:
        monkeypatch.setattr(sub_path, "bind", forbidden)
    with pytest.raises(Refused, match="needs the permission to mount"):
        mounted(pod, volume, "a/b")
    assert not (pod / "volume-subpaths" / "v" / "c" / "0").exists()


@pytest.mark.parametrize(
    ("mount", "answer"),
    [
        (VolumeMount("v", "/m"), ""),
        (VolumeMount("v", "/m", sub_path="a/$(B)"), "a/$(B)"),
        (VolumeMount("v", "/m", sub_path_expr="a/$(B)/$$(B)"), "a/b/$(B)"),
    ],
)
def test_the_part_that_is_wanted(mount: VolumeMount, answer: str) -> None:
    assert expanded_sub_path(mount, {"B": "b"}) == answer


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (VolumeMount("v", "/m", sub_path="/etc"), "must not be an absolute path"),
        (VolumeMount("v", "/m", sub_path="a/../../b"), "must not contain '..'"),
        (VolumeMount("v", "/m", sub_path_expr="$(UP)/x"), "must not contain '..'"),
        (VolumeMount("v", "/m", sub_path_expr="$(ROOT)etc"), "must not be an absolute path"),
        (VolumeMount("v", "/m", sub_path_expr="$(Y)/$(X)/$(EMPTY)"), "missing value for EMPTY, X, Y"),
    ],
)
def test_a_part_that_leads_out_by_itself_is_refused(mount: VolumeMount, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        expanded_sub_path(mount, {"UP": "..", "ROOT": "/", "EMPTY": ""})


def test_a_value_that_holds_a_reference_is_not_expanded_again() -> None:
    mount = VolumeMount("v", "/m", sub_path_expr="$(A)")
    assert expanded_sub_path(mount, {"A": "$(B)", "B": "x"}) == "$(B)"
