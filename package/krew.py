"""Build the kubectl plugin for krew.

`krew.py WHEEL DIRECTORY URL` writes DIRECTORY/kubectl-kubengine-ARCHITECTURE-TAG.tar.gz and its manifest
DIRECTORY/kubengine.yaml, for an archive that will be served under URL.

The archive holds the wheel and the libraries that the planner was tried with. It needs the Python of the
wheel's tag on the machine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path, PurePath

from deb import PLAN, is_run, requirements

from engine.api.version import engine_version

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
COMMAND = """#!/usr/bin/env -S python{major}.{minor} -I
import sys
from pathlib import Path

# krew links to this file, so the libraries are beside the file that the link leads to.
sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
from engine.cli import kubectl_plugin

kubectl_plugin()
"""
MANIFEST = """apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: kubengine
spec:
  version: v{version}
  homepage: {url}
  shortDescription: Answer what-ifs with the kubelet's own decisions
  description: |
    Asks the running cluster, or a saved snapshot: which pods a pod would preempt on each node, which pods are
    evicted under pressure, what image GC frees, how many more pods fit, and where pods of drained nodes go.
    The answers come from the kernels of a node agent that decides as the kubelet does. The plugin only reads.
  caveats: |
    Needs Python {major}.{minor}. Least rights: package/kubectl/planner-reader.yaml of the project.
  platforms:
  - selector:
      matchLabels:
        os: linux
        arch: {architecture}
    uri: {url}/{archive}
    sha256: {digest}
    bin: kubectl-kubengine
"""


def build(wheel: Path, directory: Path, url: str) -> tuple[Path, Path]:
    """Write the archive and its manifest, and return their paths."""
    tag = wheel.name.split("-")[2]
    major, minor = int(tag[2]), int(tag[3:])
    machine = next(name for name in ARCHITECTURES if wheel.stem.endswith(name))
    archive = directory / f"kubectl-kubengine-{ARCHITECTURES[machine]}-{tag}.tar.gz"
    directory.mkdir(parents=True, exist_ok=True)
    # Neither the archive nor a member holds a time, so that equal input gives equal bytes.
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        add(tar, "kubectl-kubengine", COMMAND.format(major=major, minor=minor).encode(), 0o755)
        with zipfile.ZipFile(wheel) as content:
            for name in sorted(content.namelist()):
                if not name.endswith("/"):
                    add(tar, f"lib/{name}", content.read(name))
        for distribution in sorted(requirements(wheel, PLAN), key=lambda found: found.name):
            for path in sorted(filter(is_run, distribution.files or ()), key=PurePath.as_posix):
                add(tar, f"lib/{path}", Path(str(distribution.locate_file(path))).read_bytes())
    manifest = directory / "kubengine.yaml"
    manifest.write_text(
        MANIFEST.format(
            version=engine_version(),
            major=major,
            minor=minor,
            architecture=ARCHITECTURES[machine],
            url=url.rstrip("/"),
            archive=archive.name,
            digest=hashlib.sha256(archive.read_bytes()).hexdigest(),
        )
    )
    return archive, manifest


def add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    for written in build(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]):
        print(written)
