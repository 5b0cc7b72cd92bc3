"""Stores images imported from archives, their layers, and the built-in `host` image.

    ROOT/images/<id>.json    one per image: configuration, names, layers
    ROOT/layers/<name>/      one unpacked layer; a layer that several images share is there once
    ROOT/layers/<name>.size  its bytes and inodes

Everything appears under its final name only when it is whole. The store may be filled by another
process (`kubengine runtime import`) while a runtime reads it: a changed directory is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from engine.api.errors import InvalidInput, Refused
from engine.api.quantity import decimal
from engine.host.checksummed_file import read_checksummed, write_checksummed
from engine.host.files import remove_unfinished
from engine.host.trees import disk_usage, remove_tree
from engine.runtime.images.archives import Archive, ArchivedImage
from engine.runtime.images.layers import unpack
from engine.runtime.objects.failures import NoSuchObject, WrongState
from engine.runtime.objects.references import normalised, split_tag
from engine.wire import cri_v1_pb2 as cri

HOST_NAME = "docker.io/library/host:latest"
HOST_ID = "sha256:" + "0" * 63 + "1"
WITHOUT = "the image is gone from the store; import it again"
SIZE = ".size"
LOG = logging.getLogger(__name__)
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(slots=True)
class StoredImage:
    """Describe a stored image. `layers` are names below ROOT/layers, lowest first; `config` is the image's
    own (`Cmd`, `Env`, …).
    """

    id: str
    config: dict[str, Any]
    layers: list[str]
    tags: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    inodes: int = 0
    pinned: bool = False

    @property
    def is_host(self) -> bool:
        return self.id == HOST_ID

    def message(self) -> cri.Image:
        user = str(self.config.get("User") or "").partition(":")[0]
        image = cri.Image(
            id=self.id, repo_tags=self.tags, repo_digests=self.digests, size=self.size, pinned=self.pinned
        )
        if (uid := decimal(user)) is not None:
            image.uid.value = uid
        else:
            image.username = user
        return image


_STORED = msgspec.json.Decoder(StoredImage)


class ImageStore:
    """Store images below `root`. `archives` is a directory of archives in which a pull looks.

    `layers_in_use` returns the layers of existing containers, which outlive their image.
    """

    def __init__(
        self,
        root: Path,
        *,
        archives: Path | None = None,
        pinned: Sequence[str] = (),
        layers_in_use: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self.root = root
        self._records = root / "images"
        self.layers = root / "layers"
        self._archives = archives
        self._pinned = {normalised(name) for name in pinned}
        self._layers_in_use = layers_in_use
        self._images: dict[str, StoredImage] = {}
        self._read_at = -1
        self._lock = asyncio.Lock()
        self._bad_archives: dict[Path, str] = {}

    def open(self) -> None:
        """Create the directories and remove what an interrupted import left."""
        for directory in (self.root, self._records, self.layers):
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for partial in self.layers.glob("*.partial"):
            if _is_stale(partial):
                remove_tree(partial)
        for directory in (self._records, self.layers):
            remove_unfinished(directory)

    def get(self, reference: str) -> StoredImage | None:
        """Return an image by id, unique prefix of an id, digest or name."""
        images = self._current()
        found = images.get(reference) or images.get(f"sha256:{reference}")
        if found is not None or not reference:
            return found
        name = normalised(reference)
        for image in images.values():
            if name in image.tags or name in image.digests:
                return image
        starts = [i for i in images.values() if i.id[7:].startswith(reference.removeprefix("sha256:"))]
        return starts[0] if len(starts) == 1 and len(reference) >= 8 else None

    # CRI view

    def resolve(self, reference: str) -> cri.Image | None:
        image = self.get(reference)
        return None if image is None else image.message()

    def list(self) -> Sequence[cri.Image]:
        return [image.message() for image in self._current().values()]

    async def pull(self, reference: str) -> cri.Image:
        image = self.get(reference)
        if image is None and self._archives is not None:
            async with self._lock:
                await asyncio.to_thread(self._import_matching, reference)
            image = self.get(reference)
        if image is None:
            where = f", nor in an archive in {self._archives}" if self._archives else ""
            raise NoSuchObject(
                f"not in the store{where}; there is no registry, use `kubengine runtime import FILE`",
                subject=f"image {reference!r}",
            )
        return image.message()

    async def remove(self, reference: str) -> None:
        image = self.get(reference)
        if image is None:
            return
        if image.pinned:
            raise WrongState("is pinned", subject=f"image {reference!r}")
        async with self._lock:
            (self._records / f"{image.id[7:]}.json").unlink(missing_ok=True)
            await asyncio.to_thread(self.collect)

    def usage(self) -> tuple[str, int, int]:
        layers: dict[str, StoredImage] = {}
        for image in self._current().values():
            for layer in image.layers:
                layers[layer] = image
        used = inodes = 0
        for layer in layers:
            counted = self._layer_size(layer)
            if counted is not None:
                used, inodes = used + counted[0], inodes + counted[1]
        return str(self.root), used, inodes

    def info(self, image_id: str) -> dict[str, str]:
        image = self._current()[image_id]
        sizes = {name: counted[0] for name in image.layers if (counted := self._layer_size(name)) is not None}
        info = {"imageSpec": {"config": image.config}, "layers": image.layers, "layerSizes": sizes}
        return {"info": json.dumps(info)}

    # Import and removal

    def import_archive(self, path: Path) -> Sequence[StoredImage]:
        """Import every image of the archive at `path`. Raise InvalidInput or OSError about the archive."""
        self.open()
        with Archive(path) as archive:
            return [self._import(archive, image, []) for image in archive.images()]

    def collect(self) -> None:
        """Remove layers that no image and no container uses."""
        self._read_at = -1
        wanted = set(self._layers_in_use())
        wanted |= {layer for image in self._current().values() for layer in image.layers}
        for path in self.layers.iterdir():
            if path.suffix != ".partial" and path.name.removesuffix(SIZE) not in wanted:
                remove_tree(path)

    def _import(self, archive: Archive, image: ArchivedImage, digests: Sequence[str]) -> StoredImage:
        """Store `image` under its tags, their digests and `digests`, in addition to the names that it already
        has.
        """
        names, size, inodes = [], 0, 0
        for layer, diff_id in zip(image.layers, image.diff_ids, strict=True):
            name = diff_id.partition(":")[2][:20]
            names.append(name)
            layer_size, layer_inodes = self._import_layer(archive, layer, diff_id, name)
            size, inodes = size + layer_size, inodes + layer_inodes
        stored = StoredImage(
            image.id, image.config.get("config") or {}, names, list(image.tags), [], size, inodes
        )
        repositories = {split_tag(tag)[0] for tag in image.tags}
        stored.digests = sorted(
            {*digests, *(f"{repository}@{image.manifest_digest}" for repository in repositories)}
        )
        known = self._current().get(stored.id)
        if known is not None:
            stored.tags = sorted({*known.tags, *stored.tags})
            stored.digests = sorted({*known.digests, *stored.digests})
        self._take_tags(stored)
        self._write(stored)
        return stored

    def _import_layer(self, archive: Archive, layer: str, diff_id: str, name: str) -> tuple[int, int]:
        target = self.layers / name
        counted = self._layer_size(name)
        if counted is not None:
            return counted
        partial = self.layers / f"{name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
        partial.mkdir(mode=0o755)
        try:
            with archive.layer(layer) as stream:
                counted = unpack(stream, partial, diff_id)
            self._keep_size(name, counted)
            partial.rename(target)
        except InvalidInput as error:
            raise InvalidInput(str(error), subject=str(archive.path)) from None
        except OSError:
            counted = self._layer_size(name)  # another process that was unpacking it may have finished first
            if counted is None:
                raise
        finally:
            with contextlib.suppress(OSError):
                remove_tree(partial)
        return counted

    def _layer_size(self, name: str) -> tuple[int, int] | None:
        """Return bytes and inodes of a complete layer that is stored here."""
        if not (self.layers / name).is_dir():
            return None
        counted = read_checksummed(
            self.layers / f"{name}{SIZE}", _counted, without="the layer is counted again"
        )
        if counted is None:
            counted = disk_usage(self.layers / name)
            with contextlib.suppress(Refused):
                self._keep_size(name, counted)
        return counted

    def _keep_size(self, name: str, counted: tuple[int, int]) -> None:
        write_checksummed(self.layers / f"{name}{SIZE}", json.dumps(counted).encode())

    def _take_tags(self, newer: StoredImage) -> None:
        """Assign the names to the image that was imported last."""
        for image in self._current().values():
            if image.id != newer.id and not image.is_host and set(image.tags) & set(newer.tags):
                image.tags = [tag for tag in image.tags if tag not in newer.tags]
                self._write(image)

    def _write(self, image: StoredImage) -> None:
        document = {
            "id": image.id, "config": image.config, "layers": image.layers, "tags": image.tags,
            "digests": image.digests, "size": image.size, "inodes": image.inodes,
        }  # fmt: skip
        write_checksummed(self._records / f"{image.id[7:]}.json", json.dumps(document, indent=1).encode())
        self._read_at = -1

    def _import_matching(self, reference: str) -> None:
        """Import the image under the requested name only, as from a registry.

        An archive that cannot be read is skipped. Raise InvalidInput if the archive with the image is
        invalid.
        """
        assert self._archives is not None
        wanted = normalised(reference)
        if not self._archives.is_dir():
            return
        for path in sorted(self._archives.iterdir()):
            try:
                archive = Archive(path)
            except (InvalidInput, OSError) as error:
                self._pass_over(path, error)
                continue
            with archive:
                try:
                    images = archive.images()
                except (InvalidInput, OSError) as error:
                    self._pass_over(path, error)
                    continue
                for image in images:
                    repositories = {split_tag(tag)[0] for tag in image.tags}
                    if wanted in image.tags:
                        self._import(archive, replace(image, tags=[wanted]), [])
                        return
                    if wanted in {f"{repository}@{image.manifest_digest}" for repository in repositories}:
                        self._import(archive, replace(image, tags=[]), [wanted])
                        return

    def _pass_over(self, path: Path, error: Exception) -> None:
        """Log once why an archive is skipped."""
        text = str(error)
        if self._bad_archives.get(path) != text:
            self._bad_archives[path] = text
            LOG.warning("an image archive is ignored: %s", text)

    def _current(self) -> dict[str, StoredImage]:
        changed = self._records.stat().st_mtime_ns
        if changed != self._read_at:
            images = {HOST_ID: host_image()}
            for path in sorted(self._records.glob("*.json")):
                image = read_checksummed(path, _STORED.decode, without=WITHOUT)
                if image is not None:
                    image.pinned = bool(self._pinned & set(image.tags))
                    images[image.id] = image
            self._images, self._read_at = images, changed
        return self._images


def host_image() -> StoredImage:
    """Return the built-in image that shows the host's own file system read-only."""
    return StoredImage(
        HOST_ID, {"Env": [DEFAULT_PATH], "Cmd": ["/bin/sh"]}, [], [HOST_NAME], [], 0, 0, pinned=True
    )


def _is_stale(partial: Path) -> bool:
    """Tell whether the process that was writing it is gone."""
    pid = decimal(partial.name.rsplit(".", 2)[1].partition("-")[0])
    return pid is None or pid == os.getpid() or not Path("/proc", str(pid)).exists()


def _counted(content: bytes) -> tuple[int, int]:
    size, inodes = json.loads(content)
    return int(size), int(inodes)
