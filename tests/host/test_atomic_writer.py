"""Sets of files are swapped as one, in directories in which anything may have been planted."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.host import atomic_writer as published
from engine.host.atomic_writer import PublishedFile, publish
from engine.host.safe_open import create_regular, opened

NOW = 1_700_000_000.0
SECRET = "the host's own"


def text(content: str, mode: int = 0o644) -> PublishedFile:
    return PublishedFile(content.encode(), mode)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text(SECRET)
    (tmp_path / "outside" / "labels").write_text(SECRET)
    return tmp_path / "volume"


@pytest.fixture
def outside(volume: Path) -> Iterator[Path]:
    """Yield the directory beside the volume, and check afterwards that nothing in it has changed."""
    outside = volume.parent / "outside"
    before = {p.name: p.lstat() for p in outside.iterdir()}
    yield outside
    assert {p.name: p.lstat() for p in outside.iterdir()} == before
    assert {p.read_text() for p in outside.iterdir()} == {SECRET}


def show(volume: Path, files: Mapping[str, PublishedFile], group: int | None = None) -> bool:
    with opened(volume) as directory:
        return publish(directory, files, group=group, now=NOW)


def visible_files(volume: Path) -> dict[str, str]:
    """Return the files that a container sees, by name, read through the volume's links."""
    top = volume / "..data"
    files = [Path(where) / name for where, _, names in os.walk(f"{top}/") for name in names]
    names = [str(file.relative_to(top)) for file in files]
    return {name: (volume / name).read_text() for name in names}


def test_lies_on_disk_as_a_kubelet_leaves_it(volume: Path) -> None:
    assert show(volume, {"labels": text("a"), "sub/deep/cpu": text("1", 0o400)})
    current = os.readlink(volume / "..data")
    assert re.fullmatch(r"\.\.2023_11_14_22_13_20\.\d+", current)
    assert sorted(os.listdir(volume)) == sorted(["..data", current, "labels", "sub"])
    assert os.readlink(volume / "labels") == "..data/labels"
    assert os.readlink(volume / "sub") == "..data/sub"
    assert visible_files(volume) == {"labels": "a", "sub/deep/cpu": "1"}
    modes = {p: stat.S_IMODE((volume / p).stat().st_mode) for p in (current, "labels", "sub", "sub/deep/cpu")}
    assert modes == {current: 0o755, "labels": 0o644, "sub": 0o755, "sub/deep/cpu": 0o400}


def test_equal_files_stay_and_different_ones_are_swapped(volume: Path) -> None:
    show(volume, {"labels": text("a"), "old": text("o")})
    first = os.readlink(volume / "..data")
    assert not show(volume, {"labels": text("a"), "old": text("o")})
    assert os.readlink(volume / "..data") == first
    for files in (
        {"labels": text("b"), "old": text("o")},
        {"labels": text("b", 0o600), "old": text("o")},
        {"labels": text("b", 0o600)},
        {"labels": text("b", 0o600), "sub/new": text("")},
        {},
    ):
        before = os.readlink(volume / "..data")
        assert show(volume, files)
        current = os.readlink(volume / "..data")
        assert current != before
        assert visible_files(volume) == {path: file.data.decode() for path, file in files.items()}
        assert sorted(os.listdir(volume)) == sorted(["..data", current, *{p.split("/")[0] for p in files}])


@pytest.mark.root
def test_a_group_may_read_what_it_is_given(volume: Path) -> None:
    files = {"secret": PublishedFile(b"s", 0o400, uid=1234), "sub/open": text("o")}
    show(volume, files, group=4321)
    found = {p: (volume / p).stat() for p in ("secret", "sub", "sub/open", "..data")}
    assert {s.st_gid for s in found.values()} == {4321}
    assert found["secret"].st_uid == 1234
    modes = {path: stat.S_IMODE(s.st_mode) for path, s in found.items()}
    assert modes == {"secret": 0o440, "sub": 0o2755, "sub/open": 0o644, "..data": 0o2755}
    assert not show(volume, files, group=4321)
    assert show(volume, files, group=4322)


def plant_link_for_file(volume: Path, outside: Path) -> None:
    (volume / "labels").symlink_to(outside / "file")


def plant_link_for_directory(volume: Path, outside: Path) -> None:
    (volume / "sub").symlink_to(outside)


def plant_file(volume: Path, outside: Path) -> None:
    (volume / "labels").write_text("planted")


def plant_directory(volume: Path, outside: Path) -> None:
    (volume / "labels" / "deep").mkdir(parents=True)
    (volume / "labels" / "link").symlink_to(outside)


def plant_data(volume: Path, outside: Path) -> None:
    (volume / "..data").symlink_to(outside)


def plant_relative_data(volume: Path, outside: Path) -> None:
    (volume / "..data").symlink_to("../outside")


def plant_named_data(volume: Path, outside: Path) -> None:
    (volume / "..data").symlink_to("..evil")
    (volume / "..evil").symlink_to(outside)


def plant_data_directory(volume: Path, outside: Path) -> None:
    (volume / "..data").mkdir()
    (volume / "..data" / "labels").symlink_to(outside / "file")


def plant_unfinished(volume: Path, outside: Path) -> None:
    (volume / "..data_tmp").symlink_to(outside)
    (volume / "..2020_01_01_00_00_00.1").mkdir()
    (volume / "..2020_01_01_00_00_00.1" / "link").symlink_to(outside)


def plant_in_the_set(volume: Path, outside: Path) -> None:
    show(volume, {"labels": text("a"), "sub/cpu": text("1")})
    (volume / "..data" / "labels").unlink()
    (volume / "..data" / "labels").symlink_to(outside / "labels")
    (volume / "..data" / "sub" / "cpu").unlink()
    (volume / "..data" / "sub").rmdir()
    (volume / "..data" / "sub").symlink_to(outside)


def plant_fifo(volume: Path, outside: Path) -> None:
    show(volume, {"labels": text(""), "sub/cpu": text("1")})
    (volume / "..data" / "labels").unlink()
    os.mkfifo(volume / "..data" / "labels", 0o644)


@pytest.mark.parametrize(
    "plant",
    [
        plant_link_for_file,
        plant_link_for_directory,
        plant_file,
        plant_directory,
        plant_data,
        plant_relative_data,
        plant_named_data,
        plant_data_directory,
        plant_unfinished,
        plant_in_the_set,
        plant_fifo,
    ],
)
def test_planted_links_are_replaced_and_never_followed(
    volume: Path, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(volume, outside)
    files = {"labels": text(""), "sub/cpu": text("1")}
    assert show(volume, files)
    assert visible_files(volume) == {"labels": "", "sub/cpu": "1"}
    assert sorted(os.listdir(volume)) == sorted(["..data", os.readlink(volume / "..data"), "labels", "sub"])
    assert not show(volume, files)


def test_foreign_files_in_the_directory_stay(volume: Path, outside: Path) -> None:
    """Directories where containers mount other volumes, and a link that is not ours."""
    (volume / "nested" / "point").mkdir(parents=True)
    (volume / "link").symlink_to(outside)
    show(volume, {"labels": text("a")})
    show(volume, {})
    assert sorted(n for n in os.listdir(volume) if not n.startswith("..")) == ["link", "nested"]


@pytest.mark.parametrize(
    "paths",
    [
        [""],
        ["."],
        ["/etc/passwd"],
        [".."],
        ["../x"],
        ["a/../../x"],
        ["..data"],
        ["..data/x"],
        ["..x"],
        ["a\0b"],
        ["x" * 256],
        ["a/" * 2100 + "x"],
        ["a", "a/b"],
    ],
)
def test_paths_that_lead_out_are_refused_and_nothing_changes(volume: Path, paths: list[str]) -> None:
    show(volume, {"labels": text("a")})
    before = sorted(os.listdir(volume))
    with pytest.raises(InvalidInput):
        show(volume, {path: text("x") for path in paths})
    assert sorted(os.listdir(volume)) == before


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_failure_leaves_the_old_set_whole(
    volume: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    show(volume, {"a": text("1"), "b": text("1"), "c": text("1")})
    before = sorted(os.listdir(volume))
    written = 0

    def full(*args: object, **named: object) -> None:
        nonlocal written
        written += 1
        if written == fails_at:
            raise OSError(28, "No space left on device")
        create_regular(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(published, "create_regular", full)
    with pytest.raises(OSError, match="No space"):
        show(volume, {"a": text("2"), "b": text("2"), "c": text("2")})
    assert sorted(os.listdir(volume)) == before
    assert set(visible_files(volume).values()) == {"1"}


def test_a_reader_sees_all_old_or_all_new(volume: Path) -> None:
    def both(number: int) -> dict[str, PublishedFile]:
        return {"a": text(str(number)), "b": text(str(number))}

    show(volume, both(0))
    stop, mixed = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                with opened(volume / "..data") as current:
                    pair = []
                    for name in ("a", "b"):
                        with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=current)) as file:
                            pair.append(file.read())
            except FileNotFoundError:
                continue  # the set went between two steps of a reader that took its time
            if pair[0] != pair[1]:
                mixed.append(pair)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 200):
            show(volume, both(number))
            assert (volume / "a").read_text() == str(number)
    finally:
        stop.set()
        reader.join()
    assert mixed == []
