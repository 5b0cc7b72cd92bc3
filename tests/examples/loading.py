"""Import a program of `examples/` by its path."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.project.shown import ROOT


def example(name: str) -> ModuleType:
    module = f"examples_{name.replace('/', '_')}"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, ROOT / "examples" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]
