"""The device checkpoint on disk.

A file that cannot be trusted is moved aside, never deleted: into `set-aside/`, since both the kubelet and
Kubengine clear the plugin directory of all other files when they start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from engine.api.errors import Unavailable
from engine.devices.checkpoint import Checkpoint, decode, encode
from engine.host.checksummed_file import SHORTAGES, read_again
from engine.host.state_file import FaultPoint, StateFile, no_fault
from engine.host.tasks import Tasks

FILE_NAME = "kubelet_internal_checkpoint"
SET_ASIDE = "set-aside"

log = logging.getLogger("kubengine.devices")


class CheckpointFile(StateFile):
    """Read and write the checkpoint in `directory`; `snapshot` gives what to write."""

    def __init__(
        self,
        directory: Path,
        snapshot: Callable[[], Checkpoint],
        *,
        tasks: Tasks | None = None,
        fault: FaultPoint = no_fault,
    ) -> None:
        super().__init__(
            directory / FILE_NAME,
            lambda: encode(snapshot()),
            name="device-checkpoint",
            tasks=tasks,
            fault=fault,
        )

    def load(self, now: float) -> Checkpoint:
        """Return the file's content; empty if there is none or if it had to be set aside.

        Raises `Unavailable` where the machine is short of what it takes to read; the file is well then.
        """
        try:
            text = read_again(self.path)
            checkpoint = decode(text)
        except FileNotFoundError:
            return Checkpoint()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise Unavailable(f"cannot be read: {error.strerror}", subject=str(self.path)) from error
            where = self._set_aside(now)
            message = "%s: %s; %s. The devices of running pods count as free."
            log.error(message, self.path, error, where)
            return Checkpoint()
        # So that an unchanged state is not written again.
        self.last = text
        return checkpoint

    def _set_aside(self, now: float) -> str:
        aside = self.path.parent / SET_ASIDE / f"{FILE_NAME}.{int(now)}"
        try:
            aside.parent.mkdir(mode=0o750, exist_ok=True)
            self.path.rename(aside)
        except OSError as error:
            return f"it cannot be set aside ({error.strerror or error})"
        return f"set aside as {aside}"
