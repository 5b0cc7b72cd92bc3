"""The package's version, as answers, snapshots and peers name it."""

from __future__ import annotations


def engine_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kubengine")
    except PackageNotFoundError:
        return "unpackaged"
