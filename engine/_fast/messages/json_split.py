"""Find the boundaries of objects in a JSON list: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE
from engine._fast.messages._json_split_py import DONE, FULL, ITEMS, MORE, OBJECT, TOO_DEEP, UNEXPECTED

if PURE:
    from engine._fast.messages._json_split_py import close_document, open_document, split_items
else:
    from engine._fast.messages._json_split_c import close_document, open_document, split_items

__all__ = [
    "DONE", "FULL", "ITEMS", "MORE", "OBJECT", "TOO_DEEP", "UNEXPECTED",
    "close_document", "open_document", "split_items",
]  # fmt: skip
