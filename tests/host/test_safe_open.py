"""Paths under the control of a container do not lead out of their directory, by openat2 and step by step."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.host import safe_open as beneath
from engine.host.safe_open import (
    HANDLE,
    make_directories,
    open_beneath,
    open_in_root,
    opened,
    read_regular,
    write_regular,
)

SECRET = b"the host's own"


@pytest.fixture(params=["openat2", "step by step"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "openat2":
        assert beneath.has_openat2(), "this kernel has no openat2: half of these cases are not tried"
    else:
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    return str(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(SECRET)
    return tmp_path / "outside"


@pytest.fixture
def volume(tmp_path: Path, outside: Path) -> Path:
    volume = tmp_path / "volume"
    (volume / "a" / "b").mkdir(parents=True)
    (volume / "a" / "b" / "file").write_bytes(b"mine")
    (volume / "a" / "inner").symlink_to("b")
    (volume / "a" / "outer").symlink_to(outside)
    (volume / "up").symlink_to("../outside")
    (volume / "a" / "b" / "link").symlink_to(outside / "file")
    (volume / "a" / "b" / "relative").symlink_to("file")
    return volume


@pytest.fixture
def root(volume: Path) -> Iterator[int]:
    with opened(volume) as directory:
        yield directory


def read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_opens_what_lies_beneath(root: int) -> None:
    assert read(open_beneath(root, "a/b/file", os.O_RDONLY)) == b"mine"
    assert read(open_beneath(root, "./a//b/./file", os.O_RDONLY)) == b"mine"
    itself = open_beneath(root, "", HANDLE)
    assert os.path.samestat(os.fstat(itself), os.fstat(root))
    os.close(itself)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/passwd", errno.EXDEV),
        ("..", errno.EXDEV),
        ("a/../../outside/file", errno.EXDEV),
        ("a/../a/b/file", errno.EXDEV),
        ("up/file", errno.ELOOP),
        ("a/outer/file", errno.ELOOP),
        ("a/inner/file", errno.ELOOP),
        ("a/b/link", errno.ELOOP),
        ("a/b/relative", errno.ELOOP),
        ("a/b/file/x", errno.ENOTDIR),
        ("a/none", errno.ENOENT),
        ("none/file", errno.ENOENT),
        ("a\0b", errno.EINVAL),
        ("x" * 256, errno.ENAMETOOLONG),
    ],
)
@pytest.mark.parametrize("flags", [os.O_RDONLY, HANDLE, os.O_RDONLY | os.O_DIRECTORY, os.O_WRONLY])
def test_every_escape_is_refused_with_one_error(root: int, path: str, code: int, flags: int) -> None:
    with pytest.raises(OSError) as caught:
        os.close(open_beneath(root, path, flags))
    assert caught.value.errno == code
    assert caught.value.filename == path


def test_a_file_made_through_a_link_is_made_nowhere(root: int, volume: Path, outside: Path) -> None:
    (volume / "dangling").symlink_to(outside / "new")
    for path in ("dangling", "a/outer/new"):
        with pytest.raises(OSError):
            os.close(open_beneath(root, path, os.O_WRONLY | os.O_CREAT, 0o600))
    assert [p.name for p in outside.iterdir()] == ["file"]


def test_descriptors_are_not_inherited_and_none_is_left(root: int) -> None:
    before = os.listdir("/proc/self/fd")
    descriptor = open_beneath(root, "a/b/file", os.O_RDONLY)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    for path in ("a/b/link", "a/none", "a/b/file/x/y", "a/outer/file"):
        with pytest.raises(OSError):
            open_beneath(root, path, os.O_RDONLY)
    assert os.listdir("/proc/self/fd") == before


def test_paths_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    names = ["d" * 200 + str(i) for i in range(60)]
    with opened(tmp_path) as top:
        os.close(make_directories(top, "/".join(names), 0o755))
        write = open_beneath(top, "/".join([*names, "f"]), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(write, b"deep")
        os.close(write)
        assert read_regular(top, "/".join([*names, "f"]), 10) == b"deep"


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("etc/passwd", "etc/passwd"),
        ("/etc/passwd", "etc/passwd"),
        ("../../etc/passwd", "etc/passwd"),
        ("absolute", "etc/passwd"),
        ("climbing", "etc/passwd"),
        ("directory/passwd", "etc/passwd"),
        ("chain", "etc/passwd"),
        ("etc/../etc/up/etc/passwd", "etc/passwd"),
    ],
)
def test_links_lead_about_inside_a_root_only(tmp_path: Path, path: str, leads_to: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / leads_to).write_text("root:x:0:0")
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "climbing").symlink_to("../../../../etc/passwd")
    (tmp_path / "directory").symlink_to("/etc")
    (tmp_path / "chain").symlink_to("absolute")
    (tmp_path / "etc" / "up").symlink_to("..")
    with opened(tmp_path) as top:
        assert read(open_in_root(top, path, os.O_RDONLY)) == b"root:x:0:0"


def test_a_root_knows_loops_gaps_and_files_yet_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to-new").symlink_to("/new")
    with opened(tmp_path) as top:
        for path, code in (("loop", errno.ELOOP), ("none/x", errno.ENOENT), ("none", errno.ENOENT)):
            with pytest.raises(OSError) as caught:
                open_in_root(top, path, os.O_RDONLY)
            assert caught.value.errno == code
        os.close(open_in_root(top, "to-new", os.O_WRONLY | os.O_CREAT, 0o600))
    assert (tmp_path / "new").is_file()


def test_directories_are_made_with_their_mode_and_not_through_links(
    root: int, volume: Path, outside: Path
) -> None:
    os.close(make_directories(root, "a/new/deeper", 0o2770))
    assert stat.S_IMODE((volume / "a/new").stat().st_mode) == 0o2770
    assert stat.S_IMODE((volume / "a/new/deeper").stat().st_mode) == 0o2770
    before = stat.S_IMODE((volume / "a").stat().st_mode)
    os.close(make_directories(root, "a", 0o700))
    assert stat.S_IMODE((volume / "a").stat().st_mode) == before
    for path, code in (
        ("a/outer/x", errno.ELOOP),
        ("up", errno.ELOOP),
        ("../x", errno.EXDEV),
        ("a/b/file", errno.ENOTDIR),
        ("a/b/file/x", errno.ENOTDIR),
    ):
        with pytest.raises(OSError) as caught:
            make_directories(root, path, 0o755)
        assert caught.value.errno == code, path
    assert [p.name for p in outside.iterdir()] == ["file"]


def test_reads_the_beginning_or_the_end_of_a_file(root: int, volume: Path) -> None:
    (volume / "numbers").write_bytes(b"0123456789")
    assert read_regular(root, "numbers", 4) == b"0123"
    assert read_regular(root, "numbers", 4, from_end=True) == b"6789"
    assert read_regular(root, "numbers", 40, from_end=True) == b"0123456789"


def test_a_huge_sparse_file_costs_what_is_read(root: int, volume: Path) -> None:
    os.truncate(os.open(volume / "huge", os.O_CREAT | os.O_WRONLY), 1 << 42)
    assert read_regular(root, "huge", 4096, from_end=True) == bytes(4096)


def test_reads_regular_files_only_and_never_waits(root: int, volume: Path) -> None:
    os.mkfifo(volume / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(volume / "socket"))
        for name, code in (("fifo", errno.EINVAL), ("socket", errno.EINVAL), ("a", errno.EINVAL)):
            with pytest.raises(OSError) as caught:
                read_regular(root, name, 10)
            assert caught.value.errno == code
            assert caught.value.filename == name
    with pytest.raises(OSError) as caught:
        read_regular(root, "a/b/link", 10)
    assert caught.value.errno == errno.ELOOP


@pytest.mark.root
def test_a_device_is_not_opened(root: int, volume: Path) -> None:
    os.mknod(volume / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(root, "zero", 10)


def test_a_written_file_replaces_a_link_instead_of_following_it(
    root: int, volume: Path, outside: Path
) -> None:
    (volume / "planted").symlink_to(outside / "file")
    write_regular(root, "planted", b"new", 0o440)
    assert (volume / "planted").read_bytes() == b"new"
    assert stat.S_IMODE((volume / "planted").lstat().st_mode) == 0o440
    assert (outside / "file").read_bytes() == SECRET
    for name in ("../x", "a/x", "", "..", "a\0"):
        with pytest.raises(OSError):
            write_regular(root, name, b"", 0o600)


def test_a_write_that_fails_leaves_nothing(root: int, volume: Path) -> None:
    (volume / "full").mkdir()
    (volume / "full" / "x").touch()
    before = sorted(os.listdir(volume))
    with pytest.raises(OSError):
        write_regular(root, "full", b"x", 0o600)
    assert sorted(os.listdir(volume)) == before


def test_a_racing_swapper_never_gets_its_link_followed(volume: Path, outside: Path, root: int) -> None:
    """A container's thread turns `a/b` into a link to the host and back, as fast as it can."""
    (volume / "evil").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(volume / "a" / "b", volume / "aside")
            os.rename(volume / "evil", volume / "a" / "b")
            os.rename(volume / "a" / "b", volume / "evil")
            os.rename(volume / "aside", volume / "a" / "b")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(5000):
            try:
                seen.add(read_regular(root, "a/b/file", 100))
            except OSError as error:
                assert error.errno in (errno.ELOOP, errno.ENOENT, errno.ENOTDIR)  # noqa: PT017
    finally:
        stop.set()
        swapper.join()
    assert SECRET not in seen
