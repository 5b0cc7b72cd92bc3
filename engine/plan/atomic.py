"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from engine.api.errors import InvalidInput


def atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """A temporary file beside it, synced, then renamed. Raises `InvalidInput` with the path."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                write(file)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), subject=str(path)) from error
