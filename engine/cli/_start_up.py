"""What keeps the agent's process small and its start short; each measure with its effect (docs/density.md).

Nothing here changes what the agent does. `run` calls `postpone_tls` before anything imports asyncio, and
the agent's process calls `settle` once it is up.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

_loading = threading.RLock()


class _Postponed(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        with _loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            return getattr(importlib.import_module(self.__name__), attribute)


class _TlsSocketType(type):
    """Knows TLS sockets without loading OpenSSL: before it is loaded there are none."""

    def __instancecheck__(cls, instance: object) -> bool:
        module = sys.modules["ssl"]
        return not isinstance(module, _Postponed) and isinstance(instance, module.SSLSocket)


class _TlsSocket(metaclass=_TlsSocketType):
    """Stands for `ssl.SSLSocket`, which asyncio checks each socket against."""


def postpone_tls() -> None:
    """Leaves OpenSSL out until a TLS probe or hook asks for it: asyncio imports it for everyone."""
    for name, attributes in (("ssl", {"SSLSocket": _TlsSocket}), ("asyncio.sslproto", {})):
        if name not in sys.modules:
            sys.modules[name] = module = _Postponed(name)
            module.__dict__.update(attributes)
