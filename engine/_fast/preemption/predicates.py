"""Fit pods on nodes: the compiled kernels, or their twins with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.preemption._predicates_py import request_sums, short_on_each_node
else:
    from engine._fast.preemption._predicates_c import request_sums, short_on_each_node

__all__ = ["request_sums", "short_on_each_node"]
