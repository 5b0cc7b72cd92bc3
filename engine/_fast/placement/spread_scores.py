"""Choose nodes by score: the compiled kernels, or their twins with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.placement._spread_scores_py import best_nodes, seen_cells
else:
    from engine._fast.placement._spread_scores_c import best_nodes, seen_cells

__all__ = ["best_nodes", "seen_cells"]
