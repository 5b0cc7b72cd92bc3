"""Keep modules that a command may never use out of its process, until it uses one of their attributes.

The package imports this module before click, so what it postpones then is postponed for every command.
"""

from __future__ import annotations

import _datetime  # type: ignore[import-not-found]
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

THREADS = "OPENBLAS_NUM_THREADS"
CO_COROUTINE = 0x80

_loading = threading.RLock()


class Postponed(ModuleType):
    """Stand in for a module until one of its attributes is used."""

    def __getattr__(self, attribute: str) -> Any:
        # `inspect` and the import system probe for dunder names; that must not load the module.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        with _loading, _without_threads():
            # Another thread may have loaded it while this one waited.
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            value = self.__dict__[attribute] = getattr(import_module(self.__name__), attribute)
            return value


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


def postpone(names: Mapping[str, Mapping[str, Any]]) -> None:
    """Postpone modules that are not loaded yet; each has the attributes that it is to have until then."""
    for name, attributes in names.items():
        if name not in sys.modules:
            sys.modules[name] = module = Postponed(name)
            module.__dict__.update(attributes)


class _NoObject:
    """Stand in for a type of which no command has an object."""


def _untranslated(message: str) -> str:
    """Return a message of click, of which this program has no translations."""
    return message


def _untranslated_plural(one: str, more: str, number: int) -> str:
    return one if number == 1 else more


_ABSENT: dict[str, Any] = {
    "decimal": SimpleNamespace(Decimal=_NoObject),
    "gettext": SimpleNamespace(gettext=_untranslated, ngettext=_untranslated_plural),
    "typing_extensions": None,  # makes its import fail
    "uuid": SimpleNamespace(UUID=_NoObject, SafeUUID=SimpleNamespace(unknown=None)),
}


@contextlib.contextmanager
def without_unused_types() -> Iterator[None]:
    """Wrap the import of click or msgspec, which load whole modules for types of arguments and values that no
    command has, and what only older Pythons need.
    """
    absent = {name: module for name, module in _ABSENT.items() if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def lean_datetime() -> None:
    """Let `datetime` be its compiled part, as it is from Python 3.12 on.

    In Python 3.11, the module defines all classes in Python, and then replaces them by the compiled ones.
    """
    sys.modules.setdefault("datetime", _datetime)


def _without_indentation(doc: str) -> str:
    """Return the text as `inspect.cleandoc` does."""
    first, *rest = doc.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in rest)]).strip("\n")


def _is_coroutine_function(function: Any) -> bool:
    """Tell whether a function or method is an `async def`, as `inspect.iscoroutinefunction` does."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and bool(code.co_flags & CO_COROUTINE)


def _is_function(value: object) -> bool:
    return isinstance(value, FunctionType)


def _unwrapped(function: Any, *, stop: Callable[[Any], bool] | None = None) -> Any:
    """Return the function that `functools.wraps` has wrapped, as `inspect.unwrap` does."""
    while hasattr(function, "__wrapped__") and not (stop is not None and stop(function)):
        function = function.__wrapped__
    return function


INTROSPECTION: Mapping[str, Mapping[str, Any]] = {
    # click needs the first when it defines an option, and asyncio the others when it sets a signal handler:
    # it asks for coroutines, and `signal.signal` catches an exception whose text describes the main task.
    "inspect": {
        "cleandoc": _without_indentation,
        "iscoroutinefunction": _is_coroutine_function,
        "isfunction": _is_function,
        "unwrap": _unwrapped,
    },
    "locale": {},
    "textwrap": {},
    "tokenize": {},
}
