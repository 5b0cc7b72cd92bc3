"""The package's version, as answers and snapshots name it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def engine_version() -> str:
    try:
        return version("kubengine")
    except PackageNotFoundError:
        return "unpackaged"
