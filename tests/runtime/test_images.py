"""Archives, layers, references and the store of the embedded runtime."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput, NotFound, Refused
from engine.runtime.images.archives import Archive
from engine.runtime.images.layers import unpack
from engine.runtime.images.store import HOST_NAME, ImageStore
from engine.runtime.objects.references import normalised, split_tag
from engine.runtime.shim.flatten import flatten
from engine.testing.containerd import Containerd
from engine.testing.images import (
    ImageEntry,
    busybox_layer,
    make_layer,
    padding_layer,
    write_busybox,
    write_image,
    write_oci_image,
)
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods, embedded_runtime

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("me/app", "docker.io/me/app:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("localhost/app:1", "localhost/app:1"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("example.com/a/b/c:v1", "example.com/a/b/c:v1"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        (f"example.com:5000/a:tag@{DIGEST}", f"example.com:5000/a@{DIGEST}"),
        (DIGEST, DIGEST),
    ],
)
def test_short_names_mean_full_ones(written: str, meant: str) -> None:
    assert normalised(written) == meant
    assert normalised(meant) == meant


def test_port_is_no_tag() -> None:
    assert split_tag("localhost:5000/app") == ("localhost:5000/app", "")
    assert split_tag("localhost:5000/app:1") == ("localhost:5000/app", "1")


def test_docker_and_oci_archives_hold_the_same_image(tmp_path: Path) -> None:
    with (
        Archive(write_image(tmp_path / "d.tar", ["a:1"])) as docker,
        Archive(write_oci_image(tmp_path / "o.tar", ["docker.io/library/a:1"])) as oci,
    ):
        [one], [two] = docker.images(), oci.images()
        assert one.id == two.id
        assert one.tags == two.tags == ["docker.io/library/a:1"]
        with docker.layer(one.layers[0]) as first, oci.layer(two.layers[0]) as second:
            assert first.read() == second.read() == busybox_layer()


def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidInput, match=str(tmp_path / "text")):
        Archive(tmp_path / "text")
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(tmp_path / "text", "text")
    with Archive(tmp_path / "other.tar") as archive, pytest.raises(InvalidInput, match=r"manifest\.json"):
        archive.images()


@pytest.mark.root
def test_layer_is_unpacked_with_owners_modes_and_whiteouts(tmp_path: Path) -> None:
    layer = make_layer(
        [
            ImageEntry("d", mode=0o1777, uid=3, gid=4),
            ImageEntry("d/file", data=b"x" * 10, mode=0o4755, uid=5, gid=6),
            ImageEntry("link", link="d/file"),
            ImageEntry("gone/.wh.this", data=b""),
            ImageEntry("opaque/.wh..wh..opq", data=b""),
        ]
    )
    size, inodes = unpack(io.BytesIO(layer), tmp_path, _digest(layer))
    assert (size, inodes) == (10, 5)
    status = (tmp_path / "d/file").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o4755, 5, 6)
    assert (tmp_path / "d").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "link").readlink() == Path("d/file")
    assert (tmp_path / "gone/this").is_char_device()
    assert os.getxattr(tmp_path / "opaque", "trusted.overlay.opaque") == b"y"


@pytest.mark.root
@pytest.mark.parametrize("name", ["../out", "a/../../out", "way/out"])
def test_layer_cannot_leave_its_directory(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    layer = _raw_layer([("way", None, str(tmp_path)), (name, b"bad", "")])
    with pytest.raises(InvalidInput):
        unpack(io.BytesIO(layer), target, _digest(layer))
    assert not (tmp_path / "out").exists()


@pytest.mark.root
def test_damaged_layer_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    archive = write_image(tmp_path / "i.tar", ["x:1"], layers=[make_layer([ImageEntry("f", data=b"good")])])
    damaged = tmp_path / "bad.tar"
    damaged.write_bytes(archive.read_bytes().replace(b"good", b"evil"))
    store = ImageStore(tmp_path / "root")
    store.open()
    with pytest.raises(InvalidInput, match="the digest of its content is"):
        store.import_archive(damaged)
    assert list(store.layers.iterdir()) == []
    assert [image.repo_tags for image in store.list()] == [[HOST_NAME]]


@pytest.mark.root
def test_layers_stack_by_copying_as_overlayfs_would(tmp_path: Path) -> None:
    lower = make_layer(
        [
            ImageEntry("keep", data=b"1"),
            ImageEntry("hide", data=b"1"),
            ImageEntry("d"),
            ImageEntry("d/old", data=b"1"),
        ]
    )
    upper = make_layer(
        [
            ImageEntry(".wh.hide", data=b""),
            ImageEntry("d/.wh..wh..opq", data=b""),
            ImageEntry("d/new", data=b"2"),
        ]
    )
    places = []
    for number, layer in enumerate((lower, upper)):
        place = tmp_path / str(number)
        place.mkdir()
        unpack(io.BytesIO(layer), place, _digest(layer))
        places.append(place)
    flatten(places, tmp_path / "flat")
    found = {str(p.relative_to(tmp_path / "flat")) for p in (tmp_path / "flat").rglob("*")}
    assert found == {"keep", "d", "d/new"}


@pytest.mark.root
def test_shared_layers_are_stored_once_and_go_with_their_last_image(tmp_path: Path) -> None:
    shared, own = padding_layer(1000, "shared"), padding_layer(500, "own")
    store = ImageStore(tmp_path / "root")
    store.import_archive(write_image(tmp_path / "1.tar", ["one:1"], layers=[shared]))
    store.import_archive(write_image(tmp_path / "2.tar", ["two:1"], layers=[shared, own]))
    assert len([p for p in store.layers.iterdir() if p.is_dir()]) == 2
    assert store.usage()[1] == 1500
    one, two = store.get("one:1"), store.get("two:1")
    assert one is not None
    assert two is not None
    assert (one.size, two.size) == (1000, 1500)
    asyncio.run(store.remove("two:1"))
    assert store.usage()[1] == 1000
    asyncio.run(store.remove(one.id))
    assert list(store.layers.iterdir()) == []


@pytest.mark.root
def test_name_moves_to_the_image_imported_last(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "root")
    [old] = store.import_archive(write_image(tmp_path / "1.tar", ["a:1"], layers=[padding_layer(10, "a")]))
    [new] = store.import_archive(write_image(tmp_path / "2.tar", ["a:1"], layers=[padding_layer(10, "b")]))
    found = store.get("a:1")
    assert found is not None
    assert found.id == new.id != old.id
    previous = store.get(old.id)
    assert previous is not None
    assert previous.tags == []


@pytest.mark.root
def test_compressed_layers_and_gzipped_archives(tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(gzip.compress(write_busybox(tmp_path / "b.tar").read_bytes()))
    store = ImageStore(tmp_path / "root")
    [image] = store.import_archive(packed)
    assert image.tags == ["docker.io/library/busybox:latest"]


@pytest.mark.root
def test_interrupted_import_is_cleaned_at_the_next_start(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "root")
    store.open()
    (store.layers / "abc.999999999-beef.partial").mkdir()
    store.open()
    assert list(store.layers.iterdir()) == []


@pytest.mark.root
async def test_images_over_the_cri(embedded: Pods, busybox_archive: Path) -> None:
    client = embedded.client
    [image] = [i for i in await client.list_images() if not i.pinned]
    assert list(image.repo_tags) == ["docker.io/library/busybox:latest"]
    assert image.size > 1 << 20
    for reference in (image.id, image.id[7:], image.id[7:20], "busybox", image.repo_digests[0]):
        assert await client.image_status(reference) == image
    assert await client.pull_image("busybox") == image.id
    with pytest.raises(NotFound, match="nothing/here"):
        await client.pull_image("example.com/nothing/here:1")
    assert await client.image_status("example.com/nothing/here:1") is None
    usage = (await client.image_fs_info()).image_filesystems[0]
    assert usage.used_bytes.value == image.size
    assert usage.fs_id.mountpoint == str(embedded.directory / "root")
    await client.remove_image("busybox")
    await client.remove_image("busybox")
    assert await client.image_status("busybox") is None
    with pytest.raises(Refused, match="pinned"):
        await client.remove_image("host")


@pytest.mark.root
async def test_image_settings_reach_the_container(embedded: Pods) -> None:
    archive = write_image(
        embedded.directory / "set.tar",
        ["settings:1"],
        config={
            "Entrypoint": ["/bin/sh", "-c"],
            "Cmd": [
                "trap 'echo quit; exit 3' QUIT; echo $FROM_IMAGE $(pwd) $(id -u); while :; do sleep 0.1; done"
            ],
            "Env": ["FROM_IMAGE=yes"],
            "WorkingDir": "/www",
            "User": "app",
            "StopSignal": "SIGQUIT",
        },
    )
    ImageStore(embedded.directory / "root").import_archive(archive)
    image = await embedded.client.image_status("settings:1")
    assert image is not None
    assert (image.username, image.HasField("uid")) == ("app", False)
    container = await embedded.start(await embedded.pod(), image="settings:1")
    for _ in range(200):
        if embedded.log(await embedded.status(container)):
            break
        await asyncio.sleep(0.02)
    await embedded.client.stop_container(container, 10)
    status = await embedded.status(container)
    assert status.exit_code == 3
    assert [text for _, _, text in embedded.log(status)] == ["yes /www 1000", "quit"]
    assert status.user.linux.uid == 1000


@pytest.mark.root
async def test_removed_image_stays_usable_for_its_containers(embedded: Pods) -> None:
    sandbox = await embedded.pod()
    container = await embedded.start(sandbox, "sleep", "1000")
    await embedded.client.remove_image("busybox")
    answer = await embedded.client.exec_sync(container, ["/bin/echo", "works"], 10)
    assert answer.stdout == b"works\n"
    layers = embedded.directory / "root" / "layers"
    assert list(layers.iterdir())
    await embedded.client.remove_container(container)
    assert not list(layers.iterdir())


@pytest.mark.root
async def test_a_pull_reads_the_archive_directory(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    shelf = tmp_path / "shelf"
    names = ["example.com/extra:2", "other.example.com/again:1"]
    write_image(shelf / "extra.tar", names, layers=[padding_layer(100)])
    (shelf / "junk").write_text("no archive")
    async with embedded_runtime(tmp_path, busybox_archive, private_cgroup_root, archives=shelf) as pods:
        reference = await pods.client.pull_image("example.com/extra:2")
        image = await pods.client.image_status("example.com/extra:2")
        assert image is not None
        assert image.id == reference
        assert list(image.repo_tags) == ["example.com/extra:2"]
        [digest] = image.repo_digests
        assert await pods.client.pull_image("other.example.com/again:1") == reference
        image = await pods.client.image_status(reference)
        assert image is not None
        assert list(image.repo_tags) == ["example.com/extra:2", "other.example.com/again:1"]
        await asyncio.gather(*(pods.client.remove_image(reference) for _ in range(5)))
        assert await pods.client.image_status(reference) is None
        assert await pods.client.pull_image(digest) == reference
        image = await pods.client.image_status(digest)
        assert image is not None
        assert (list(image.repo_tags), list(image.repo_digests)) == ([], [digest])


@pytest.mark.root
async def test_host_image_shows_the_host_and_keeps_it_unchanged(embedded: Pods) -> None:
    marker = Path("/usr/kubengine-must-not-exist")
    text = await embedded.output(
        f"test -x /usr/bin/env && echo host; touch {marker} && ls {marker}; id -u", image="host"
    )
    assert text == f"host\n{marker}\n0"
    assert not marker.exists()


@pytest.mark.root
async def test_without_overlayfs_layers_are_copied(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    async with embedded_runtime(tmp_path, busybox_archive, private_cgroup_root, overlay=False) as pods:
        script = "grep ' / ' /proc/mounts | tail -1 | cut -d' ' -f3; echo x > /new; cat /www/index.html"
        assert (await pods.output(script)).split("\n")[1] == "ok"
        assert "overlay" not in await pods.output(script)
        assert await pods.output("id -u", image="host") == "0"


@pytest.mark.root
async def test_volumes_of_a_host_image_where_the_runtime_is_kept_on_an_overlay(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    """Overlayfs refuses an upper directory on another overlay, such as the root of most containers."""
    with overlay(tmp_path) as directory:
        volume = directory / "volume"
        volume.mkdir()
        async with embedded_runtime(directory, busybox_archive, private_cgroup_root) as pods:
            mounts = [cri.Mount(container_path="/absent/from/host", host_path=str(volume))]
            script = "echo x > /absent/from/host/new; touch /absent/other; echo $?"
            assert (await pods.output(script, image="host", mounts=mounts)).split("\n")[-1] != "0"
        assert (volume / "new").read_text() == "x\n"
    assert not Path("/absent").exists()


@contextmanager
def overlay(directory: Path) -> Iterator[Path]:
    """Mount an overlay over a tmpfs."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(directory)], check=True)
    try:
        for name in ("lower", "upper", "work", "merged"):
            (directory / name).mkdir()
        layers = ",".join(f"{name}dir={directory}/{name}" for name in ("lower", "upper", "work"))
        subprocess.run(
            ["mount", "-t", "overlay", "-o", layers, "overlay", str(directory / "merged")], check=True
        )
        yield directory / "merged"
    finally:
        subprocess.run(["umount", "-R", str(directory)], check=True)


@pytest.mark.root
async def test_image_as_a_volume(embedded: Pods) -> None:
    archive = write_image(
        embedded.directory / "v.tar",
        ["volume:1"],
        layers=[make_layer([ImageEntry("sub"), ImageEntry("sub/file", data=b"from image\n", mode=0o644)])],
    )
    ImageStore(embedded.directory / "root").import_archive(archive)
    mounts = [
        cri.Mount(container_path="/v", image=cri.ImageSpec(image="volume:1"), readonly=True),
        cri.Mount(
            container_path="/s", image=cri.ImageSpec(image="volume:1"), image_sub_path="sub", readonly=True
        ),
    ]
    text = await embedded.output(
        "cat /v/sub/file /s/file; touch /v/x 2>/dev/null || echo denied", mounts=mounts
    )
    assert text == "from image\nfrom image\ndenied"


@pytest.mark.containerd
@pytest.mark.root
def test_ids_and_digests_are_containerds(containerd: Containerd, tmp_path: Path) -> None:
    """What this store calls an image, containerd calls it too."""
    store = ImageStore(tmp_path / "root")
    [image] = store.import_archive(write_busybox(tmp_path / "b.tar"))
    listed = containerd.ctr("images", "ls", "name==docker.io/library/busybox:latest")
    assert image.digests[0].split("@")[1] in listed


def _raw_layer(members: list[tuple[str, bytes | None, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data, link in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, link
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _digest(data: bytes) -> str:
    import hashlib

    return "sha256:" + hashlib.sha256(data).hexdigest()
