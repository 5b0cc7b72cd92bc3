"""Stores the node's certificates under the kubelet's file names (client-go v1.36, certificate_store).

`PREFIX-current.pem` links to the newest `PREFIX-YYYY-MM-DD-hh-mm-ss.pem`, which contains the certificate and
then its key. A kubelet can continue with these files, and this agent with a kubelet's.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from engine.api.errors import InvalidInput, Refused
from engine.host.files import replace_file, sync_directory

_MOST = 1 << 20


class CertificateStore:
    """Store the certificates named `prefix` (`kubelet-client`, `kubelet-server`) in `directory`."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self.path = directory / f"{prefix}-current.pem"

    def current(self) -> Path | None:
        """Return the current file, if there is one; completes an interrupted rotation first."""
        if not self.path.exists():
            with suppress(OSError):
                self._updated.rename(self.path)
        return self.path if self.path.exists() else None

    def update(self, certificate: bytes, key: bytes, now: float) -> None:
        """Store a pair and make it current. Raises Refused; the old pair stays current in this case."""
        name = f"{self._prefix}-{datetime.fromtimestamp(now):%Y-%m-%d-%H-%M-%S}.pem"
        dated = self._directory.absolute() / name
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(dated, certificate.rstrip(b"\n") + b"\n" + key)
            # The new link is renamed over the current one, so that a reader always finds the old or the new
            # certificate. After a crash in between, `current` completes the rename.
            self._updated.unlink(missing_ok=True)
            self._updated.symlink_to(dated)
            self._updated.rename(self.path)
            sync_directory(self._directory)
        except OSError as error:
            text = f"cannot store a certificate: {error.strerror or error}"
            raise Refused(text, subject=error.filename or str(self.path), errno=error.errno) from error

    @property
    def _updated(self) -> Path:
        return self._directory / f"{self._prefix}-updated.pem"


def read_certificates(path: Path) -> bytes:
    """Read a file of certificates. Raises InvalidInput naming it."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST)
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), subject=str(path)) from error
