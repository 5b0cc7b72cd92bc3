"""Settings that hold credentials are shown without their values, as a kubelet logs them."""

from __future__ import annotations

from typing import Any, Final

MASK: Final = "<masked>"
_WITH_CREDENTIALS: Final = ("staticPodURLHeader",)


def masked(name: str, value: Any) -> Any:
    """Return the value of the setting `name` as anybody may see it: names of headers, not their values."""
    if name not in _WITH_CREDENTIALS or not isinstance(value, dict):
        return value
    return {header: [MASK] * len(values) for header, values in value.items()}
