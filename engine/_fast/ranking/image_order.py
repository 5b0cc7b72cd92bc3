"""Order and cut images for GC: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.ranking._image_order_py import disused, mark, match, order_and_cut, spare
else:
    from engine._fast.ranking._image_order_c import disused, mark, match, order_and_cut, spare

__all__ = ["disused", "mark", "match", "order_and_cut", "spare"]
