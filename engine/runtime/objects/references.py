"""Parse image references as container users write them and as runtimes report them."""

from __future__ import annotations


def normalised(reference: str) -> str:
    """Return the full form of an image name: registry, path, and tag or digest.

    `busybox` becomes `docker.io/library/busybox:latest`; `example.com/a/b@sha256:…` and image ids
    (`sha256:…`) are unchanged.
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
    """Return repository and tag (empty if there is none); a registry's port is not a tag."""
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, ""
    return repository, tag
