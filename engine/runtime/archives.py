"""Reads image archives: what `docker save` writes, and OCI image layouts in a tar or a directory.

Pure reading: nothing is written here. Layers come out as streams, so that an archive larger than
memory is no problem.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from engine.api.errors import InvalidInput
from engine.runtime.references import normalised, split_tag

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"


@dataclass(frozen=True, slots=True)
class ArchivedImage:
    """One image. `layers` are member names, first applied first, `diff_ids` the digests of their content."""

    config: dict[str, Any]
    raw_config: bytes
    layers: Sequence[str]
    diff_ids: Sequence[str]
    tags: Sequence[str]
    manifest_digest: str

    @property
    def id(self) -> str:
        return "sha256:" + hashlib.sha256(self.raw_config).hexdigest()


class Archive:
    """An opened archive; use as a context manager. Raises InvalidInput about the archive's path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar: tarfile.TarFile | None = None
        if not path.is_dir():
            try:
                self._tar = tarfile.open(path)  # noqa: SIM115  (closed by __exit__)
            except (tarfile.TarError, EOFError) as error:
                raise InvalidInput(f"not an image archive: {error}", subject=str(path)) from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tar is not None:
            self._tar.close()

    def images(self) -> list[ArchivedImage]:
        if self._has("manifest.json"):
            return [self._docker_image(entry) for entry in self._json("manifest.json")]
        if self._has("index.json"):
            return self._oci_images(self._json("index.json"))
        raise InvalidInput("expected manifest.json (docker save) or index.json (OCI)", subject=str(self.path))

    def layer(self, name: str) -> IO[bytes]:
        """The uncompressed layer tar as a stream."""
        stream = self._open(name)
        magic = stream.read(6)
        stream.seek(0)
        if magic.startswith(b"\x1f\x8b"):
            return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        if magic.startswith(b"BZh"):
            return bz2.BZ2File(stream)
        if magic.startswith(b"\xfd7zXZ"):
            return lzma.LZMAFile(stream)
        if magic.startswith(b"\x28\xb5\x2f\xfd"):
            raise InvalidInput("zstd layers are not supported", subject=f"{self.path}: {name}")
        return stream

    def _docker_image(self, entry: dict[str, Any]) -> ArchivedImage:
        raw = self._read(entry["Config"])
        config = json.loads(raw)
        diff_ids = config["rootfs"]["diff_ids"]
        manifest = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": {"mediaType": DOCKER_CONFIG, "digest": _digest(raw), "size": len(raw)},
            "layers": [
                {"mediaType": DOCKER_LAYER, "digest": diff_id, "size": self._size(name)}
                for diff_id, name in zip(diff_ids, entry["Layers"], strict=True)
            ],
        }
        digest = _digest(json.dumps(manifest, separators=(",", ":")).encode())
        tags = [normalised(tag) for tag in entry.get("RepoTags") or []]
        return ArchivedImage(config, raw, entry["Layers"], diff_ids, tags, digest)

    def _oci_images(self, index: dict[str, Any]) -> list[ArchivedImage]:
        found: dict[str, ArchivedImage] = {}
        for descriptor in index["manifests"]:
            annotations = descriptor.get("annotations") or {}
            name = annotations.get("io.containerd.image.name") or annotations.get(
                "org.opencontainers.image.ref.name", ""
            )
            digest = descriptor["digest"]
            document = self._blob_json(digest)
            if descriptor.get("mediaType") in INDEXES or "manifests" in document:
                chosen = _for_this_machine(document["manifests"], self.path)
                document = self._blob_json(chosen["digest"])
            raw = self._read(_blob(document["config"]["digest"]))
            config = json.loads(raw)
            # A bare tag names nothing; only full names do.
            tags = [normalised(name)] if split_tag(name)[1] or "/" in name else []
            earlier = found.get(digest)
            found[digest] = ArchivedImage(
                config,
                raw,
                [_blob(layer["digest"]) for layer in document["layers"]],
                config["rootfs"]["diff_ids"],
                [*(earlier.tags if earlier else ()), *tags],
                digest,
            )
        return list(found.values())

    def _blob_json(self, digest: str) -> dict[str, Any]:
        raw = self._read(_blob(digest))
        if _digest(raw) != digest:
            raise InvalidInput(f"blob {digest} is damaged", subject=str(self.path))
        document: dict[str, Any] = json.loads(raw)
        return document

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except ValueError as error:
            raise InvalidInput(f"{name}: {error}", subject=str(self.path)) from None

    def _has(self, name: str) -> bool:
        if self._tar is None:
            return (self.path / name).exists()
        try:
            self._tar.getmember(name)
        except KeyError:
            return False
        return True

    def _size(self, name: str) -> int:
        return (self.path / name).stat().st_size if self._tar is None else self._tar.getmember(name).size

    def _read(self, name: str) -> bytes:
        with self._open(name) as stream:
            return stream.read()

    def _open(self, name: str) -> IO[bytes]:
        if self._tar is None:
            return (self.path / name).open("rb")
        try:
            member = self._tar.getmember(name)
            if member.issym() or member.islnk():
                member = self._tar.getmember(str(Path(name).parent / member.linkname))
            stream = self._tar.extractfile(member)
        except KeyError:
            raise InvalidInput(f"{name} is missing", subject=str(self.path)) from None
        return stream if stream is not None else io.BytesIO()


def architecture() -> str:
    """This machine's name in image manifests."""
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _for_this_machine(manifests: Sequence[dict[str, Any]], path: Path) -> dict[str, Any]:
    for descriptor in manifests:
        platform = descriptor.get("platform") or {}
        if platform.get("architecture", architecture()) == architecture():
            return descriptor
    raise InvalidInput(f"holds nothing for {architecture()}", subject=str(path))


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
