"""Claims unix sockets for servers: only dead ones are replaced, and permissions are tight from the start."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.api.errors import InvalidInput, Refused

LONGEST = 107
TURNS, TURN = 200, 0.005


class Claim(NamedTuple):
    """Hold the path of a socket, and the identity of the socket that was claimed there."""

    path: Path
    device: int
    inode: int

    def release(self) -> None:
        """Remove the socket, unless another one has replaced it."""
        with contextlib.suppress(FileNotFoundError):
            if _identity(self.path.lstat()) == (self.device, self.inode):
                self.path.unlink()


def claim(
    path: Path,
    bind: Callable[[str], object],
    *,
    mode: int = 0o600,
    before: Callable[[], object] = lambda: None,
) -> Claim:
    """Put the socket that `bind` creates and listens on at `path`, with `mode`, in one step.

    `bind` gets the path for the socket, in a directory that only this user can enter. A socket that nobody
    listens on is replaced; `before` is called when `path` is known to be free and not taken yet. Raises
    `Refused` naming `path` if somebody listens, if that cannot be determined, and if something else has the
    name, and `InvalidInput` for a path that no client could connect to.
    """
    if len(os.fsencode(path)) > LONGEST:
        raise InvalidInput(f"longer than the {LONGEST} bytes of a unix socket's path", subject=str(path))
    try:
        with _private_directory(path.parent) as directory:
            name = os.urandom(4).hex()
            # The path of a unix socket has at most 107 bytes. A path by descriptor is short however deep the
            # directory is, and it leads to the private directory even if somebody replaces that.
            bind(f"/proc/self/fd/{directory}/{name}")
            # In the private directory nobody could have connected before the mode is set.
            os.chmod(name, mode, dir_fd=directory)
            identity = _identity(os.lstat(name, dir_fd=directory))
            # Check and rename are not one step: without the lock, two processes could both find a dead socket
            # and the later rename would take the name from the earlier, live one.
            with _locked(path.parent):
                _check_free(path)
                before()
                os.rename(name, path, src_dir_fd=directory)
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=str(path), errno=error.errno) from None
    return Claim(path, *identity)


def nameless(directory: Path, bind: Callable[[str], object]) -> int:
    """Return a descriptor of the socket that `bind` creates and listens on, whose name is already removed.

    Only the holder can connect to it, at `/proc/self/fd/<descriptor>`. `bind` gets a path as in `claim`.
    Raises OSError.
    """
    with _private_directory(directory) as private:
        name = os.urandom(4).hex()
        bind(f"/proc/self/fd/{private}/{name}")
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=private)


def is_served(path: Path) -> bool:
    """Tell whether somebody listens on the socket. Raises OSError if that cannot be determined."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        # A socket whose process is dead refuses connections: the file outlives it.
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # its queue is full, so there is one
            return True
    return True


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Refused("exists and is not a socket", subject=str(path), errno=errno.EADDRINUSE)
    if is_served(path):
        raise Refused("another process serves this socket", subject=str(path), errno=errno.EADDRINUSE)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the path, so that two claimers do not both replace a dead socket. Raises OSError in the end."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Without blocking, since the lock may be held by a process that is stopped: one second in all.
        for _ in range(TURNS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(TURN)
        else:
            raise BlockingIOError(
                errno.EAGAIN, "another process holds the lock of this directory", str(directory)
            )
        yield
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _private_directory(parent: Path) -> Iterator[int]:
    """Yield a descriptor of a private directory. If it cannot be removed, what was created in it
    stays valid.
    """
    path = parent / f".{os.urandom(4).hex()}"
    path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            with contextlib.suppress(OSError):
                for left in os.listdir(descriptor):
                    os.unlink(left, dir_fd=descriptor)
            os.close(descriptor)
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()
