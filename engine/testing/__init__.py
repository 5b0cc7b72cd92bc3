"""Provide tools for tests of this package and of programs that embed it.

A whole node in a test (`HollowNode`), an API server with faults on demand (`ThreadedApiServer`, and
`ApiServer` for asynchronous tests), a device plugin and a CSI driver, a hollow runtime that pretends to run
pods, a private containerd that leaves nothing behind, image archives written from the host's static busybox.
`pytest_plugin` offers them as fixtures. May import anything in `engine`; only tests, benches and commands
import it. Names are loaded when they are first used, so that a test loads only the tools that it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.runtime.hollow import HollowRuntime
    from engine.testing.apiserver import ApiServer, ApiServerFault
    from engine.testing.containerd import Containerd
    from engine.testing.csi_driver import SampleCsiDriver
    from engine.testing.device_plugin import DevicePluginFault, SampleAllocation, SampleDevicePlugin
    from engine.testing.hollow_node import HollowNode
    from engine.testing.images import write_busybox, write_image, write_pause
    from engine.testing.threaded_server import ThreadedApiServer

__all__ = [
    "ApiServer",
    "ApiServerFault",
    "Containerd",
    "DevicePluginFault",
    "HollowNode",
    "HollowRuntime",
    "SampleAllocation",
    "SampleCsiDriver",
    "SampleDevicePlugin",
    "ThreadedApiServer",
    "write_busybox",
    "write_image",
    "write_pause",
]

_MODULE_OF = {
    "ApiServer": "engine.testing.apiserver",
    "ApiServerFault": "engine.testing.apiserver",
    "Containerd": "engine.testing.containerd",
    "DevicePluginFault": "engine.testing.device_plugin",
    "HollowNode": "engine.testing.hollow_node",
    "HollowRuntime": "engine.runtime.hollow",
    "SampleAllocation": "engine.testing.device_plugin",
    "SampleCsiDriver": "engine.testing.csi_driver",
    "SampleDevicePlugin": "engine.testing.device_plugin",
    "ThreadedApiServer": "engine.testing.threaded_server",
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
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
