"""Scripts on a private copy of the system: their changes below /usr, /etc and /var vanish when they end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

COPY = """
mount -t tmpfs tmpfs {scratch}
for tree in usr etc var; do
    layer={scratch}/$tree
    mkdir -p $layer/changed $layer/work
    mount -t overlay overlay -o lowerdir=/$tree,upperdir=$layer/changed,workdir=$layer/work /$tree
done
"""


def in_a_copy_of_the_system(script: str, scratch: Path, **environment: str) -> list[str]:
    """Run a shell script on a copy of the file system, and return the lines that it prints.

    The changes of each tree are in `TREE/changed` of the directory `scratch`. Needs root.
    """
    scratch.mkdir(exist_ok=True)
    run = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            COPY.format(scratch=scratch) + script,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | environment,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()
