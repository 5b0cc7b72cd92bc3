"""Measuring and removing trees as hostile as a container can make them."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.host import safe_open as beneath
from engine.host import trees
from engine.host.safe_open import opened
from engine.host.trees import HELD_LEVELS, disk_usage, remove_tree, walk
from tests.programs import ROOT
from tests.waiting import PATIENCE


@pytest.fixture(params=["openat2", "step by step"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "step by step":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    return str(request.param)


def make_deep(top: Path, levels: int, leaf: Callable[[int], None] = lambda _: None) -> None:
    """Make a chain of directories with a file in each, and call `leaf` with the descriptor of the last."""
    top.mkdir(exist_ok=True)
    at = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at))
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    leaf(at)
    os.close(at)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Limit open files to those that the walk holds, and a few more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + HELD_LEVELS + 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "levels",
    [HELD_LEVELS - 1, HELD_LEVELS, HELD_LEVELS + 1, 3_000, pytest.param(10_000, marks=pytest.mark.slow)],
)
def test_a_deep_tree_is_measured_and_removed(tmp_path: Path, levels: int, few_descriptors: None) -> None:
    make_deep(tmp_path / "deep", levels)
    assert disk_usage(tmp_path / "deep")[1] == 2 * levels + 1
    remove_tree(tmp_path / "deep")
    assert os.listdir(tmp_path) == []


def test_names_longer_than_a_path_all_the_way_down(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("n" * 255, dir_fd=at)
        below = os.open("n" * 255, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert disk_usage(tmp_path)[1] == 101
    remove_tree(tmp_path / ("n" * 255))
    assert os.listdir(tmp_path) == []


def test_wide_below_what_is_held(tmp_path: Path) -> None:
    """Directories that are read again from where the walk left them."""

    def widen(at: int) -> None:
        for number in range(300):
            os.makedirs(f"/proc/self/fd/{at}/w{number}/x")
            os.close(os.open(f"w{number}/f", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at))

    make_deep(tmp_path / "deep", HELD_LEVELS + 8, widen)
    assert disk_usage(tmp_path / "deep")[1] == 2 * (HELD_LEVELS + 8) + 1 + 900
    remove_tree(tmp_path / "deep")
    assert not (tmp_path / "deep").exists()


def test_visits_a_directory_after_what_is_in_it_and_each_once(tmp_path: Path) -> None:
    for path in ("a/b/c", "a/d", "e"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "file").touch()
    with opened(tmp_path) as top, closing(walk(os.open(".", os.O_RDONLY, dir_fd=top))) as visits:
        seen = [(os.readlink(f"/proc/self/fd/{v.directory}"), v.name) for v in visits]
    names = [os.path.relpath(os.path.join(*pair), tmp_path) for pair in seen]
    assert sorted(names) == sorted(
        os.path.relpath(os.path.join(where, name), tmp_path)
        for where, directories, files in os.walk(tmp_path)
        for name in directories + files
    )
    for name in names:
        assert all(names.index(below) < names.index(name) for below in names if below.startswith(f"{name}/"))


def test_an_unfinished_walk_leaves_no_descriptor(tmp_path: Path) -> None:
    make_deep(tmp_path / "deep", 10)
    with opened(tmp_path) as top:
        readable = os.open("deep", os.O_RDONLY, dir_fd=top)
        before = os.listdir("/proc/self/fd")
        with closing(walk(readable)) as visits:
            next(visits)
        assert os.listdir("/proc/self/fd") == before
        os.close(readable)


def test_links_go_and_not_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("kept")
    volume = tmp_path / "volume"
    (volume / "a").mkdir(parents=True)
    for place in (volume, volume / "a"):
        (place / "file").symlink_to(tmp_path / "outside" / "file")
        (place / "directory").symlink_to(tmp_path / "outside")
        (place / "loop").symlink_to(".")
        os.mkfifo(place / "fifo")
    assert disk_usage(volume)[1] == 10
    remove_tree(volume)
    assert os.listdir(tmp_path) == ["outside"]
    (tmp_path / "link").symlink_to("outside")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "outside" / "file").read_text() == "kept"


def test_nothing_and_files_and_hard_links(tmp_path: Path) -> None:
    remove_tree(tmp_path / "none")
    assert disk_usage(tmp_path / "none") == (0, 0)
    (tmp_path / "file").write_bytes(bytes(100_000))
    size, inodes = disk_usage(tmp_path / "file")
    assert (size >= 100_000, inodes) == (True, 1)
    (tmp_path / "d").mkdir()
    empty = disk_usage(tmp_path / "d")[0]
    for name in ("one", "two", "three"):
        (tmp_path / "d" / name).hardlink_to(tmp_path / "file")
    assert disk_usage(tmp_path / "d") == (size + empty, 2)
    remove_tree(tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_more_hard_links_than_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_MOST_LINKED", 0)
    (tmp_path / "one").write_bytes(bytes(100_000))
    for name in ("two", "three"):
        (tmp_path / name).hardlink_to(tmp_path / "one")
    size = (tmp_path.stat().st_blocks + (tmp_path / "one").stat().st_blocks) * 512
    assert disk_usage(tmp_path) == (size, 2)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    os.makedirs(os.fsencode(tmp_path) + b"/top/\xff\xfe/\x80")
    assert disk_usage(tmp_path / "top")[1] == 3
    remove_tree(tmp_path / "top")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Bind mounts a directory of the same file system, as a subPath or a leftover of a runtime is."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text("kept")
    points: list[Path] = []

    def mount(point: Path) -> None:
        subprocess.run(["mount", "--bind", tmp_path / "host", point], check=True, timeout=PATIENCE)
        points.append(point)

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", point], check=True, timeout=PATIENCE)


@pytest.mark.root
def test_mounts_in_a_tree_are_neither_removed_nor_measured(
    tmp_path: Path, mounted: Callable[[Path], None]
) -> None:
    volume = tmp_path / "volume"
    (volume / "a" / "point").mkdir(parents=True)
    (volume / "a" / "file").touch()
    mounted(volume / "a" / "point")
    assert disk_usage(volume)[1] == 4
    with pytest.raises(OSError, match="point") as caught:
        remove_tree(volume)
    assert caught.value.errno == errno.EBUSY
    assert (tmp_path / "host" / "file").read_text() == "kept"
    assert not (volume / "a" / "file").exists(), "as much as can went"


@pytest.mark.root
def test_a_mount_point_itself_is_refused(tmp_path: Path, mounted: Callable[[Path], None]) -> None:
    (tmp_path / "volume").mkdir()
    mounted(tmp_path / "volume")
    with pytest.raises(OSError, match="volume") as caught:
        remove_tree(tmp_path / "volume")
    assert caught.value.errno == errno.EBUSY
    assert (tmp_path / "host" / "file").read_text() == "kept"


@pytest.mark.root
def test_a_failed_removal_names_the_path_and_the_rest_is_removed(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "a").mkdir(parents=True)
    (volume / "a" / "stuck").touch()
    (volume / "b").touch()
    if subprocess.run(["chattr", "+i", volume / "a" / "stuck"], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(OSError, match="stuck") as caught:
            remove_tree(volume)
        assert caught.value.errno == errno.EPERM
        assert not (volume / "b").exists()
    finally:
        subprocess.run(["chattr", "-i", volume / "a" / "stuck"], check=True)
    remove_tree(volume)


def test_a_tree_that_is_shuffled_under_the_walk(tmp_path: Path) -> None:
    """Directories below those that are held move to the top and back: `..` leads elsewhere, never out."""
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "file").write_text("kept")
    volume = tmp_path / "volume"
    make_deep(volume, HELD_LEVELS + 40)
    deep = Path(volume, *["d"] * (HELD_LEVELS + 20))
    stop = threading.Event()

    def shuffle() -> None:
        while not stop.is_set():
            os.rename(deep, volume / "moved")
            os.rename(volume / "moved", deep)

    shuffler = threading.Thread(target=shuffle)
    shuffler.start()
    try:
        for _ in range(30):
            disk_usage(volume)
    finally:
        stop.set()
        shuffler.join()
    assert disk_usage(volume)[1] == 2 * (HELD_LEVELS + 40) + 1


def test_a_tree_moved_for_good_while_it_is_removed_takes_no_neighbour_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "file").write_text("kept")
    volume = tmp_path / "volume"
    make_deep(volume, HELD_LEVELS + 40)
    deep = Path(volume, *["d"] * (HELD_LEVELS + 20))
    enter, entered = trees._enter, 0

    def enter_and_move(directory: int, name: str) -> object:
        nonlocal entered
        entered += 1
        level = enter(directory, name)
        if entered == HELD_LEVELS + 30:
            os.rename(deep, tmp_path / "aside")
        return level

    monkeypatch.setattr(trees, "_enter", enter_and_move)
    remove_tree(volume)
    assert sorted(os.listdir(tmp_path)) == ["aside", "neighbour"]
    assert (tmp_path / "neighbour" / "file").read_text() == "kept"


def test_a_swapped_directory_is_not_walked_into(tmp_path: Path) -> None:
    (tmp_path / "outside" / "file").mkdir(parents=True)
    volume = tmp_path / "volume"
    (volume / "a").mkdir(parents=True)
    (volume / "evil").symlink_to(tmp_path / "outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(volume / "a", volume / "aside")
            os.rename(volume / "evil", volume / "a")
            os.rename(volume / "a", volume / "evil")
            os.rename(volume / "aside", volume / "a")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        counts = {disk_usage(volume)[1] for _ in range(500)}
    finally:
        stop.set()
        swapper.join()
    assert max(counts) <= 5


def test_memory_does_not_grow_with_the_tree(tmp_path: Path) -> None:
    for number in range(1500):
        os.makedirs(f"{tmp_path}/wide/{number:0>200}")
    tracemalloc.start()
    assert disk_usage(tmp_path / "wide")[1] == 1501
    remove_tree(tmp_path / "wide")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000, "less than the names alone take"
    assert not (tmp_path / "wide").exists()


WITH_MUSL = """
import ctypes, sys
real = ctypes.CDLL(None, use_errno=True)

class Musl:
    getdents = real.getdents64

    def __getattr__(self, name):
        if name == "getdents64":
            raise AttributeError(f"Symbol not found: {name}")
        return getattr(real, name)

ctypes.CDLL = lambda *_, **__: Musl()
from engine.host.trees import remove_tree
remove_tree(sys.argv[1])
"""


def test_a_tree_is_removed_with_musl_which_has_no_getdents64(tmp_path: Path) -> None:
    (tmp_path / "top/below").mkdir(parents=True)
    (tmp_path / "top/below/file").write_text("content")
    subprocess.run([sys.executable, "-c", WITH_MUSL, str(tmp_path / "top")], check=True, cwd=ROOT)
    assert not (tmp_path / "top").exists()
