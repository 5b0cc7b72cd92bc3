"""What keeps the agent's process small and its start short. Nothing here changes what the agent does.

Measured at the end of start-up, on the way to `/healthz` (two cores, Python 3.11):

- OpenSSL postponed until something speaks TLS: 4.5 MB resident, about 25 ms of CPU;
- grpcio not imported, which device plugins and readers of pod resources bring: 23 MB, 0.2 s;
- protobuf's pure Python messages postponed, which its C messages replace: 0.6 MB, 10 ms;
- NumPy postponed until a decision or a scrape computes with columns: 11.5 MB, 0.09 s;
- no thread of NumPy's linear algebra per core: a stack and its set-up each, about 20 ms on two cores;
- one allocation arena for all threads, of which one at a time runs Python: 1 MB at 300 pods;
- no garbage collection meanwhile, and none later over what start-up made: 20 ms, and at thousands of pods
  pauses of 0.1 s and more.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

POSTPONED = ("ssl", "asyncio.sslproto", "google.protobuf.internal.python_message", "numpy", "numpy.typing")
THREADS = "OPENBLAS_NUM_THREADS"
M_ARENA_MAX = -8

_loading = threading.RLock()


class _Postponed(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        with _loading, _without_threads():
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            value = self.__dict__[attribute] = getattr(importlib.import_module(self.__name__), attribute)
            return value


class _TlsSocketType(type):
    """Knows TLS sockets without loading OpenSSL: before it is loaded there are none."""

    def __instancecheck__(cls, instance: object) -> bool:
        module = sys.modules["ssl"]
        return not isinstance(module, _Postponed) and isinstance(instance, module.SSLSocket)


class _TlsSocket(metaclass=_TlsSocketType):
    """Stands for `ssl.SSLSocket`, which asyncio checks each socket against."""


class _NamedInAnnotations:
    """Stands for `numpy.typing.NDArray`, which modules name in annotations that nobody evaluates."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


_STAND_INS: dict[str, dict[str, Any]] = {
    "ssl": {"SSLSocket": _TlsSocket},
    "numpy.typing": {"NDArray": _NamedInAnnotations},
}


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """Around the imports of the agent, before anything else imports asyncio or NumPy."""
    _postpone()
    with contextlib.suppress(AttributeError):  # the GNU library's own
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """Around what may load NumPy, which starts its threads then."""
    ours = THREADS not in os.environ
    if ours:
        os.environ[THREADS] = "1"
    try:
        yield
    finally:
        if ours:
            del os.environ[THREADS]


def _postpone() -> None:
    for name in POSTPONED:
        if name not in sys.modules:
            sys.modules[name] = module = _Postponed(name)
            module.__dict__.update(_STAND_INS.get(name, {}))


def settle() -> None:
    """Once the agent is up: what start-up made stays, and a node's objects live long."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
