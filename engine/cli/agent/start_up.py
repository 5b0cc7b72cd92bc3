"""Keep the agent's process small and its start short, without changing what the agent does.

Savings measured at the end of start-up, up to `/healthz` (two cores, Python 3.11):

- OpenSSL is loaded only when something uses TLS: 4.5 MB resident, about 25 ms of CPU;
- grpcio, which device plugins and clients of pod resources need, is not imported: 23 MB, 0.2 s;
- protobuf's pure Python messages, which its C messages replace, are not loaded: 0.6 MB, 10 ms;
- NumPy is loaded when a decision first computes with whole columns, as device plugins need it, while scrapes,
  image collection, evictions and preemption do without it: 11.5 MB, 0.09 s;
- kernels for devices, exclusive CPUs and preemption wait for their first use, and so do two parts of the
  engine that few pods need, and GCC's thread library: 1 MB;
- five modules of Python's library that only such parts use are loaded with them: 0.4 MB;
- msgspec takes functions from `typing` instead of loading `typing_extensions`: 1 MB, 6 ms; it does not create
  the 38 classes with which it describes types;
- regular expressions are compiled at their first use, and most are for fields that few pods have: 9 ms;
- NumPy's linear algebra starts no thread per core, each with its stack and set-up: about 20 ms on two cores;
- all threads share one allocation arena, as only one runs Python at a time: 1 MB at 300 pods;
- garbage collection is off during start-up and afterwards skips the objects that start-up created: 20 ms, and
  at thousands of pods pauses of 0.1 s and more.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

KERNELS = (
    *("devices.bitset", "devices.device_list", "devices.topology"),
    *("pinning.cpu_assignment", "preemption.preempt_fewest", "preemption.preemption"),
)
"""Kernels for device plugins, topology policies, exclusive CPUs and preemption. The one for evictions is
loaded at start-up, because memory is short when it is needed.
"""
PARTS = ("admission.fewest", "probes.library")
"""Preemption under other policies than the kubelet's, and probes that the native loop leaves to Python."""
POSTPONED = (
    *("ssl", "asyncio.sslproto", "google.protobuf.internal.python_message"),
    *("msgspec.inspect", "numpy", "numpy.typing"),
    *("base64", "calendar", "glob", "json", "shlex"),
    *(f"engine._fast.{name}" for name in KERNELS),
    *(f"engine.{name}" for name in PARTS),
)
EXTENSIONS = "typing_extensions"
THREADS = "OPENBLAS_NUM_THREADS"
M_ARENA_MAX = -8

_compile: Any = re.compile
_loading = threading.RLock()


class _Postponed(ModuleType):
    """Stand in for a module until one of its attributes is used."""

    def __getattr__(self, attribute: str) -> Any:
        # `inspect` and the import system probe for dunder names; that must not load the module.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        with _loading, _without_threads():
            # Another thread may have loaded it while this one waited.
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            value = self.__dict__[attribute] = getattr(importlib.import_module(self.__name__), attribute)
            return value


class _PostponedPattern:
    """Stand in for a compiled regular expression, and keep what was taken from it as attributes."""

    def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
        self._source = pattern, flags

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = self.__dict__[attribute] = getattr(_compile(*self._source), attribute)
        return value


class _TlsSocketType(type):
    """Recognize TLS sockets without loading OpenSSL: until it is loaded, none exist."""

    def __instancecheck__(cls, instance: object) -> bool:
        module = sys.modules["ssl"]
        return not isinstance(module, _Postponed) and isinstance(instance, module.SSLSocket)


class _TlsSocket(metaclass=_TlsSocketType):
    """Stand in for `ssl.SSLSocket`, against which asyncio checks each socket."""


class _NamedInAnnotations:
    """Stand in for `numpy.typing.NDArray`, which modules name in annotations that are never evaluated."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


_STAND_INS: dict[str, dict[str, Any]] = {
    "ssl": {"SSLSocket": _TlsSocket},
    "numpy.typing": {"NDArray": _NamedInAnnotations},
}


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """Wrap the agent's imports, before anything else imports asyncio or NumPy."""
    _postpone()
    _import_msgspec()
    with contextlib.suppress(AttributeError):  # only the GNU C library has it
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    gc.disable()
    re.compile = _PostponedPattern  # type: ignore[assignment]
    try:
        yield
    finally:
        re.compile = _compile
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """Wrap code that may load NumPy, which starts its threads on import."""
    # OpenBLAS reads it once, when it is loaded; children of the agent must not inherit it.
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


def _import_msgspec() -> None:
    """Import msgspec, which uses typing_extensions for older Pythons only, but imports it if it is there."""
    if EXTENSIONS in sys.modules:
        return
    sys.modules[EXTENSIONS] = None  # type: ignore[assignment] # makes its import fail
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules[EXTENSIONS]


def tune_garbage_collection() -> None:
    """Tune garbage collection once the agent is up: objects of start-up stay, and a node's
    objects live long.
    """
    gc.freeze()
    # Full collections walk every pod's objects, of which few ever become garbage in a cycle.
    gc.set_threshold(20_000, 50, 100)
