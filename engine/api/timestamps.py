"""Formats times as Kubernetes does: UTC, RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def whole_second(seconds: float) -> datetime:
    """Return the second of a time (Unix seconds), as API objects store it; equal seconds share one object."""
    return _whole(int(seconds))


@lru_cache(maxsize=64)
def _whole(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def rfc3339(seconds: float) -> str:
    """Return `2026-02-03T04:05:06Z` for a time in Unix seconds."""
    return whole_second(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """Return `2026-02-03T04:05:06.000007Z` for a time in Unix seconds, as in leases and annotations."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
