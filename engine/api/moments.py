"""Moments as Kubernetes writes them: UTC, RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def whole_second(seconds: float) -> datetime:
    """The second in which a moment lies (Unix seconds), as objects of the API have their times. Those of one
    second share one."""
    return _whole(int(seconds))


@lru_cache(maxsize=64)
def _whole(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def rfc3339(seconds: float) -> str:
    """`2026-02-03T04:05:06Z`, the second in which a moment lies (Unix seconds)."""
    return whole_second(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """`2026-02-03T04:05:06.000007Z` (Unix seconds), as leases and annotations have their times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
