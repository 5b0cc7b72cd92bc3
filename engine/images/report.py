"""Reports what a run of image GC did, or would do, image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

REMOVED: Final = "removed"
WOULD_REMOVE: Final = "would-remove"
FAILED: Final = "failed"
KEPT: Final = "kept"

AGE: Final = "age"
SPACE: Final = "space"


class ImageVerdict(msgspec.Struct):
    """Hold one image: `verdict` is removed, would-remove, failed or kept; `cause` is age or space if a pass
    chose it; `freed` are the bytes that its removal gave back.
    """

    key: str
    names: tuple[str, ...]
    size: int
    verdict: str
    reason: str
    freed: int = 0
    cause: str = ""


class ImageGCReport(msgspec.Struct):
    """Hold one run; amounts in bytes, times in Unix seconds.

    `wanted` is None if usage was below the high threshold, or the run failed before it was known. `error` is
    the failure in the kubelet's words, `kind` its type: list_images, get_pods, stats, invalid_capacity,
    insufficient, delete_failed_space, delete_failed_age. `elsewhere` tells what else fills the file system
    when too little could be freed. `removed_by` counts removals by cause; `account` computes the images'
    verdicts on demand.
    """

    at: float
    trigger: str
    dry_run: bool = False
    capacity: int | None = None
    available: int | None = None
    wanted: int | None = None
    freed: int = 0
    freed_by_age: int = 0
    attempted: list[str] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)
    removed_by: dict[str, int] = msgspec.field(default_factory=dict)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    error: str = ""
    kind: str = ""
    elsewhere: dict[str, int] = msgspec.field(default_factory=dict)
    account: Callable[[], list[ImageVerdict]] = list
    _images: list[ImageVerdict] | None = None

    @property
    def images(self) -> list[ImageVerdict]:
        """Return one verdict for each image of the runtime."""
        if self._images is None:
            self._images = self.account()
        return self._images

    def to_json(self) -> dict[str, Any]:
        names = (
            "at", "trigger", "dry_run", "capacity", "available", "wanted", "freed", "freed_by_age",
            "attempted", "removed", "error", "kind", "elsewhere",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"images": [asdict(v) for v in self.images]}


class ImageGCFailure(Exception):
    """Raised to end a run, with the kubelet's message; `kind` is that of the report."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def aggregate(errors: Iterable[str]) -> str:
    """Join several errors as the kubelet does: each once, in brackets if more than one."""
    distinct = list(dict.fromkeys(errors))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
