"""Mounts by descriptor, and their removal by what they are rather than where a name leads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.host.mountinfo import mounts_below
from engine.host.mounts import bind, mount_filesystem, unmount, unmount_below
from engine.host.safe_open import HANDLE, opened

pytestmark = pytest.mark.root


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory with a blank, a tab, a backslash and a newline in its name; a mount table escapes
    them."""
    place = tmp_path / "a b\tc\\d\ne"
    place.mkdir()
    yield place
    unmount_below(tmp_path)


def test_the_descriptor_is_mounted_even_after_a_rename(place: Path) -> None:
    (place / "part").mkdir()
    (place / "part" / "file").write_text("mine")
    (place / "point").mkdir()
    with opened(place / "part") as part:
        (place / "part").rename(place / "moved")
        (place / "part").symlink_to("/etc")
        bind(part, place / "point")
    assert os.listdir(place / "point") == ["file"]
    assert mounts_below(place) == [place / "point"]
    unmount_below(place)
    assert mounts_below(place) == []
    assert (place / "moved" / "file").read_text() == "mine"


def test_stacked_and_nested_mounts_all_go_the_latest_first(place: Path) -> None:
    for _ in range(2):
        mount_filesystem("tmpfs", place, "size=65536")
        (place / "in").mkdir()
        mount_filesystem("tmpfs", place / "in", "size=65536")
    assert len(mounts_below(place)) == 4
    unmount_below(place)
    assert mounts_below(place) == []


def test_a_directory_reached_through_a_link_has_the_same_mounts(place: Path) -> None:
    (place / "real" / "point").mkdir(parents=True)
    (place / "link").symlink_to("real")
    mount_filesystem("tmpfs", place / "link" / "point", "size=65536")
    assert mounts_below(place / "link") == [place / "real" / "point"]
    unmount_below(place / "link")
    assert mounts_below(place) == []


def test_a_neighbour_with_the_same_prefix_stays_mounted(place: Path) -> None:
    (place / "one").mkdir()
    (place / "one-more").mkdir()
    mount_filesystem("tmpfs", place / "one-more", "size=65536")
    unmount_below(place / "one")
    assert mounts_below(place) == [place / "one-more"]


def test_only_the_top_of_a_mount_is_unmounted(place: Path) -> None:
    handle = os.open(place, HANDLE)
    with pytest.raises(OSError) as caught:
        unmount(handle)
    os.close(handle)
    assert caught.value.errno == errno.EINVAL


def test_nothing_is_unmounted_through_a_planted_link(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read, then the container swaps a directory of the path for a link to the host's mount."""
    (place / "pod" / "a" / "point").mkdir(parents=True)
    (place / "host" / "point").mkdir(parents=True)
    mount_filesystem("tmpfs", place / "pod" / "a" / "point", "size=65536")
    mount_filesystem("tmpfs", place / "host" / "point", "size=65536")
    listed = mounts_below(place / "pod")
    (place / "pod" / "a").rename(place / "pod" / "moved")
    (place / "pod" / "a").symlink_to(place / "host")
    monkeypatch.setattr("engine.host.mounts.mounts_below", lambda directory: listed)
    with pytest.raises(OSError) as caught:
        unmount_below(place / "pod")
    assert caught.value.errno == errno.ELOOP
    assert mounts_below(place / "host") == [place / "host" / "point"]
