"""Start `python -I -S …/shim FD`: make the package importable without its parents' imports."""

import sys
from pathlib import Path
from types import ModuleType

here = Path(__file__).resolve().parent
for name, path in (("engine", here.parent.parent), ("engine.runtime", here.parent)):
    package = ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules[name] = package

from engine.runtime.shim.spawner import main  # noqa: E402

main(int(sys.argv[1]))
