"""Eviction order: the compiled kernel, or its twin with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast._eviction_ranking_py import order_by_count, order_by_excess
else:
    from engine._fast._eviction_ranking_c import order_by_count, order_by_excess

__all__ = ["order_by_count", "order_by_excess"]
