"""Archives that mean harm or are broken: they reach nothing outside, and fail alone and by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.api.errors import InvalidInput
from engine.cli.runtime import command
from engine.runtime.images import archives, layers
from engine.runtime.images.archives import Archive
from engine.runtime.images.layers import unpack
from engine.runtime.images.store import ImageStore
from engine.runtime.images.tars import Limits
from engine.runtime.shim.linux import OPAQUE_ATTRIBUTE
from engine.testing.images import ImageEntry, make_layer, write_image, write_oci_image

pytestmark = pytest.mark.root


class Tar:
    """Write tar archives with headers that no ordinary tool would write."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._out, mode="w", format=tarfile.PAX_FORMAT)

    def add(
        self, name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "",
        pax: dict[str, str] | None = None,
    ) -> Tar:  # fmt: skip
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size, info.mode = kind, link, len(data), 0o755
        info.pax_headers = pax or {}
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def bytes(self) -> bytes:
        self._tar.close()
        return self._out.getvalue()


def _unpacked(layer: bytes, place: Path) -> Path:
    target = place / "store" / "layer"
    target.mkdir(parents=True, exist_ok=True)
    unpack(io.BytesIO(layer), target, _digest(layer))
    return target


@pytest.mark.parametrize(
    "name",
    [
        ".wh...", ".wh..", ".wh.", "a/.wh...", "a/.wh..", "./.wh...", "a/./.wh...", ".wh..//", ".wh.x/y",
        ".wh.../y", "/.wh...", "../.wh.x", "a/../../x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_names_that_escape_are_refused_and_nothing_outside_changes(
    tmp_path: Path, name: str, kind: bytes
) -> None:
    neighbour = tmp_path / "store" / "neighbour"
    neighbour.mkdir(parents=True)
    layer = Tar().add("a/kept", b"1").add(name, kind=kind, link="x").bytes()
    with pytest.raises(InvalidInput):
        _unpacked(layer, tmp_path)
    assert neighbour.is_dir()
    assert (tmp_path / "store" / "layer" / "a" / "kept").is_file()


def test_whiteouts_hide_only_layers_below(tmp_path: Path) -> None:
    """The order of a layer's own path and its whiteout does not matter."""
    layer = (
        Tar()
        .add("file", b"new").add(".wh.file")
        .add("first/inside", b"new").add(".wh.first")
        .add(".wh.second").add("second/inside", b"new")
        .add(".wh.gone")
        .add("opaque/.wh..wh..opq").add("opaque/new", b"new")
        .add(".wh..wh.plnk/5.6", b"aufs").add(".wh..wh.aufs", b"aufs")
        .bytes()
    )  # fmt: skip
    target = _unpacked(layer, tmp_path)
    assert (target / "file").read_bytes() == b"new"
    for name in ("first", "second"):
        assert (target / name / "inside").read_bytes() == b"new"
    for name in ("first", "second", "opaque"):
        assert os.getxattr(target / name, OPAQUE_ATTRIBUTE) == b"y"
    assert (target / "gone").is_char_device()
    assert not (target / ".wh..wh.aufs").exists()


@pytest.mark.parametrize(
    "link", ["../../secret", "/../secret", "nothing", "way/secret", "directory", "", ".", "late"]
)
def test_hard_links_reach_only_files_before_them(tmp_path: Path, link: str) -> None:
    (tmp_path / "secret").write_text("host")
    layer = (
        Tar().add("way", kind=tarfile.SYMTYPE, link=str(tmp_path)).add("directory", kind=tarfile.DIRTYPE)
        .add("link", kind=tarfile.LNKTYPE, link=link).add("late", b"1").bytes()
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="link to"):
        _unpacked(layer, tmp_path)
    assert (tmp_path / "secret").read_text() == "host"


def test_hard_links_to_files_symlinks_and_themselves(tmp_path: Path) -> None:
    layer = (
        Tar().add("d/file", b"1").add("d/soft", kind=tarfile.SYMTYPE, link="/etc/shadow")
        .add("one", kind=tarfile.LNKTYPE, link="./d//file").add("two", kind=tarfile.LNKTYPE, link="/d/soft")
        .add("d/file", kind=tarfile.LNKTYPE, link="d/file").bytes()
    )  # fmt: skip
    target = _unpacked(layer, tmp_path)
    assert (target / "one").samefile(target / "d/file")
    assert (target / "two").readlink() == Path("/etc/shadow")
    assert (target / "d/file").read_bytes() == b"1"


def test_overlayfs_own_attributes_are_not_taken_from_an_image(tmp_path: Path) -> None:
    pax = {
        "SCHILY.xattr.trusted.overlay.redirect": "/../../etc", "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.user.kept": "yes",
    }  # fmt: skip
    target = _unpacked(Tar().add("d", kind=tarfile.DIRTYPE, pax=pax).bytes(), tmp_path)
    assert os.listxattr(target / "d") in (["user.kept"], [])


def test_sparse_file_keeps_its_holes(tmp_path: Path) -> None:
    pax = {
        "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,3,8589934589,3",
        "GNU.sparse.size": "8589934592", "GNU.sparse.name": "holes",
    }  # fmt: skip
    layer = Tar().add("GNUSparseFile.0/holes", b"onetwo", pax=pax).bytes()
    target = tmp_path / "layer"
    target.mkdir()
    assert unpack(io.BytesIO(layer), target, _digest(layer)) == (6, 1)
    status = (target / "holes").stat()
    assert status.st_size == 8 << 30
    assert status.st_blocks * 512 < 1 << 20
    with (target / "holes").open("rb") as file:
        assert file.read(4) == b"one\0"
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"\0two"


@pytest.mark.parametrize(
    ("limits", "layer"),
    [
        (Limits(entries=2, size=1 << 30), Tar().add("a").add("b").add("c").bytes()),
        (Limits(entries=9, size=100_000), Tar().add("a", b"x" * 60_000).add("b", b"x" * 60_000).bytes()),
        (layers.LIMITS, Tar().add("a", pax={"comment": "x" * (2 << 20)}).bytes()),
        (layers.LIMITS, Tar().add("a", pax={"size": str(1 << 60)}).bytes()),
        (layers.LIMITS, Tar().add("a", pax={"mtime": "inf"}).bytes()),
        (layers.LIMITS, Tar().add("a", b"x" * 5000).bytes()[:3000]),
        (layers.LIMITS, b"no tar at all" * 100),
    ],
    ids=["entries", "size", "headers", "claim", "time", "cut", "junk"],
)
def test_layers_past_a_limit_are_refused_by_name(tmp_path: Path, limits: Limits, layer: bytes) -> None:
    with pytest.raises(InvalidInput, match=_digest(layer)):
        unpack(io.BytesIO(layer), tmp_path, _digest(layer), limits)


def test_links_in_an_archive_follow_their_kind(tmp_path: Path) -> None:
    """A symbolic link starts at its directory, a hard link at the archive's root; both may wind."""
    layer = make_layer([ImageEntry("f", data=b"1")])
    config = json.dumps({"rootfs": {"diff_ids": [_digest(layer)] * 3}}).encode()
    names = ["a/soft.tar", "b/hard.tar", "./c/../real/layer.tar"]
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": names}]).encode()
    path = tmp_path / "i.tar"
    path.write_bytes(
        Tar().add("./real/layer.tar", layer)
        .add("a/soft.tar", kind=tarfile.SYMTYPE, link="../b/./../a/next")
        .add("a/next", kind=tarfile.SYMTYPE, link="/real/layer.tar")
        .add("b/hard.tar", kind=tarfile.LNKTYPE, link="real/layer.tar")
        .add("c.json", config).add("./manifest.json", manifest).bytes()
    )  # fmt: skip
    with Archive(path) as archive:
        [image] = archive.images()
        for name in image.layers:
            with archive.layer(name) as stream:
                assert stream.read() == layer


def _sparse_manifest(path: Path) -> None:
    pax = {
        "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,2",
        "GNU.sparse.size": str(8 << 30), "GNU.sparse.name": "manifest.json",
    }  # fmt: skip
    path.write_bytes(Tar().add("x", b"[]", pax=pax).bytes())


def _with_config(config: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        manifest = [{"Config": "c.json", "RepoTags": ["x:1"], "Layers": []}]
        document = config if isinstance(config, bytes) else json.dumps(config).encode()
        path.write_bytes(
            Tar().add("c.json", document).add("manifest.json", json.dumps(manifest).encode()).bytes()
        )

    return write


def _with_manifest(manifest: object) -> Callable[[Path], None]:
    return lambda path: _ignore(
        path.write_bytes(Tar().add("manifest.json", json.dumps(manifest).encode()).bytes())
    )


def _oci_that_climbs(path: Path) -> None:
    (path / "blobs").mkdir(parents=True)
    index = {"manifests": [{"digest": "sha256:../../../../../../etc/passwd"}]}
    (path / "index.json").write_text(json.dumps(index))


def _docker_directory_that_climbs(path: Path) -> None:
    path.mkdir()
    (path.parent.parent / "secret.json").write_text('{"rootfs": {"diff_ids": []}}')
    (path / "manifest.json").write_text('[{"Config": "../../secret.json", "Layers": []}]')


def _cut(path: Path) -> None:
    write_image(path, ["x:1"])
    path.write_bytes(path.read_bytes()[:100_000])


def _cut_gzip(path: Path) -> None:
    write_image(path, ["x:1"])
    path.write_bytes(gzip.compress(path.read_bytes())[:50_000])


def _circle(path: Path) -> None:
    tar = Tar().add("manifest.json", kind=tarfile.SYMTYPE, link="b").add("b", kind=tarfile.LNKTYPE, link="b")
    path.write_bytes(tar.bytes())


def _ignore(_: object) -> None:
    return None


BAD: dict[str, Callable[[Path], None]] = {
    "sparse": _sparse_manifest,
    "fifo": os.mkfifo,
    "dangling": lambda path: path.symlink_to("/nowhere"),
    "empty": lambda path: _ignore(path.write_bytes(b"")),
    "text": lambda path: _ignore(path.write_text("text")),
    "cut": _cut,
    "cut-gzip": _cut_gzip,
    "circle": _circle,
    "not-a-list": _with_manifest({"a": 1}),
    "no-config": _with_manifest([{"Layers": []}]),
    "numbers": _with_manifest([1, 2]),
    "config-list": _with_config([]),
    "config-without-rootfs": _with_config({}),
    "layers-unlike-diff-ids": _with_config({"rootfs": {"diff_ids": ["sha256:" + "0" * 64]}}),
    "env-of-numbers": _with_config({"rootfs": {"diff_ids": []}, "config": {"Env": [1]}}),
    "deep-config": _with_config(b'{"rootfs": {"diff_ids": []}, "x": ' + b"[" * 100_000),
    "large-config": _with_config(b'{"rootfs": {"diff_ids": []}}' + b" " * archives.MAX_DOCUMENT),
    "binary-config": _with_config(b"\xff\xfe\x00"),
    "climbing-oci": _oci_that_climbs,
    "climbing-docker": _docker_directory_that_climbs,
    "empty-directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", BAD)
async def test_bad_archive_fails_itself_alone_and_is_named(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    bad = shelf / "a-bad-one.tar"
    BAD[kind](bad)
    write_image(shelf / "good.tar", ["good:1"], layers=[make_layer([ImageEntry("f", data=b"1")])])
    store = ImageStore(tmp_path / "root", archives=shelf)
    store.open()
    with pytest.raises(InvalidInput, match=str(bad)):
        store.import_archive(bad)
    with caplog.at_level(logging.WARNING):
        assert list((await store.pull("good:1")).repo_tags) == ["docker.io/library/good:1"]
        with pytest.raises(InvalidInput, match="not in the store"):
            await store.pull("elsewhere:1")
    assert [str(bad) in message for message in caplog.messages] == [True]


def test_random_damage_is_named_or_harmless(tmp_path: Path) -> None:
    """Any byte may be wrong: an archive is imported, or refused by name."""
    chance = random.Random(12)
    layer = make_layer([ImageEntry("d"), ImageEntry("d/f", data=b"1" * 700), ImageEntry("l", link="d/f")])
    good = [
        write(tmp_path / f"{write.__name__}.tar", ["docker.io/library/x:1"], layers=[layer]).read_bytes()
        for write in (write_image, write_oci_image)
    ]
    store = ImageStore(tmp_path / "root")
    path = tmp_path / "damaged.tar"
    for _ in range(300):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.choice(
                [0, 0x2E, 0x2F, 0x35, 0xFF, chance.randrange(256)]
            )
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        refusals: list[str] = []
        try:
            store.import_archive(path)
        except InvalidInput as error:
            refusals.append(str(error))
        assert all(str(path) in refusal for refusal in refusals)
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "root", "damaged.tar", "write_image.tar", "write_oci_image.tar"
    }  # fmt: skip


def test_unpacking_that_fails_while_another_process_has_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_image(tmp_path / "i.tar", ["x:1"], layers=[make_layer([ImageEntry("f", data=b"good")])])
    store, other = ImageStore(tmp_path / "root"), ImageStore(tmp_path / "root")

    def lose(*_: object) -> tuple[int, int]:
        monkeypatch.undo()
        other.import_archive(archive)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.runtime.images.store.unpack", lose)
    [image] = store.import_archive(archive)
    assert (image.size, image.inodes) == (4, 1)


@pytest.mark.parametrize("after", [True, False])
def test_an_import_writes_only_to_its_target(tmp_path: Path, after: bool) -> None:
    archive = write_image(tmp_path / "i.tar", ["x:1"], layers=[make_layer([ImageEntry("f", data=b"1")])])
    root = ["--root", str(tmp_path / "root")]
    words = ["import", *root, str(archive)] if after else [*root, "import", str(archive)]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    assert ImageStore(tmp_path / "root").get("x:1") is not None


def test_import_refuses_options_that_mean_nothing_to_it(tmp_path: Path) -> None:
    archive = write_image(tmp_path / "i.tar", ["x:1"], layers=[make_layer([ImageEntry("f", data=b"1")])])
    result = CliRunner().invoke(command, ["--pod-cidr", "10.0.0.0/24", "import", str(archive)])
    assert result.exit_code == 2
    assert "--pod-cidr" in result.output


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
