"""Write the wheel of pytest-kubengine: `pytest_kubengine.py DIRECTORY`.

The distribution is a `pytest11` entry point that leads to `engine.testing.pytest_plugin`, without a module of
its own. It is not part of Kubengine's wheel: pytest rewrites the assertions in every module of a distribution
with a plugin, so tests that import `engine` would start half as fast again where nothing is cached. And a
project with a folder `engine` of its own could not run its tests if Kubengine were installed.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

from engine.api.version import engine_version

NAME = "pytest_kubengine"
METADATA = """Metadata-Version: 2.1
Name: pytest-kubengine
Version: {version}
Summary: pytest fixtures for device plugins, CSI drivers, operators and runtimes
License: Apache-2.0
Classifier: Framework :: Pytest
Requires-Python: >=3.11
Requires-Dist: kubengine[testing]=={version}
"""
WHEEL = """Wheel-Version: 1.0
Generator: kubengine
Root-Is-Purelib: true
Tag: py3-none-any
"""
# Named like its module: a conftest that lists the module in `pytest_plugins`, too, does not load it twice.
ENTRY_POINTS = """[pytest11]
engine.testing.pytest_plugin = engine.testing.pytest_plugin
"""


def write_wheel(directory: Path) -> Path:
    """Write the wheel into `directory` and return its path; the same bytes each time."""
    version = engine_version()
    metadata = f"{NAME}-{version}.dist-info"
    files = {
        f"{metadata}/METADATA": METADATA.format(version=version),
        f"{metadata}/WHEEL": WHEEL,
        f"{metadata}/entry_points.txt": ENTRY_POINTS,
    }
    rows = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{metadata}/RECORD"] = "\n".join([*rows, f"{metadata}/RECORD,,"]) + "\n"
    path = directory / f"{NAME}-{version}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name), text)
    return path


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


if __name__ == "__main__":
    print(write_wheel(Path(sys.argv[1])))
