"""Stack image layers by copying, on machines where overlayfs does not work. Imported only there."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from engine.runtime.shim.linux import OPAQUE_ATTRIBUTE, change_owner


def flatten(layers: Sequence[Path], target: Path) -> None:
    """Copy `layers`, lowest first, over each other into `target`, as overlayfs would show them."""
    target.mkdir(mode=0o755, exist_ok=True)
    for layer in layers:
        for directory, names, files in os.walk(layer):
            here = target / Path(directory).relative_to(layer)
            with contextlib.suppress(OSError):
                if os.getxattr(directory, OPAQUE_ATTRIBUTE) == b"y" and here.is_dir():
                    shutil.rmtree(here)
            if here.is_symlink() or (here.exists() and not here.is_dir()):
                here.unlink()
            here.mkdir(exist_ok=True)
            _copy_attributes(Path(directory), here)
            for name in [*names, *files]:
                source, place = Path(directory) / name, here / name
                status = source.lstat()
                if stat.S_ISDIR(status.st_mode):
                    continue
                _make_way(place)
                if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                    continue
                if stat.S_ISREG(status.st_mode):
                    shutil.copyfile(source, place)
                elif stat.S_ISLNK(status.st_mode):
                    place.symlink_to(source.readlink())
                else:
                    os.mknod(place, status.st_mode, status.st_rdev)
                _copy_attributes(source, place)


def _copy_attributes(source: Path, place: Path) -> None:
    status = source.lstat()
    change_owner(place, status.st_uid, status.st_gid)
    if not stat.S_ISLNK(status.st_mode):
        place.chmod(stat.S_IMODE(status.st_mode))
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def _make_way(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
