"""Provide tools for tests of this package and of programs that embed it.

A sample device plugin, a hollow runtime that pretends to run pods, a private containerd that leaves nothing
behind, image archives written from the host's static busybox, a small API server with faults on demand
(`apiserver`); `pytest_plugin` offers fixtures. May import anything in `engine`; only tests, benches and
commands import it. Names are loaded when they are first used, so that a test loads only the tools that it
needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.runtime.hollow import HollowRuntime
    from engine.testing.containerd import Containerd
    from engine.testing.device_plugin import SampleDevicePlugin
    from engine.testing.images import write_busybox, write_image, write_pause

__all__ = [
    "Containerd",
    "HollowRuntime",
    "SampleDevicePlugin",
    "write_busybox",
    "write_image",
    "write_pause",
]

_MODULE_OF = {
    "Containerd": "engine.testing.containerd",
    "HollowRuntime": "engine.runtime.hollow",
    "SampleDevicePlugin": "engine.testing.device_plugin",
    "write_busybox": "engine.testing.images",
    "write_image": "engine.testing.images",
    "write_pause": "engine.testing.images",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'engine.testing' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
