"""Unix sockets that a server holds: taken from the dead alone, and tight from the first moment."""

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
    """A socket's path and which socket is ours."""

    path: Path
    device: int
    inode: int

    def release(self) -> None:
        """Removes the socket, unless another has taken its place."""
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
    """Puts the socket that `bind` makes, and listens on, at `path`, with `mode` and whole.

    `bind` gets the path to make it at, in a directory that only this user can enter. A socket that nobody
    listens on is replaced; `before` is called when `path` is known to be free and not yet taken. Raises
    `Refused` naming `path` where somebody listens, where that can't be told and where something else has
    the name, `InvalidInput` for a path that no client could connect to.
    """
    if len(os.fsencode(path)) > LONGEST:
        raise InvalidInput(f"longer than the {LONGEST} bytes of a unix socket's path", subject=str(path))
    try:
        with _private_directory(path.parent) as directory:
            name = os.urandom(4).hex()
            bind(f"/proc/self/fd/{directory}/{name}")
            os.chmod(name, mode, dir_fd=directory)
            identity = _identity(os.lstat(name, dir_fd=directory))
            with _turn(path.parent):
                _check_free(path)
                before()
                os.rename(name, path, src_dir_fd=directory)
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=str(path), errno=error.errno) from None
    return Claim(path, *identity)


def nameless(directory: Path, bind: Callable[[str], object]) -> int:
    """A descriptor of the socket that `bind` makes, and listens on, whose name is gone when this returns.

    Only its holder can connect to it, at `/proc/self/fd/<descriptor>`. `bind` gets a path as in `claim`.
    Raises OSError.
    """
    with _private_directory(directory) as private:
        name = os.urandom(4).hex()
        bind(f"/proc/self/fd/{private}/{name}")
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=private)


def is_served(path: Path) -> bool:
    """Whether somebody listens on the socket. Raises OSError where that can't be told."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
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
        raise Refused("exists and is no socket", subject=str(path), errno=errno.EADDRINUSE)
    if is_served(path):
        raise Refused("another process serves this socket", subject=str(path), errno=errno.EADDRINUSE)


@contextlib.contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """One claimer at a time, so that two don't both take a dead socket's place. Raises OSError in the end."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(TURNS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(TURN)
        else:
            raise BlockingIOError(errno.EAGAIN, "others hold the directory", str(directory))
        yield
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _private_directory(parent: Path) -> Iterator[int]:
    """A descriptor of it. That it can't be taken away is no reason to give up what was made in it."""
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
