"""Pick chosen fields of a runtime's lists: compiled, or by the protobuf library under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.messages._message_fields_py import Picker
else:
    from engine._fast.messages._message_fields_c import Picker  # type: ignore[assignment]

__all__ = ["Picker"]
