"""Decides when image GC runs and how much it frees: thresholds in, bytes out."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ImagesSection

LRU: Final = "lru"
LARGEST_FIRST: Final = "largest-first"
SIZE_AWARE: Final = "size-aware"
LAYERS: Final = "layers"
ORDERS: Final = (LRU, LARGEST_FIRST, SIZE_AWARE, LAYERS)

REPORTED: Final = "reported"
MEASURED: Final = "measured"
ACCOUNTINGS: Final = (REPORTED, MEASURED)


class ImageGCPolicy(msgspec.Struct, frozen=True):
    """Hold thresholds in percent of the image file system, and ages in seconds; `max_age` 0 is off.

    Raise `InvalidInput` in the kubelet's words for contradictory thresholds.
    """

    high_threshold_percent: int = 85
    low_threshold_percent: int = 80
    min_age: float = 120.0
    max_age: float = 0.0
    order: str = LRU
    accounting: str = REPORTED
    inode_high_percent: int = 0
    inode_low_percent: int = 0

    def __post_init__(self) -> None:
        high, low = self.high_threshold_percent, self.low_threshold_percent
        if not 0 <= high <= 100:
            raise InvalidInput(f"invalid HighThresholdPercent {high}, must be in range [0-100]")
        if not 0 <= low <= 100:
            raise InvalidInput(f"invalid LowThresholdPercent {low}, must be in range [0-100]")
        if low > high:
            raise InvalidInput(
                f"LowThresholdPercent {low} can not be higher than HighThresholdPercent {high}"
            )
        if self.order not in ORDERS:
            raise InvalidInput(f"{self.order!r} is not one of {', '.join(ORDERS)}", subject="images.order")
        if self.accounting not in ACCOUNTINGS:
            raise InvalidInput(
                f"{self.accounting!r} is not one of {', '.join(ACCOUNTINGS)}", subject="images.accounting"
            )
        if not 0 <= self.inode_low_percent <= self.inode_high_percent <= 100:
            raise InvalidInput(
                f"expected 0 <= low <= high <= 100, got low {self.inode_low_percent} and high "
                f"{self.inode_high_percent}",
                subject="images.inodeLowThresholdPercent",
            )

    @classmethod
    def from_config(cls, config: KubeletConfiguration, section: ImagesSection | None = None) -> ImageGCPolicy:
        section = section or ImagesSection()
        return cls(
            config.image_gc_high_threshold_percent,
            config.image_gc_low_threshold_percent,
            float(config.image_minimum_gc_age),
            float(config.image_maximum_gc_age),
            section.order,
            section.accounting,
            section.inode_high_threshold_percent,
            section.inode_low_threshold_percent,
        )

    @property
    def off(self) -> bool:
        """Return whether the periodic run does nothing; eviction still deletes unused images."""
        return self.high_threshold_percent == 100 and self.max_age == 0 and self.inode_high_percent == 0

    @staticmethod
    def used_percent(capacity: int, available: int) -> int:
        """Return the used percentage, rounded as by the kubelet; `capacity` must not be 0."""
        return 100 - min(available, capacity) * 100 // capacity

    def bytes_to_free(self, capacity: int, available: int) -> int | None:
        """Return None below the high threshold, otherwise the bytes to free to reach the low one, which may
        be zero or less.

        `capacity` must not be 0; more available than capacity counts as all available.
        """
        available = min(available, capacity)
        if self.used_percent(capacity, available) < self.high_threshold_percent:
            return None
        return capacity * (100 - self.low_threshold_percent) // 100 - available

    def inodes_to_free(self, inodes: int, free: int) -> int | None:
        """Return the same for inodes; None while that trigger is off or the file system counts none."""
        if not self.inode_high_percent or inodes <= 0:
            return None
        free = min(free, inodes)
        if 100 - free * 100 // inodes < self.inode_high_percent:
            return None
        return inodes * (100 - self.inode_low_percent) // 100 - free

    def enough_inodes(self, inodes: int, free: int) -> bool:
        """Tell whether usage is at or below the low threshold."""
        return free >= inodes * (100 - self.inode_low_percent) // 100
