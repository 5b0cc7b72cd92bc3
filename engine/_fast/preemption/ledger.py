"""Count the pods of a node against what it has: the compiled kernel, or its twin with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.preemption._ledger_py import Ledger
else:
    from engine._fast.preemption._ledger_c import Ledger  # type: ignore[assignment]

__all__ = ["Ledger"]
