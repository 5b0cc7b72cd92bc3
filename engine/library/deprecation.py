"""Warn the callers of public names that a later version removes."""

from __future__ import annotations

import warnings


def warn_renamed(face: str, old: str, new: str) -> None:
    """Warn that `face.old` is deprecated; the warning points at the line that used the name."""
    # Frames: this function, the face's __getattr__, the caller.
    warnings.warn(f"{face}.{old} is deprecated; use {face}.{new}", DeprecationWarning, stacklevel=3)
