"""Read image archives: those of `docker save`, and OCI image layouts in a tar or a directory.

Only reads. Layers are streams, so an archive may be larger than memory. Archives are untrusted: anything
wrong with one raises an InvalidInput about its path.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, TypeVar

import msgspec

from engine.api.encoding.go_architecture import go_architecture
from engine.api.errors import InvalidInput
from engine.runtime.images import tars
from engine.runtime.objects.references import normalised, split_tag

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
LIMITS = tars.Limits(entries=100_000, size=256 << 30)
MAX_DOCUMENT = 8 << 20
MAX_LINKS = 8
DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]{32,128}")
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
T = TypeVar("T")


class ArchivedImage(msgspec.Struct, frozen=True):
    """Describe one image. `layers` are member names, first applied first, `diff_ids` the digests of their
    content.
    """

    config: dict[str, Any]
    raw_config: bytes
    layers: Sequence[str]
    diff_ids: Sequence[str]
    tags: Sequence[str]
    manifest_digest: str

    @property
    def id(self) -> str:
        return "sha256:" + hashlib.sha256(self.raw_config).hexdigest()


class _DockerEntry(msgspec.Struct, rename="pascal"):
    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


class _Platform(msgspec.Struct):
    architecture: str = ""


class _Descriptor(msgspec.Struct, rename="camel"):
    digest: str
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: _Platform | None = None


class _Document(msgspec.Struct):
    """Decode an OCI index (`manifests`) or manifest (`config`, `layers`)."""

    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] = []


class _RootFs(msgspec.Struct):
    diff_ids: list[str]


class _RunConfig(msgspec.Struct, rename="pascal"):
    """Hold the configuration of the image's containers; only its structure is checked here."""

    user: str | None = None
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    stop_signal: str | None = None


class _Config(msgspec.Struct):
    rootfs: _RootFs
    config: _RunConfig | None = None


class _Member(NamedTuple):
    offset: int
    size: int
    link: str


class Archive:
    """Open an archive; use as a context manager. Raise InvalidInput about the archive's path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._stream: IO[bytes] | None = None
        self._members: dict[str, _Member] = {}
        if path.is_dir():
            return
        self._file = _open_regular(path, str(path))
        try:
            with self._readable():
                self._stream = tars.uncompressed(self._file, str(path))
                self._members = dict(self._index(self._stream))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def images(self) -> list[ArchivedImage]:
        with self._readable():
            if self._has("manifest.json"):
                entries = self._decoded("manifest.json", self._read("manifest.json"), list[_DockerEntry])
                return [self._docker_image(entry) for entry in entries]
            if self._has("index.json"):
                return self._oci_images(self._decoded("index.json", self._read("index.json"), _Document))
        raise InvalidInput("expected manifest.json (docker save) or index.json (OCI)", subject=str(self.path))

    @contextmanager
    def layer(self, name: str) -> Iterator[IO[bytes]]:
        """Return the uncompressed layer tar as a stream."""
        with self._readable(), self._open(name) as stream:
            yield tars.uncompressed(stream, f"{self.path}: {name}")

    def _index(self, stream: IO[bytes]) -> Iterator[tuple[str, _Member]]:
        source = tars.TarSource(stream, LIMITS.size, str(self.path))
        for _, member in tars.members(source, LIMITS):
            name = _clean(member.name)
            if member.isreg() and not member.issparse():
                yield name, _Member(member.offset_data, member.size, "")
            elif member.islnk():
                yield name, _Member(0, 0, _clean(member.linkname))
            elif member.issym():
                yield name, _Member(0, 0, _clean(posixpath.join(posixpath.dirname(name), member.linkname)))

    def _docker_image(self, entry: _DockerEntry) -> ArchivedImage:
        raw = self._read(entry.config)
        config = self._decoded(entry.config, raw, _Config)
        diff_ids = self._diff_ids(config, entry.layers)
        manifest = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": {"mediaType": DOCKER_CONFIG, "digest": _digest(raw), "size": len(raw)},
            "layers": [
                {"mediaType": DOCKER_LAYER, "digest": diff_id, "size": self._size(name)}
                for diff_id, name in zip(diff_ids, entry.layers, strict=True)
            ],
        }
        digest = _digest(json.dumps(manifest, separators=(",", ":")).encode())
        tags = [normalised(tag) for tag in entry.repo_tags or []]
        return ArchivedImage(
            self._decoded(entry.config, raw, dict[str, Any]), raw, entry.layers, diff_ids, tags, digest
        )

    def _oci_images(self, index: _Document) -> list[ArchivedImage]:
        found: dict[str, ArchivedImage] = {}
        for descriptor in index.manifests or []:
            annotations = descriptor.annotations or {}
            name = annotations.get("io.containerd.image.name") or annotations.get(
                "org.opencontainers.image.ref.name", ""
            )
            document = self._blob_document(descriptor.digest)
            if descriptor.media_type in INDEXES or document.manifests is not None:
                chosen = _for_this_machine(document.manifests or [], self.path)
                document = self._blob_document(chosen.digest)
            if document.config is None:
                raise InvalidInput("names no configuration", subject=f"{self.path}: {descriptor.digest}")
            raw = self._blob(document.config.digest)
            config = self._decoded(document.config.digest, raw, _Config)
            layers = [self._blob_name(layer.digest) for layer in document.layers]
            # A bare tag names no repository; only full names are accepted.
            tags = [normalised(name)] if split_tag(name)[1] or "/" in name else []
            earlier = found.get(descriptor.digest)
            found[descriptor.digest] = ArchivedImage(
                self._decoded(document.config.digest, raw, dict[str, Any]),
                raw,
                layers,
                self._diff_ids(config, layers),
                [*(earlier.tags if earlier else ()), *tags],
                descriptor.digest,
            )
        return list(found.values())

    def _diff_ids(self, config: _Config, layers: Sequence[str]) -> list[str]:
        diff_ids = config.rootfs.diff_ids
        if len(diff_ids) != len(layers):
            text = f"the manifest lists {len(layers)} layers, and the configuration {len(diff_ids)} diff_ids"
            raise InvalidInput(text, subject=str(self.path))
        for diff_id in diff_ids:
            if not SHA256.fullmatch(diff_id):
                raise InvalidInput(f"bad layer digest {diff_id!r}", subject=str(self.path))
        return diff_ids

    def _blob_document(self, digest: str) -> _Document:
        return self._decoded(digest, self._blob(digest), _Document)

    def _blob(self, digest: str) -> bytes:
        raw = self._read(self._blob_name(digest))
        if _digest(raw) != digest:
            raise InvalidInput(f"blob {digest} is damaged", subject=str(self.path))
        return raw

    def _blob_name(self, digest: str) -> str:
        if not DIGEST.fullmatch(digest):
            raise InvalidInput(f"expected a digest, got {digest!r}", subject=str(self.path))
        return "blobs/" + digest.replace(":", "/")

    def _decoded(self, name: str, raw: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidInput(str(error), subject=f"{self.path}: {name}") from None

    def _has(self, name: str) -> bool:
        return name in self._members if self._stream is not None else (self.path / name).exists()

    def _size(self, name: str) -> int:
        with self._open(name) as stream:
            return stream.seek(0, io.SEEK_END)

    def _read(self, name: str) -> bytes:
        with self._open(name) as stream:
            data = stream.read(MAX_DOCUMENT + 1)
        if len(data) > MAX_DOCUMENT:
            raise InvalidInput(f"{name} has more than {MAX_DOCUMENT} bytes", subject=str(self.path))
        return data

    def _open(self, name: str) -> IO[bytes]:
        wanted = _clean(name)
        if self._stream is None:
            if wanted.startswith(".."):
                raise InvalidInput(f"{name!r} leads out of it", subject=str(self.path))
            return _open_regular(self.path / wanted, f"{self.path}: {name}")
        for _ in range(MAX_LINKS):
            member = self._members.get(wanted)
            if member is None:
                break
            if not member.link:
                return io.BufferedReader(_Part(self._stream, member.offset, member.size), tars.CHUNK)
            wanted = member.link
        raise InvalidInput(f"{name} is missing", subject=str(self.path)) from None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except tars.DAMAGE as error:
            raise InvalidInput(f"damaged: {error}", subject=str(self.path)) from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise InvalidInput(f"damaged: {error}", subject=str(self.path)) from None


class _Part(io.RawIOBase):
    """Read a range of bytes of a larger stream."""

    def __init__(self, stream: IO[bytes], offset: int, size: int) -> None:
        self._stream = stream
        self._offset = offset
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._size - self._position))
        self._stream.seek(self._offset + self._position)
        data = self._stream.read(wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def architecture() -> str:
    """Return this machine's name in image manifests."""
    return go_architecture(os.uname().machine)


def _for_this_machine(manifests: Sequence[_Descriptor], path: Path) -> _Descriptor:
    for descriptor in manifests:
        platform = descriptor.platform or _Platform()
        if platform.architecture in ("", architecture()):
            return descriptor
    raise InvalidInput(f"has no image for {architecture()}", subject=str(path))


def _open_regular(path: Path, subject: str) -> IO[bytes]:
    """Open a regular file without blocking on a pipe. Raise InvalidInput for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InvalidInput("is missing", subject=subject) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput("expected a regular file", subject=subject)
    return os.fdopen(descriptor, "rb")


def _clean(name: str) -> str:
    """Return a member's name relative to its archive's root."""
    return posixpath.normpath(name.lstrip("/") or ".")


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
