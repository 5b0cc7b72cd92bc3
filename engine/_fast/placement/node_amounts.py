"""Sum and score amounts of nodes: the compiled kernels, or their twins with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.placement._node_amounts_py import scores_by_amounts, sums_on_nodes
else:
    from engine._fast.placement._node_amounts_c import scores_by_amounts, sums_on_nodes

__all__ = ["scores_by_amounts", "sums_on_nodes"]
