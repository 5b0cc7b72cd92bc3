"""Keep the agent's process small and its start short, without changing what the agent does.

Savings measured at the end of start-up, up to `/healthz` (two cores, Python 3.11):

- OpenSSL is loaded only when something uses TLS: 4.5 MB resident, about 25 ms of CPU;
- grpcio, which device plugins and clients of pod resources need, is not imported: 23 MB, 0.2 s;
- protobuf's pure Python messages, which its C messages replace, are not loaded: 0.6 MB, 10 ms; the classes of
  CRI's messages are created when they are first used, of 280 about 110: 0.6 MB;
- kernels and messages for preemption, evictions, devices and exclusive CPUs wait for their first use, and so
  does GCC's thread library: 1.2 MB;
- Python's modules for introspection, locales, decimals, UUIDs and the platform are not loaded, which other
  modules import for what a node does not do (`engine.cli.agent.postponed`): 2 MB;
- NumPy is loaded when a decision first computes with whole columns, as device plugins need it, while scrapes,
  image collection, evictions and preemption do without it: 11.5 MB, 0.09 s;
- msgspec takes functions from `typing` instead of loading `typing_extensions`: 1 MB, 6 ms; it does not create
  the 38 classes with which it describes types;
- regular expressions are compiled at their first use, and most are for fields that few pods have: 9 ms;
- NumPy's linear algebra starts no thread per core, each with its stack and set-up: about 20 ms on two cores;
- all threads share one allocation arena, as only one runs Python at a time: 1 MB at 300 pods;
- annotations of named tuples do not stay compiled, and what start-up needed for a moment goes back to the
  kernel: 0.5 MB;
- garbage collection is off during start-up and afterwards skips the objects that start-up created: 20 ms, and
  at thousands of pods pauses of 0.1 s and more.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any, ForwardRef

from engine.cli.agent.postponed import Postponed, postpone, without_unused_types

M_ARENA_MAX, M_TRIM_THRESHOLD = -8, -1
KEPT_FREE = 128 << 10
"""Bytes at the end of the heap that stay with the process. It is the C library's own default, which grows to
megabytes when a large block is freed, unless it is set.
"""
_BUILDER = "google.protobuf.internal.builder"

_compile: Any = re.compile
_libc = ctypes.CDLL(None)


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
        return not isinstance(module, Postponed) and isinstance(instance, module.SSLSocket)


class _TlsSocket(metaclass=_TlsSocketType):
    """Stand in for `ssl.SSLSocket`, against which asyncio checks each socket."""


def _no_signature(_: object) -> str:
    """Stand in for `inspect.signature`, from which a dataclass takes a docstring that it lacks, as in h11."""
    raise ValueError


def _build_on_demand(file: Any, module: str, names: dict[str, Any]) -> None:
    """Build the class of a message when it is first used; protobuf's own function builds all, 280 for CRI."""
    builder: Any = importlib.import_module(_BUILDER)
    for name, enum in file.enum_types_by_name.items():
        names[name] = builder.enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})

    def built(name: str) -> Any:
        message = file.message_types_by_name.get(name)
        if message is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        kind = names[name] = builder._BuildMessage(module, message, "")
        return kind

    names["__getattr__"] = built


@contextlib.contextmanager
def _messages_on_demand() -> Iterator[None]:
    """Wrap the import of generated modules; if protobuf keeps messages in C, those in Python stay out."""
    if importlib.import_module("google.protobuf.internal.api_implementation").Type() != "upb":
        yield
        return
    pool = importlib.import_module("google._upb._message").default_pool
    postpone({"google.protobuf.descriptor_pool": {"Default": lambda: pool}})
    builder = vars(importlib.import_module(_BUILDER))
    own = {
        "BuildTopDescriptorsAndMessages": _build_on_demand,
        "BuildMessageAndEnumDescriptors": lambda file, names: None,
    }
    before = {name: builder[name] for name in own}
    builder.update(own)
    try:
        yield
    finally:
        builder.update(before)


class _NamedInAnnotations:
    """Stand in for `numpy.typing.NDArray`, which modules name in annotations that are never evaluated."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


_KERNELS = (
    *("devices.bitset", "devices.device_list", "devices.topology", "pinning.cpu_assignment"),
    *("preemption.preempt_fewest", "preemption.preemption", "ranking.eviction_ranking"),
)
"""Kernels for device plugins, topology policies, exclusive CPUs, preemption and evictions."""
_PARTS = ("admission.fewest", "cgroups.inspection", "cpumanager.static_policy", "probes.library")
"""Preemption under other policies than the kubelet's, reports about cgroups, exclusive CPUs, and probes that
the native loop leaves to Python.
"""
_WIRE = ("deviceplugin_v1beta1", "pluginregistration_v1", "podresources_v1", "podresources_v1alpha1")
"""Messages of device plugins and of their readers."""

_POSTPONED: dict[str, dict[str, Any]] = {
    "ssl": {"SSLSocket": _TlsSocket},
    "asyncio.sslproto": {},
    **{name: {} for name in ("base64", "calendar", "glob", "json", "shlex")},
    "google.protobuf.internal.python_message": {},
    "msgspec.inspect": {},
    "numpy": {},
    "numpy.typing": {"NDArray": _NamedInAnnotations},
    **{f"engine.{name}": {} for name in (*_PARTS, *(f"_fast.{name}" for name in _KERNELS))},
    **{f"engine.wire.{name}_pb2": {} for name in _WIRE},
}


def _release_annotations() -> None:
    """Turn annotations of named tuples back into text: `typing` compiles each to 1.7 KB of code."""
    for kind in tuple.__subclasses__():
        annotations = vars(kind).get("__annotations__", {})
        for name, value in annotations.items():
            if isinstance(value, ForwardRef):
                annotations[name] = value.__forward_arg__


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """Wrap the agent's imports, before anything else imports asyncio or NumPy."""
    postpone(_POSTPONED)
    with without_unused_types():
        importlib.import_module("msgspec")
    introspection = vars(sys.modules["inspect"])
    with contextlib.suppress(AttributeError):  # only the GNU C library has it
        _libc.mallopt(M_ARENA_MAX, 1)
        _libc.mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
    gc.disable()
    re.compile = _PostponedPattern  # type: ignore[assignment]
    signature = introspection.get("signature")
    introspection["signature"] = _no_signature
    with _messages_on_demand():
        try:
            yield
        finally:
            re.compile = _compile
            del introspection["signature"]
            if signature is not None:
                introspection["signature"] = signature
            _release_annotations()
            gc.freeze()
            gc.enable()


def tune_garbage_collection() -> None:
    """Tune garbage collection once the agent is up: objects of start-up stay, and a node's
    objects live long.
    """
    gc.freeze()
    # Full collections walk every pod's objects, of which few ever become garbage in a cycle.
    gc.set_threshold(20_000, 50, 100)
    # What start-up needed only for a moment goes back to the kernel: 0.3 MB.
    with contextlib.suppress(AttributeError):  # only the GNU C library has it
        _libc.malloc_trim(0)
