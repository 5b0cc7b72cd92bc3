"""Choose preemption victims: the compiled kernel, or its twin with KUBENGINE_PURE=1."""

from engine._fast._select import PURE
from engine._fast.preemption._preemption_py import PODS

if PURE:
    from engine._fast.preemption._preemption_py import victims, victims_by_node
else:
    from engine._fast.preemption._preemption_c import victims, victims_by_node

__all__ = ["PODS", "victims", "victims_by_node"]
