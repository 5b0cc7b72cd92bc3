"""Count and find the images of nodes: the compiled kernels, or their twins with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.placement._node_images_py import count_images, note_sizes, rows_on_nodes
else:
    from engine._fast.placement._node_images_c import count_images, note_sizes, rows_on_nodes

__all__ = ["count_images", "note_sizes", "rows_on_nodes"]
