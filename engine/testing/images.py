"""Create image archives, for machines without a registry.

`write_image` writes the tar that `docker save` writes, `write_oci_image` an OCI image layout in a tar; `ctr
images import` and the embedded runtime accept both. Archives are deterministic: the same input gives the
same bytes, and so the same image ids.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.api.encoding.go_architecture import go_architecture
from engine.host.files import replacing_file

BUSYBOX_TAG = "docker.io/library/busybox:latest"
PAUSE_TAG = "registry.k8s.io/pause:3.9"

PASSWD = b"""root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/false
app:x:1000:1000:app:/home/app:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
"""
GROUP = b"""root:x:0:
www-data:x:33:
extra:x:50000:app
app:x:1000:
nogroup:x:65534:
"""


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """Describe one path of a layer: a file (`data`), a symbolic link (`link`) or, with neither, a
    directory.
    """

    path: str
    data: bytes | None = None
    link: str | None = None
    mode: int = 0o755
    uid: int = 0
    gid: int = 0


def make_layer(entries: Iterable[ImageEntry]) -> bytes:
    """Return an uncompressed layer tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path.strip("/"))
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            if entry.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
                tar.addfile(info)
            elif entry.data is not None:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))
            else:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
    return out.getvalue()


@lru_cache(maxsize=2)
def busybox_layer(applets: tuple[str, ...] = ()) -> bytes:
    """Return a layer of busybox with a link per applet (all, or a few where creating links is slow), and the
    few files that a container expects.

    Raise FileNotFoundError if busybox is not installed (Debian: busybox-static).
    """
    binary = next((p for p in ("/bin/busybox", "/usr/bin/busybox") if Path(p).exists()), None)
    if binary is None:
        raise FileNotFoundError("/bin/busybox: install busybox-static")
    listed = subprocess.run([binary, "--list"], check=True, capture_output=True, text=True).stdout.split()
    directories = [
        "bin", "dev", "etc", "home", "proc", "root", "run", "sys", "usr", "usr/bin", "var", "var/www", "www",
    ]  # fmt: skip
    return make_layer(
        [
            *(ImageEntry(directory) for directory in directories),
            ImageEntry("home/app", uid=1000, gid=1000),
            ImageEntry("tmp", mode=0o1777),
            ImageEntry("bin/busybox", data=Path(binary).read_bytes()),
            *(
                ImageEntry(f"bin/{name}", link="busybox", mode=0o777)
                for name in applets or listed
                if name != "busybox"
            ),
            ImageEntry("etc/passwd", data=PASSWD, mode=0o644),
            ImageEntry("etc/group", data=GROUP, mode=0o644),
            ImageEntry("www/index.html", data=b"ok\n", mode=0o644),
        ]
    )


def padding_layer(size: int, name: str = "padding") -> bytes:
    """Return a layer with one incompressible file of `size` bytes; `name` distinguishes layers of
    one size.
    """
    chunk = hashlib.sha256(name.encode()).digest()
    blocks = []
    for _ in range(size // 32 + 1):
        chunk = hashlib.sha256(chunk).digest()
        blocks.append(chunk)
    return make_layer([ImageEntry(f"padding-{name}", data=b"".join(blocks)[:size], mode=0o644)])


def _config(layers: Sequence[bytes], config: Mapping[str, Any], arch: str) -> bytes:
    return json.dumps(
        {
            "architecture": arch,
            "os": "linux",
            "created": "2024-01-01T00:00:00Z",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        },
        sort_keys=True,
    ).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _architecture() -> str:
    return go_architecture(os.uname().machine)


def write_image(
    path: Path,
    tags: Sequence[str],
    *,
    layers: Sequence[bytes] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a `docker save` archive at `path`.

    `layers` are uncompressed layer tars (busybox's by default), `config` is the image's own (`Cmd`,
    `Entrypoint`, `Env`, `User`, `WorkingDir`, `Labels`, `StopSignal`).
    """
    layers = [busybox_layer()] if layers is None else layers
    raw = _config(layers, {"Cmd": ["/bin/sh"]} if config is None else config, _architecture())
    config_name = hashlib.sha256(raw).hexdigest() + ".json"
    names = [f"{hashlib.sha256(layer).hexdigest()}/layer.tar" for layer in layers]
    manifest = [{"Config": config_name, "RepoTags": list(tags), "Layers": names}]
    files = {config_name: raw, **dict(zip(names, layers, strict=True))}
    files["manifest.json"] = json.dumps(manifest).encode()
    _write_tar(path, files)
    return path


def write_oci_image(
    path: Path,
    tags: Sequence[str],
    *,
    layers: Sequence[bytes] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write an OCI image layout in a tar at `path`; the arguments are those of `write_image`."""
    layers = [busybox_layer()] if layers is None else layers
    raw = _config(layers, {"Cmd": ["/bin/sh"]} if config is None else config, _architecture())
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": _digest(raw),
                "size": len(raw),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": _digest(layer),
                    "size": len(layer),
                }
                for layer in layers
            ],
        }
    ).encode()
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": _digest(manifest),
                "size": len(manifest),
                "annotations": {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag},
            }
            for tag in tags
        ],
    }
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (raw, manifest, *layers)}
    _write_tar(
        path,
        {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps(index).encode(),
            **blobs,
        },
    )
    return path


def write_busybox(path: Path, tags: Sequence[str] = (BUSYBOX_TAG,)) -> Path:
    """Write the busybox image: `/bin/sh` by default, users root, app (1000), nobody."""
    return write_image(path, tags)


def write_pause(path: Path, tags: Sequence[str] = (PAUSE_TAG,)) -> Path:
    """Write a sandbox image for runtimes that need one: busybox that sleeps."""
    return write_image(path, tags, config={"Entrypoint": ["/bin/sleep", "infinity"]})


def _write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
