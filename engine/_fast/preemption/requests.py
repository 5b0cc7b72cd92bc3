"""Fill rows from Pod objects: the compiled filler, or its twin with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.preemption._requests_py import Filler, amounts, requests
else:
    from engine._fast.preemption._requests_c import Filler, amounts, requests  # type: ignore[assignment]

__all__ = ["Filler", "amounts", "requests"]
