"""Matches images that an operator wants to keep in any case (kubernetes/kubernetes#68930). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

from engine.api.errors import InvalidInput
from engine.images.lease import DEFAULT_NAMESPACE, DEFAULT_REGISTRY, normalized

_WILD = re.compile(r"[*?\[]")


class KeepPatterns:
    """Match image names with shell patterns; `*` also matches slashes.

    A pattern without wildcards is an image name as in a manifest (`busybox` is
    `docker.io/library/busybox:latest`). A pattern with wildcards is matched against the full name with tag or
    digest, and against the name without Docker Hub's registry and namespace. Raise `InvalidInput` for an
    empty one.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for position, pattern in enumerate(patterns):
            if not pattern.strip():
                raise InvalidInput("expected a name or a pattern", subject=f"images.keep[{position}]")
        self._patterns = [
            (pattern, re.compile(translate(pattern if _WILD.search(pattern) else normalized(pattern))))
            for pattern in patterns
        ]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matching(self, names: Iterable[str]) -> str:
        """Return the first pattern that matches one of an image's names, or an empty text."""
        forms = {form for name in names for form in _forms(name)}
        for pattern, expression in self._patterns:
            if any(expression.match(form) for form in forms):
                return pattern
        return ""


def _forms(name: str) -> Iterable[str]:
    full = normalized(name)
    yield full
    if full.startswith(DEFAULT_REGISTRY):
        short = full.removeprefix(DEFAULT_REGISTRY)
        yield short
        yield short.removeprefix(DEFAULT_NAMESPACE)
