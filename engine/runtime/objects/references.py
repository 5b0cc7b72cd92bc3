"""Image references, as container users write them and as runtimes report them."""

from __future__ import annotations


def normalised(reference: str) -> str:
    """The full form of an image name: registry, path, and tag or digest.

    `busybox` becomes `docker.io/library/busybox:latest`, `example.com/a/b@sha256:…` stays. An image id
    (`sha256:…`) stays too.
    """
    if reference.startswith("sha256:"):
        return reference
    name, at, digest = reference.partition("@")
    head, slash, rest = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not ("." in head or ":" in head or head == "localhost"):
        name = f"docker.io/{name}"
    elif head in ("docker.io", "index.docker.io") and "/" not in rest:
        name = f"docker.io/library/{rest}"
    repository, tag = split_tag(name)
    if at:
        return f"{repository}@{digest}"
    return f"{repository}:{tag or 'latest'}"


def split_tag(name: str) -> tuple[str, str]:
    """Repository and tag (empty where there is none); a registry's port is no tag."""
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, ""
    return repository, tag
