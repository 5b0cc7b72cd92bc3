"""Reads the parameters of a request to a component: by name, as in the query of a URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.api.errors import InvalidInput


def expect_known(query: Iterable[str], known: Iterable[str], subject: str) -> None:
    """Raise `InvalidInput` if `query` has a parameter that is not `known`; the error names both."""
    names = sorted(known)
    unknown = sorted(set(query).difference(names))
    if unknown:
        word = "parameter" if len(unknown) == 1 else "parameters"
        expected = f"expected {', '.join(names)}" if names else "none is expected"
        raise InvalidInput(f"unknown query {word} {', '.join(unknown)}; {expected}", subject=subject)


def is_set(query: Mapping[str, str], name: str, subject: str) -> bool:
    """Return whether a parameter is on; it is off if absent. Raise `InvalidInput` for any other value."""
    value = query.get(name, "false")
    if value not in ("true", "false", "1", "0"):
        raise InvalidInput(f"expected true or false, got {value!r}", subject=f"{subject}: {name}")
    return value in ("true", "1")
