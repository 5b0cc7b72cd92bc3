"""`engine` under the name of the distribution: `import kubengine` offers the same names.

It has no modules of its own; parts that are imported by their path are in `engine`.
"""

from typing import TYPE_CHECKING, Any

import engine as _engine

if TYPE_CHECKING:
    from engine import *  # noqa: F403

__all__ = _engine.__all__
__doc__ = _engine.__doc__


def __getattr__(name: str) -> Any:
    if name not in _engine.__all__:
        raise AttributeError(f"module 'kubengine' has no attribute {name!r}")
    return getattr(_engine, name)


def __dir__() -> list[str]:
    return sorted({*_engine.__all__, *(name for name in globals() if name.startswith("__"))})
