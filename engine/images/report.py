"""What a run of image GC did, or would do, image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

REMOVED: Final = "removed"
WOULD_REMOVE: Final = "would-remove"
FAILED: Final = "failed"
KEPT: Final = "kept"

AGE: Final = "age"
SPACE: Final = "space"


@dataclass(slots=True)
class ImageVerdict:
    """One image: `verdict` is removed, would-remove, failed or kept; `cause` age or space if a pass chose
    it; `freed` what its removal gave, in bytes."""

    key: str
    names: tuple[str, ...]
    size: int
    verdict: str
    reason: str
    freed: int = 0
    cause: str = ""


@dataclass(slots=True)
class ImageGCReport:
    """One run. Amounts in bytes, times in Unix seconds.

    `wanted` None: usage was below the high threshold (or the run failed before it was known). `error`
    is the run's failure in the kubelet's words, `kind` its sort: list_images, get_pods, stats,
    invalid_capacity, insufficient, delete_failed_space, delete_failed_age.
    `elsewhere` says what else fills the file system when too little could be freed. `removed_by` counts
    removals by cause; `account` makes the images' verdicts, which few ask for.
    """

    at: float
    trigger: str
    dry_run: bool = False
    capacity: int | None = None
    available: int | None = None
    wanted: int | None = None
    freed: int = 0
    freed_by_age: int = 0
    attempted: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    removed_by: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""
    kind: str = ""
    elsewhere: dict[str, int] = field(default_factory=dict)
    account: Callable[[], list[ImageVerdict]] = list
    _images: list[ImageVerdict] | None = None

    @property
    def images(self) -> list[ImageVerdict]:
        """One verdict for each image that the runtime had."""
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
    """Ends a run; the message is the kubelet's, `kind` as in the report."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def aggregate(errors: Iterable[str]) -> str:
    """Several errors as the kubelet joins them: each once, in brackets if more than one."""
    distinct = list(dict.fromkeys(errors))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
