"""Compute the eviction order: the compiled kernel, or its twin with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.ranking._eviction_ranking_py import look_up, order_by_count, order_by_excess
else:
    from engine._fast.ranking._eviction_ranking_c import look_up, order_by_count, order_by_excess

__all__ = ["look_up", "order_by_count", "order_by_excess"]
