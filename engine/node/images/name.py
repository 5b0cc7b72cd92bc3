"""Validates image names as kubelet v1.36 does before it calls a runtime.

The grammar is that of OCI distribution references: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`. Pure.
"""

from __future__ import annotations

import re
from typing import Final

_LABEL: Final = "[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]"
_HOST: Final = rf"(?:(?:{_LABEL})(?:\.(?:{_LABEL}))*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?(?P<path>{_PART}(?:/{_PART})*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@(?P<digest>{_DIGEST}))?"
)
_ID: Final = re.compile("[a-f0-9]{64}")
_DIGEST_LENGTHS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_PATH: Final = 255


def fault_of_name(name: str) -> str:
    """Return why a text is not a valid image name, or '' if it is."""
    if _ID.fullmatch(name):
        return f"invalid repository name ({name}), cannot specify 64-byte hexadecimal strings"
    host, rest = _split(name)
    repository = rest.partition(":")[0]
    if repository.lower() != repository:
        return f"invalid reference format: repository name ({repository}) must be lowercase"
    whole = f"{host}/{rest}"
    found = _REFERENCE.fullmatch(whole)
    if found is None:
        lower = _REFERENCE.fullmatch(whole.lower())
        return "repository name must be lowercase" if lower else "invalid reference format"
    if len(found["path"]) > _LONGEST_PATH:
        return f"repository name must not be more than {_LONGEST_PATH} characters"
    return _fault_of_digest(found["digest"]) if found["digest"] else ""


def repository_of(name: str) -> str:
    """Return the full name of an image's repository: registry and path, without tag and digest."""
    host, rest = _split(name.partition("@")[0])
    return f"{host}/{rest.partition(':')[0]}"


def _split(name: str) -> tuple[str, str]:
    """Split into registry and path, with Docker Hub as the default. A first part with capitals is
    a registry.
    """
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first or first.lower() != first):
        host, path = ("docker.io" if first == "index.docker.io" else first), rest
    else:
        host, path = "docker.io", name
    return host, f"library/{path}" if host == "docker.io" and "/" not in path else path


def _fault_of_digest(digest: str) -> str:
    algorithm, _, text = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None and algorithm == algorithm.lower():
        return "unsupported digest algorithm"
    if length is not None and len(text) != length:
        return "invalid checksum digest length"
    return "" if digest == digest.lower() else "invalid checksum digest format"
